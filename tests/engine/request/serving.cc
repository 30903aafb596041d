#include "tests/engine/request/serving.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "engine/rpart/rpart_shape.h"
#include "rdma/shm/local_link.h"

namespace fastdecode {

namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kContextMax = 3000;
constexpr int kHomesMax = 4;

std::unique_ptr<Tokenizer> LoadTokenizer(bool has_special) {
  absl::StatusOr<TokenizerFiles> files =
      ReadTokenizerFiles(std::string(FASTDECODE_TESTS_DIR) + "/golden/tokenizer/base");
  EXPECT_TRUE(files.ok()) << files.status();
  auto document = nlohmann::json::parse(*files->tokenizer_json);
  for (int32_t id = 0; has_special && id < kServingVocab; ++id) {
    if (!IsServingSpecial(id)) continue;
    const std::string content(1, static_cast<char>('!' + id));
    document["added_tokens"].push_back({{"id", id},
                                        {"content", content},
                                        {"special", true},
                                        {"normalized", false},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false}});
  }
  files->tokenizer_json = document.dump();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Parse(*files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

}  // namespace

Serving::Serving(const ServingOptions& options)
    : options_(options),
      shape_(FakeShape(kLayers, static_cast<uint32_t>(options.limits.micro_batches), options.limits.rows_max,
                       kContextMax)),
      tokenizer_(LoadTokenizer(options.has_special)),
      spart_(shape_, options.vocab, /*polls_max=*/0, /*seed=*/1),
      current_(kHomesMax),
      homes_(kHomesMax),
      let_go_(kHomesMax),
      draining_(kHomesMax) {
  spec_.layers = kLayers;
  spec_.vocab = options.vocab;
  PipelineOptions pipeline;
  pipeline.limits = options.limits;
  pipeline.layers = kLayers;
  pipeline.vocab = options.vocab;
  pipeline.shape = shape_;
  pipeline.poll = PollMode::kYield;
  pipeline.park_after_ns = options.park_after_ns;
  pipeline.event_capacity = options.event_capacity;
  pipeline.hop_timeout_ns = uint64_t{3600} * 1'000'000'000;
  EventWriter desk_record;
  if (options.recorder != nullptr) {
    pipeline.record = options.recorder->writer(Recorder::kPipelineRing);
    desk_record = options.recorder->writer(Recorder::kDeskRing);
  }
  pipeline_ = std::make_unique<Pipeline>(pipeline, &spart_, &desk_word_);
  desk_ = std::make_unique<RequestDesk>(pipeline_.get(), &desk_word_, options.queue_max, this, desk_record);
  pipeline_->Start();
  desk_->Start();
  for (int i = 0; i < options.homes; ++i) AddHome(i);
}

Serving::~Serving() {
  desk_->Stop();
  desk_.reset();
  pipeline_.reset();
}

void Serving::AddHome(int index) {
  LinkSize size = LinkSizeFor(shape_);
  size.control_ring_bytes = options_.control_ring_bytes;
  absl::StatusOr<LocalLink> link = MakeLocalLink(size, -1, -1, links_.size() + 1);
  ASSERT_TRUE(link.ok()) << link.status();
  if (homes_[index] != nullptr) old_homes_.push_back(std::move(homes_[index]));
  homes_[index] = std::make_unique<HomeThread>(shape_, options_.pages, std::move(link->home));
  links_.push_back(std::move(link->engine));
  current_[index] = links_.back().get();
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kAddHome;
  command.home = index;
  command.link = current_[index];
  command.pages = options_.pages;
  desk_->Command(command);
}

void Serving::LoseHome(int index) {
  current_[index]->MarkLost("cut");
  pipeline_->Wake();
}

void Serving::OnHomeDraining(int home) {
  std::lock_guard lock(mutex_);
  ++draining_[home];
}

int Serving::draining(int index) const {
  std::lock_guard lock(mutex_);
  return draining_[index];
}

void Serving::OnHomeLost(int home, uint64_t hops_posted, uint32_t paused) {
  EXPECT_EQ(hops_posted, pipeline_->statistics().home_posts[home].value());
  EXPECT_LE(paused, options_.limits.active());
  std::lock_guard lock(mutex_);
  ++let_go_[home];
}

int Serving::let_go(int index) const {
  std::lock_guard lock(mutex_);
  return let_go_[index];
}

void Serving::AwaitSleep(int index, uint64_t sleeps) const {
  while (homes_[index]->sleeps() <= sleeps) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

absl::StatusOr<std::unique_ptr<Request>> Serving::Build(const std::vector<int32_t>& prompt,
                                                        const ServingAsk& ask) const {
  RequestFields given{};
  given.prompt_ids = prompt.data();
  given.prompt_id_count = prompt.size();
  given.max_tokens = ask.max_tokens;
  given.fill_tokens = ask.fill_tokens;
  given.deadline_ns = ask.deadline_ns;
  given.stop_token_ids = ask.stop_token_ids.data();
  given.stop_token_id_count = ask.stop_token_ids.size();
  std::vector<const char*> stops;
  for (const std::string& stop : ask.stops) stops.push_back(stop.c_str());
  given.stop = stops.data();
  given.stop_count = stops.size();
  given.include_stop = ask.include_stop;
  given.min_tokens = ask.min_tokens;
  if (ask.prompt_logits != nullptr) {
    given.prompt_logits = ask.prompt_logits->data();
    given.prompt_logits_floats = ask.prompt_logits->size();
  }
  given.prompt_logprobs = ask.prompt_logprobs;
  given.temperature = 0;
  given.show_special = ask.show_special;
  given.seed = ask.seed;
  given.answers = ask.answers;
  given.pause_events = ask.pause_events;
  RequestContext context;
  context.spec = &spec_;
  context.tokenizer = tokenizer_.get();
  context.max_context = kContextMax;
  return BuildRequest(context, given);
}

absl::StatusOr<uint64_t> Serving::Submit(const std::vector<int32_t>& prompt, const ServingAsk& ask) {
  absl::StatusOr<std::unique_ptr<Request>> request = Build(prompt, ask);
  if (!request.ok()) return request.status();
  uint64_t id = 0;
  if (absl::Status status = desk_->Submit(*std::move(request), &id); !status.ok()) return status;
  return id;
}

uint64_t Serving::MustSubmit(const std::vector<int32_t>& prompt, const ServingAsk& ask) {
  const absl::StatusOr<uint64_t> id = Submit(prompt, ask);
  EXPECT_TRUE(id.ok()) << id.status();
  return id.ok() ? *id : 0;
}

namespace {

ServingEvent CopyOf(const TakenEvent& taken) {
  ServingEvent out;
  out.kind = taken.event->kind;
  out.finished = out.kind == RequestEvent::Kind::kFinished;
  out.time_ns = taken.event->time_ns;
  out.home = taken.event->home;
  out.text = taken.event->text.text;
  out.special = taken.event->text.special;
  out.token_index = taken.event->token_index;
  out.answer = taken.event->answer;
  const RequestAnswer& answer = *taken.request->answers.at(out.answer);
  const int32_t* const generated = answer.sequence.log.tokens.data() + answer.sequence.prompt_tokens;
  out.tokens.assign(generated + out.token_index, generated + out.token_index + taken.event->token_count);
  if (out.finished) out.end = answer.end;
  return out;
}

}  // namespace

void ServingOutcome::Add(const ServingEvent& event) {
  ++events;
  for (const TextRange& range : event.special) AddRange({text.size() + range.begin, text.size() + range.end}, &special);
  text += event.text;
  if (event.kind == RequestEvent::Kind::kPrompt) {
    EXPECT_EQ(events, 1u) << "it comes once, and first";
    EXPECT_TRUE(event.tokens.empty());
    return;
  }
  if (event.kind == RequestEvent::Kind::kPaused) {
    EXPECT_TRUE(event.text.empty());
    pauses.push_back(event.home);
    return;
  }
  if (!event.finished) {
    EXPECT_EQ(event.token_index, tokens.size());
    EXPECT_FALSE(event.tokens.empty());
  }
  tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  if (!event.finished) return;
  end = event.end;
  finish = event.end.finish;
  error = event.end.error;
  generated_tokens = event.end.generated_tokens;
}

RequestDesk::NextResult Serving::Next(uint64_t id, ServingEvent* out, int64_t timeout_ns) {
  TakenEvent taken;
  const RequestDesk::NextResult result = desk_->Next(id, &taken, timeout_ns);
  if (result == RequestDesk::NextResult::kEvent) *out = CopyOf(taken);
  return result;
}

size_t Serving::Poll(size_t capacity, int64_t timeout_ns, std::map<uint64_t, ServingOutcome>* outcomes) {
  std::vector<TakenEvent> taken;
  desk_->Poll(capacity, timeout_ns, &taken);
  // All of them are there until the next Poll, however many of one request.
  for (const TakenEvent& one : taken) (*outcomes)[one.request->id].Add(CopyOf(one));
  return taken.size();
}

ServingOutcome Serving::Collect(uint64_t id) {
  ServingOutcome outcome;
  ServingEvent event;
  while (!event.finished) {
    if (Next(id, &event, -1) != RequestDesk::NextResult::kEvent) {
      ADD_FAILURE() << "request " << id << " is unknown before its last event";
      return outcome;
    }
    outcome.Add(event);
  }
  EXPECT_EQ(Next(id, &event, -1), RequestDesk::NextResult::kUnknown);
  return outcome;
}

FakeOracle::Result Serving::Expect(const std::vector<int32_t>& prompt, const ServingAsk& ask) const {
  const absl::StatusOr<std::unique_ptr<Request>> request = Build(prompt, ask);
  EXPECT_TRUE(request.ok()) << request.status();
  return FakeOracle::Run((*request)->first(), kLayers, options_.vocab);
}

void Serving::CheckWhole(const ServingOutcome& outcome, const std::vector<int32_t>& prompt,
                         const ServingAsk& ask) const {
  const FakeOracle::Result expected = Expect(prompt, ask);
  EXPECT_EQ(outcome.tokens, expected.generated);
  EXPECT_EQ(outcome.finish,
            expected.reason == FinishReason::kStopToken ? RequestFinish::kStop : RequestFinish::kLength);
  EXPECT_EQ(outcome.text, TextOf(expected.generated));
  EXPECT_EQ(outcome.generated_tokens, expected.generated.size());
  EXPECT_EQ(outcome.error, "");
}

void Serving::CheckPrefix(const ServingOutcome& outcome, const std::vector<int32_t>& prompt,
                          const ServingAsk& ask) const {
  const FakeOracle::Result expected = Expect(prompt, ask);
  ASSERT_LE(outcome.tokens.size(), expected.generated.size());
  EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.generated.begin()));
  EXPECT_EQ(outcome.generated_tokens, outcome.tokens.size());
}

std::string Serving::TextOf(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>('!' + token);
  return text;
}

std::vector<int32_t> Serving::Prompt(uint32_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kServingVocab);
  return prompt;
}

}  // namespace fastdecode
