#include "tests/engine/pipeline/sim_engine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "tests/logprob_check.h"

namespace fastdecode {

namespace {

uint64_t sim_now_ns = 1;
uint64_t sim_look_ns = 50;

// Time passes with every look at the clock.
uint64_t SimNowNs() { return sim_now_ns += sim_look_ns; }

PipelineOptions OptionsFor(const SimOptions& sim, const RPartShape& shape) {
  PipelineOptions options;
  options.limits = sim.limits;
  options.layers = static_cast<int>(sim.layers);
  options.vocab = sim.vocab;
  options.shape = shape;
  options.hop_timeout_ns = sim.hop_timeout_ns;
  options.recover_ns = sim.recover_ns;
  options.event_capacity = sim.event_capacity;
  options.record = sim.record;
  options.now_ns = SimNowNs;
  return options;
}

}  // namespace

std::vector<int32_t> SimRequest::generated() const {
  return {sequence.log.tokens.begin() + sequence.prompt_tokens,
          sequence.log.tokens.begin() + sequence.prompt_tokens + announced};
}

SimEngine::SimEngine(const SimOptions& options)
    : options_(options),
      shape_(FakeShape(options.layers, static_cast<uint32_t>(options.limits.micro_batches), options.limits.rows_max,
                       options.context_max, options.limits.open_pages ? KvType::kInt4 : KvType::kF32)),
      random_(options.seed),
      spart_(shape_, options.vocab, options.stage_polls_max, options.seed),
      pipeline_(std::make_unique<Pipeline>(OptionsFor(options, shape_), &spart_, &desk_word_)) {
  sim_look_ns = options.look_ns;
  spart_.OnSent(
      [this](int micro_batch, uint32_t layer, const StepTable& table) { AttendNear(micro_batch, layer, table); });
}

SimLink* SimEngine::AddHome(int index, uint32_t pages, uint32_t read_mb_per_s, bool near) {
  SimLinkOptions link_options = options_.link;
  link_options.in_stage = near;
  links_.push_back(std::make_unique<SimLink>(shape_, pages, link_options, random_()));
  homes_[index] = links_.back().get();
  if (options_.limits.cached_max > 0) links_.back()->home().ExpectKept();
  let_go_.erase(index);
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kAddHome;
  command.link = links_.back().get();
  command.home = index;
  command.pages = pages;
  command.read_mb_per_s = read_mb_per_s;
  EXPECT_TRUE(pipeline_->TryCommand(command));
  return links_.back().get();
}

void SimEngine::AttendNear(int micro_batch, uint32_t layer, const StepTable& table) {
  for (const auto& [index, link] : homes_) {
    const size_t home = static_cast<size_t>(index);
    if (!link->AttendsInStage() || table.home_areas[home].send != link->SendArea(micro_batch)) continue;
    uint32_t rows = 0, first_position = 0;
    for (int row = 0; row < table.rows; ++row) {
      if (table.homes[row] != home) continue;
      if (rows++ == 0) first_position = static_cast<uint32_t>(table.positions[row]);
    }
    if (rows > 0) link->Attend(micro_batch, layer, rows, first_position);
  }
}

uint64_t SimEngine::losses(int index) const {
  const auto found = losses_.find(index);
  return found == losses_.end() ? 0 : found->second;
}

std::vector<int32_t> SimEngine::Prompt(uint32_t tokens, uint64_t seed, int vocab) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return prompt;
}

SimRequest* SimEngine::Submit(const std::vector<int32_t>& prompt, const SimAsk& ask) {
  return SubmitGroup(prompt, {ask})[0];
}

std::vector<SimRequest*> SimEngine::SubmitGroup(const std::vector<int32_t>& prompt, const std::vector<SimAsk>& asks) {
  std::vector<SimRequest*> group;
  for (const SimAsk& ask : asks) {
    SimRequest* const request = Make(prompt, ask);
    request->follows = !group.empty();
    if (request->follows) group.back()->sequence.next_follower = &request->sequence;
    group.push_back(request);
  }
  PipelineCommand command;
  command.sequence = &group[0]->sequence;
  EXPECT_TRUE(pipeline_->TryCommand(command));
  return group;
}

SimRequest* SimEngine::Make(const std::vector<int32_t>& prompt, const SimAsk& ask) {
  requests_.push_back(std::make_unique<SimRequest>());
  SimRequest* const request = requests_.back().get();
  Sequence& sequence = request->sequence;
  sequence.id = sequence.request = requests_.size();
  sequence.prompt_tokens = static_cast<uint32_t>(prompt.size());
  sequence.length_max = std::min(sequence.prompt_tokens + ask.max_tokens, options_.context_max);
  sequence.fill_tokens = ask.fill_tokens;
  sequence.sampling.stop_tokens.assign(ask.stop_tokens.begin(), ask.stop_tokens.end());
  sequence.sampling.min_tokens = ask.min_tokens;
  sequence.sampling.params.seed = ask.seed;
  sequence.tells_pauses = sequence.id % 2 == 0;
  sequence.owner = request;
  sequence.submit_ns = sim_now_ns;
  sequence.log.tokens = prompt;
  sequence.log.tokens.resize(sequence.length_max);
  sequence.log.logprobs.resize(sequence.length_max - sequence.prompt_tokens);
  sequence.length = sequence.prompt_tokens;
  sequence.prefix.Prepare(prompt, sequence.length_max, ask.prefix_cache && ask.fill_tokens == 0, ask.cache_salt);
  if (ask.prompt_logprobs >= 0) sequence.AskForPromptLogprobs(ask.prompt_logprobs);
  if (ask.prompt_logits) {
    request->prompt_logits.assign(prompt.size() * static_cast<size_t>(options_.vocab), -1.0f);
    sequence.prompt_logits = request->prompt_logits.data();
  }
  request->expected = FakeOracle::Run(sequence, static_cast<int>(options_.layers), options_.vocab);
  return request;
}

void SimEngine::Cancel(SimRequest* request) {
  request->sequence.cancelled.store(true, std::memory_order_relaxed);
  pipeline_->NoteCancel();
}

uint64_t SimEngine::now_ns() const { return sim_now_ns; }

void SimEngine::StandStill(uint64_t ns) { sim_now_ns += ns; }

void SimEngine::Park() {
  pipeline_->Start();
  while (pipeline_->statistics().parks.value() == 0) sched_yield();
  pipeline_->Stop();
}

void SimEngine::Turn() {
  if (options_.turn_ns_max > 0) sim_now_ns += random_() % options_.turn_ns_max;
  pipeline_->TurnOnce();
  for (const auto& [index, link] : homes_) {
    link->Turn();
    EXPECT_EQ(link->violation(), "") << "home " << index;
  }
  events_are_old_ |= hold_events_;
  if (!hold_events_) TakeEvents();
}

void SimEngine::TakeEvents() {
  PipelineEvent event;
  while (pipeline_->TryEvent(&event)) OnEvent(event);
  events_are_old_ = false;
}

void SimEngine::OnEvent(const PipelineEvent& event) {
  if (event.kind == PipelineEvent::Kind::kHomeDrains) {
    EXPECT_EQ(let_go_.count(event.home), 0u) << "home " << event.home << " was let go of";
    return;
  }
  if (event.kind == PipelineEvent::Kind::kHomeLost) {
    EXPECT_TRUE(homes_[event.home]->lost()) << "home " << event.home;
    EXPECT_EQ(let_go_.count(event.home), 0u) << "home " << event.home << " was let go of twice";
    let_go_[event.home] = 1;
    ++losses_[event.home];
    paused_ += event.sequences;
    return;
  }
  SimRequest& request = *static_cast<SimRequest*>(event.sequence->owner);
  EXPECT_FALSE(request.finished) << "an event after the last one of sequence " << event.sequence->id;
  if (event.kind == PipelineEvent::Kind::kFinished) {
    request.finished = true;
    request.reason = event.reason;
    if (event.reason == FinishReason::kNoHome && !events_are_old_) CheckNoHome(request);
    request.fail_home = event.home;
    CheckTimes(request.sequence);
    CheckPauses(request);
    return;
  }
  if (event.kind == PipelineEvent::Kind::kPaused) {
    EXPECT_TRUE(homes_[event.home]->lost()) << "home " << event.home;
    ++request.pauses;
    return;
  }
  EXPECT_EQ(event.token_index, request.sequence.prompt_tokens + request.announced) << "sequence " << event.sequence->id;
  ++request.announced;
}

// No living home could hold it, and either none was to come, or it has waited long enough.
void SimEngine::CheckNoHome(const SimRequest& request) const {
  if (request.follows) return;  // it ends with its leader
  const Sequence& sequence = request.sequence;
  const Batcher& batcher = pipeline_->batcher();
  EXPECT_FALSE(batcher.FitsSomewhere(sequence)) << "sequence " << sequence.id;
  if (!batcher.HomesMissing()) return;
  EXPECT_NE(sequence.no_home_since_ns, 0u) << "sequence " << sequence.id;
  EXPECT_GE(now_ns(), sequence.no_home_since_ns + options_.recover_ns) << "sequence " << sequence.id;
}

// Each loss of its home was said once, if it is to be. Followers have those of their leader in their times.
void SimEngine::CheckPauses(const SimRequest& request) const {
  const SequenceTimes& times = request.sequence.times;
  EXPECT_EQ(times.recovery_ns > 0, times.recoveries > 0) << "sequence " << request.sequence.id;
  const uint32_t told = request.sequence.tells_pauses ? times.recoveries : 0;
  if (request.follows) {
    EXPECT_LE(request.pauses, told) << "sequence " << request.sequence.id;
  } else {
    EXPECT_EQ(request.pauses, told) << "sequence " << request.sequence.id;
  }
}

// Every moment is in one place.
void SimEngine::CheckTimes(const Sequence& sequence) const {
  const SequenceTimes& times = sequence.times;
  for (const StepTimes* steps : {&times.prefill, &times.decode}) {
    EXPECT_EQ(steps->total_ns,
              steps->s_ns + steps->wait_ns + steps->home_ns + steps->wire_ns + steps->boundary_ns + steps->sampling_ns)
        << "sequence " << sequence.id;
    EXPECT_EQ(steps->steps == 0, steps->total_ns == 0) << "sequence " << sequence.id;
  }
  EXPECT_EQ(sequence.submit_ns + times.queue_ns + times.prefill.total_ns + times.decode.total_ns,
            sequence.timed_until_ns)
      << "sequence " << sequence.id;
}

size_t SimEngine::unfinished() const {
  return static_cast<size_t>(
      std::count_if(requests_.begin(), requests_.end(), [](const auto& request) { return !request->finished; }));
}

bool SimEngine::RunAll(int turns_max) {
  for (int turn = 0; turn < turns_max; ++turn) {
    if (unfinished() == 0) return true;
    Turn();
    if (testing::Test::HasFailure()) return false;
  }
  return unfinished() == 0;
}

void SimEngine::CheckTokens(const SimRequest& request) const {
  const std::vector<int32_t> got = request.generated();
  const std::vector<int32_t>& expected = request.expected.generated;
  const uint64_t id = request.sequence.id;
  ASSERT_LE(got.size(), expected.size()) << "sequence " << id;
  ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << "sequence " << id << " has other tokens";
  if (request.announced > 0) CheckPromptLogprobs(request);
  const bool by_itself = request.reason == FinishReason::kStopToken || request.reason == FinishReason::kLength;
  if (!by_itself) return;
  ASSERT_EQ(got.size(), expected.size()) << "sequence " << id;
  ASSERT_EQ(request.reason, request.expected.reason) << "sequence " << id;
  CheckPromptLogprobs(request);
  if (request.prompt_logits.empty()) return;
  for (uint32_t position = request.sequence.fill_tokens; position < request.sequence.prompt_tokens; ++position) {
    const uint64_t residual = request.expected.prompt_residuals[position];
    const float* logits = request.prompt_logits.data() + position * static_cast<size_t>(options_.vocab);
    for (int token = 0; token < options_.vocab; ++token) {
      ASSERT_EQ(logits[token], LogitOf(residual, token)) << "sequence " << id << ", position " << position;
    }
  }
}

void SimEngine::CheckPromptLogprobs(const SimRequest& request) const {
  const Sequence& sequence = request.sequence;
  if (sequence.sampling.prompt_ids.empty()) return;
  const int top = sequence.sampling.prompt_params.logprobs;
  ASSERT_TRUE(std::isnan(sequence.log.prompt_logprobs[0]));
  for (uint32_t p = 1; p < sequence.prompt_tokens; ++p) {
    SCOPED_TRACE(testing::Message() << "sequence " << sequence.id << ", position " << p);
    std::vector<float> logits(static_cast<size_t>(options_.vocab));
    for (int token = 0; token < options_.vocab; ++token) {
      logits[static_cast<size_t>(token)] = LogitOf(request.expected.prompt_residuals[p - 1], token);
    }
    const TokenLogprob* const listed = sequence.log.prompt_top_logprobs.data() + p * static_cast<size_t>(top);
    CheckLogprobs(logits, sequence.log.tokens[p], sequence.log.prompt_logprobs[p], {listed, listed + top});
    if (testing::Test::HasFatalFailure()) return;
  }
}

void SimEngine::CheckPages() {
  pipeline_->batcher().CheckInvariants();
  for (const auto& [index, link] : homes_) {
    if (link->lost() || let_go(index)) continue;
    for (const auto& request : requests_) {
      const uint32_t told = link->home().PromptTokensOf(request->sequence.id);
      EXPECT_TRUE(told == 0 || told == request->sequence.prompt_tokens) << told;
    }
  }
}

void SimEngine::CheckNothingLeft() {
  EXPECT_EQ(pipeline_->batcher().active_count(), 0u);
  EXPECT_EQ(pipeline_->batcher().ready_count(), 0u);
  EXPECT_TRUE(pipeline_->Quiet());
  for (const auto& [index, link] : homes_)
    link->Resume();                               // one that hangs and is not overdue yet has room for no message
  for (int turn = 0; turn < 500; ++turn) Turn();  // pending releases go out, lost homes are let go of
  for (const auto& [index, link] : homes_) {
    if (link->lost()) {
      EXPECT_TRUE(let_go(index)) << "home " << index;
      continue;
    }
    link->DrainControl();
    EXPECT_EQ(link->violation(), "");
    EXPECT_FALSE(link->has_open_hop());
    // What is cached there is all that is there.
    const Batcher& batcher = pipeline_->batcher();
    EXPECT_EQ(link->home().pages_used(), batcher.pages_cached(index)) << "home " << index;
    EXPECT_EQ(link->home().sequences(), batcher.cache().kept_at(index)) << "home " << index;
    EXPECT_EQ(batcher.pages_free(index) + batcher.pages_cached(index), link->home().pages_total()) << "home " << index;
    EXPECT_EQ(batcher.sequences_at(index), 0u) << "home " << index;
    EXPECT_TRUE(options_.limits.cached_max > 0 || link->home().pages_used() == 0) << "home " << index;
  }
}

}  // namespace fastdecode
