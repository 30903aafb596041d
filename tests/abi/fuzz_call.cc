#include "tests/abi/fuzz_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr float kNobodys = std::numeric_limits<float>::quiet_NaN();

// Whether a caller's struct has the whole of a field.
#define HAS(bytes, type, field) ((bytes) >= offsetof(type, field) + sizeof(type::field))

}  // namespace

// What the struct points to, in arrays of the exact sizes, and the struct itself.
struct FuzzCall::Memory {
  std::vector<uint8_t> given, parts;
  std::vector<int32_t> ids, stop_tokens;
  std::vector<char> text;
  std::vector<const char*> stops;
  std::vector<fd_logit_bias> biases;
  std::vector<char> salt;

  fd_request* request() { return reinterpret_cast<fd_request*>(given.data()); }
  // The struct as it is given: `bytes` bytes of `fields`, and zeros behind what it has.
  void Give(fd_request fields, size_t bytes) {
    given.assign(bytes, 0);
    fields.struct_size = static_cast<uint32_t>(bytes);
    std::memcpy(given.data(), &fields, std::min(bytes, sizeof(fields)));
  }
};

FuzzCall::FuzzCall(Dice* dice, const FuzzModel& model, int max_context, uint32_t max_choices)
    : model_(model), max_context_(max_context) {
  fd_request_init(&fields_, sizeof(fields_));
  prompt_ = &dice->Of(model.prompts);
  way_ = dice->Between(0, kWays - 1);
  fields_.ignore_eos = 1;
  fields_.max_tokens = static_cast<uint32_t>(
      dice->Between(1, dice->OneIn(2) ? static_cast<int>(kAnswerTokens) : static_cast<int>(kAnswerTokens) / 5));
  fields_.temperature = way_ == 0 ? 0 : 0.8f;
  if (way_ > 0) fields_.top_k = 20;
  if (way_ > 0) fields_.seed = static_cast<uint64_t>(way_);
  if (dice->OneIn(4)) fields_.logprobs = dice->Between(0, 3);
  if (dice->OneIn(8)) {
    const uint64_t ns[] = {1, NowNs(), NowNs() + dice->Between(0, 30'000'000), UINT64_MAX - 1, UINT64_MAX};
    fields_.deadline_ns = dice->Of(ns);
  }
  if (dice->OneIn(6)) biases_ = {{dice->Between(0, model.vocab - 1), 0}};
  // Those of one request have seeds that follow on each other.
  const int seeds = way_ == 0 ? kWays : kWays - way_;
  const int most = std::min(static_cast<int>(max_choices), seeds);
  if (dice->OneIn(4)) fields_.n = static_cast<uint32_t>(dice->Between(1, most));
  if (dice->OneIn(8)) fields_.no_prefix_cache = 1;
  if (dice->OneIn(8)) salt_ = "salt";
  fields_.user = this;
  DrawPrompt(dice);
  DrawStops(dice);
  DrawSize(dice);
  fd_request_init(&effective_, sizeof(effective_));
  std::memcpy(&effective_, &fields_, std::min(bytes_, sizeof(effective_)));
  choices_.resize(effective_.n);
  for (size_t k = 0; k < choices_.size(); ++k) {
    choices_[k].answer = &prompt_->answers[way_ == 0 ? 0 : way_ + static_cast<int>(k)];
    choices_[k].right = FindEnd(*choices_[k].answer);
  }
  if (!dice->OneIn(8)) return;
  bench_ = true;
  if (dice->OneIn(2)) logits_.assign(prompt_->ids.size() * static_cast<size_t>(model.vocab), kNobodys);
}

void FuzzCall::DrawPrompt(Dice* dice) {
  form_ = dice->OneIn(3) ? Form::kParts : Form::kIds;
  if (!prompt_->text.empty() && dice->OneIn(3)) form_ = Form::kText;
  part_bytes_ = sizeof(fd_prompt_part) + (dice->OneIn(4) ? 8 * static_cast<size_t>(dice->Between(1, 8)) : 0);
  fields_.add_special_tokens = form_ == Form::kText;
}

void FuzzCall::DrawStops(Dice* dice) {
  const RightAnswer& answer = prompt_->answers[way_];
  if (dice->OneIn(4)) {
    stop_tokens_ = {answer.tokens[dice->Between(0, kAnswerTokens - 1)], dice->Between(0, model_.vocab - 1)};
    return;
  }
  if (!model_.has_tokenizer || !dice->OneIn(3)) return;
  const std::string& text = answer.texts.back();
  const size_t begin = static_cast<size_t>(dice->Between(0, static_cast<int>(text.size()) - 1));
  stops_ = {"\x01 never", text.substr(begin, static_cast<size_t>(dice->Between(1, 6)))};
  if (dice->OneIn(2)) std::swap(stops_[0], stops_[1]);
  fields_.include_stop = dice->OneIn(2);
}

// Larger than the library's, or cut behind `user`, so that the request is known again.
void FuzzCall::DrawSize(Dice* dice) {
  if (dice->OneIn(8)) bytes_ = sizeof(fd_request) + 8 * static_cast<size_t>(dice->Between(1, 8));
  if (!dice->OneIn(8)) return;
  bytes_ = 8 * static_cast<size_t>(dice->Between(sizeof(fd_request) / 8 - 16, sizeof(fd_request) / 8 - 1));
  EXPECT_TRUE(HAS(bytes_, fd_request, user));
}

RightEnd FuzzCall::FindEnd(const RightAnswer& answer) const {
  RightEnd right;
  const uint32_t room = static_cast<uint32_t>(max_context_) - prompt_tokens();
  const uint32_t most = std::min(effective_.max_tokens, room);
  right.tokens = most;
  right.known = HAS(bytes_, fd_request, top_k);
  if (!right.known) return right;
  if (model_.has_tokenizer) right.text = answer.texts[most];
  if (!stops_.empty()) return FindStopString(answer, most);
  for (uint32_t n = 0; n < most; ++n) {
    if (std::find(stop_tokens_.begin(), stop_tokens_.end(), answer.tokens[n]) == stop_tokens_.end()) continue;
    right.tokens = n;
    right.finish = FD_FINISH_STOP;
    right.stop_token = answer.tokens[n];
    if (model_.has_tokenizer) right.text = answer.texts[n];
    break;
  }
  return right;
}

// The first token with which a stop string is in the text.
RightEnd FuzzCall::FindStopString(const RightAnswer& answer, uint32_t most) const {
  RightEnd right;
  right.known = true;
  right.tokens = most;
  right.text = answer.texts[most];
  for (uint32_t n = 1; n <= most; ++n) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      const size_t begin = answer.texts[n].find(stops_[s]);
      if (begin == std::string::npos) continue;
      right.tokens = n;
      right.finish = FD_FINISH_STOP;
      right.stop_index = static_cast<int32_t>(s);
      right.text = answer.texts[n].substr(0, begin + (effective_.include_stop != 0 ? stops_[s].size() : 0));
      return right;
    }
  }
  return right;
}

static void SetPointers(const std::vector<int32_t>& array, const int32_t** at, size_t* count) {
  *at = array.empty() ? nullptr : array.data();
  *count = array.size();
}

fd_status* FuzzCall::Submit(fd_engine* engine) {
  Memory memory;
  fd_request fields = fields_;
  memory.ids = prompt_->ids;
  memory.text.assign(prompt_->text.begin(), prompt_->text.end());
  if (form_ == Form::kText) {
    fields.prompt = memory.text.data();
    fields.prompt_bytes = memory.text.size();
  } else if (form_ == Form::kIds) {
    SetPointers(memory.ids, &fields.prompt_ids, &fields.prompt_id_count);
  } else {
    const size_t half = memory.ids.size() / 2;
    memory.parts.assign(2 * part_bytes_, 0);
    for (size_t i = 0; i < 2; ++i) {
      fd_prompt_part part = {};
      part.struct_size = i == 0 ? static_cast<uint32_t>(part_bytes_) : 0;
      part.ids = memory.ids.data() + (i == 0 ? 0 : half);
      part.id_count = i == 0 ? half : memory.ids.size() - half;
      std::memcpy(memory.parts.data() + i * part_bytes_, &part, sizeof(part));
    }
    fields.parts = reinterpret_cast<const fd_prompt_part*>(memory.parts.data());
    fields.part_count = 2;
  }
  memory.stop_tokens = stop_tokens_;
  SetPointers(memory.stop_tokens, &fields.stop_token_ids, &fields.stop_token_id_count);
  for (const std::string& stop : stops_) memory.stops.push_back(stop.c_str());
  fields.stop = memory.stops.data();
  fields.stop_count = memory.stops.size();
  memory.biases = biases_;
  fields.logit_bias = memory.biases.data();
  fields.logit_bias_count = memory.biases.size();
  memory.salt.assign(salt_.begin(), salt_.end());
  fields.cache_salt = memory.salt.data();
  fields.cache_salt_bytes = memory.salt.size();
  memory.Give(fields, bytes_);
  uint64_t id = 0;
  fd_status* status = nullptr;
  if (bench_) {
    fd_bench_request bench;
    fd_bench_request_init(&bench, sizeof(bench));
    bench.prompt_logits = logits_.empty() ? nullptr : logits_.data();
    bench.prompt_logits_floats = logits_.size();
    status = fd_bench_submit(engine, memory.request(), &bench, &id);
  } else {
    status = fd_submit(engine, memory.request(), &id);
  }
  if (status == nullptr) {
    EXPECT_NE(id, 0u);
    id_.store(id);
  }
  return status;
}

void FuzzCall::SubmitWrong(Dice* dice, fd_engine* engine) {
  std::vector<int32_t> ids = prompt_->ids;
  std::vector<fd_logit_bias> twice = {{1, 0}, {1, 0}};
  fd_prompt_part part = {};
  part.struct_size = 12;
  fd_request fields = fields_;
  SetPointers(ids, &fields.prompt_ids, &fields.prompt_id_count);
  size_t bytes = sizeof(fields);
  uint32_t size = sizeof(fields);
  uint8_t behind = 0;
  const std::pair<const char*, std::function<void()>> mistakes[] = {
      {"max_tokens", [&] { fields.max_tokens = 0; }},
      {"n: 0", [&] { fields.n = 0; }},
      {"n: 129", [&] { fields.n = 129; }},
      {"cache_salt", [&] { fields.cache_salt_bytes = 1; }},
      {"min_tokens", [&] { fields.min_tokens = fields.max_tokens + 1; }},
      {"temperature", [&] { fields.temperature = kNobodys; }},
      {"top_k", [&] { fields.top_k = -1; }},
      {"logprobs", [&] { fields.logprobs = 21; }},
      {"logit_bias", [&] { fields.logit_bias = twice.data(), fields.logit_bias_count = 2; }},
      {"stop_token_ids", [&] { fields.stop_token_id_count = 1; }},
      {"prompt_ids", [&] { ids.back() = model_.vocab; }},
      {"prompt_ids",
       [&] { ids.assign(max_context_, 1), SetPointers(ids, &fields.prompt_ids, &fields.prompt_id_count); }},
      {"prompt", [&] { fields.prompt_ids = nullptr; }},
      {"fd_prompt_part.struct_size", [&] { fields.parts = &part, fields.part_count = 1; }},
      {"fd_request.struct_size", [&] { size = 0; }},
      {"fd_request.struct_size", [&] { size = 17; }},
      {"fd_request.struct_size", [&] { bytes = size = sizeof(fields) + 8, behind = 1; }}};
  const auto& [named, make] = dice->Of(mistakes);
  make();
  Memory memory;
  memory.Give(fields, bytes);
  memory.given.back() |= behind;
  std::memcpy(memory.given.data(), &size, sizeof(size));
  uint64_t id = 0;
  const std::vector<std::string> known_by_engines = {"prompt_ids", "logit_bias", "n: 129"};
  const bool by_engine = std::count(known_by_engines.begin(), known_by_engines.end(), named) > 0;
  fd_status* const status =
      dice->OneIn(4) && !by_engine ? fd_request_check(memory.request()) : fd_submit(engine, memory.request(), &id);
  EXPECT_EQ(fd_status_code(status), FD_INVALID_ARGUMENT) << named << ": " << fd_status_message(status);
  EXPECT_NE(std::string(fd_status_message(status)).find(named), std::string::npos) << fd_status_message(status);
  fd_status_destroy(status);
}

// ---- Events

void FuzzCall::Take(const fd_event& event, size_t bytes) {
  EXPECT_FALSE(ended()) << "an event behind the last one of request " << id();
  EXPECT_EQ(event.struct_size, bytes);
  if (HAS(bytes, fd_event, user)) {
    EXPECT_EQ(event.user, effective_.user);
  }
  if (!HAS(bytes, fd_event, choice) && choices_.size() > 1) {  // nobody knows whose it is
    counts = false;
    for (Choice& choice : choices_) choice.whole_text = false;
    finished += event.kind == FD_EVENT_FINISHED;
    if (ended()) FreeLogits();
    return;
  }
  ASSERT_LT(event.choice, choices_.size());
  Choice& choice = choices_[event.choice];
  EXPECT_FALSE(choice.finished) << "an event behind the last one of choice " << event.choice << " of request " << id();
  if (HAS(bytes, fd_event, text_bytes)) {
    EXPECT_EQ(event.text[event.text_bytes], 0);
    choice.text.append(event.text, event.text_bytes);
  } else {
    choice.whole_text = false;
  }
  if (HAS(bytes, fd_event, time_ns)) {
    EXPECT_GE(event.time_ns, event.submit_ns);
  }
  if (event.kind == FD_EVENT_TOKEN) {
    TakeTokens(event, bytes, &choice);
  } else {
    TakeEnd(event, bytes, &choice);
  }
}

void FuzzCall::TakeTokens(const fd_event& event, size_t bytes, Choice* choice) {
  if (!HAS(bytes, fd_event, top_logprob_count)) {
    counts = false;
    return;
  }
  std::vector<int32_t>& tokens = choice->tokens;
  EXPECT_GE(event.token_count, 1u);
  if (counts) {
    EXPECT_EQ(event.token_index, tokens.size()) << "of choice " << event.choice << " of request " << id();
  }
  taken_tokens -= tokens.size();
  tokens.resize(event.token_index);
  tokens.insert(tokens.end(), event.tokens, event.tokens + event.token_count);
  taken_tokens += tokens.size();
  EXPECT_LE(tokens.size(), choice->right.tokens);
  if (choice->right.known) {
    const std::vector<int32_t>& answer = choice->answer->tokens;
    for (size_t i = event.token_index; i < tokens.size() && i < answer.size(); ++i) {
      ASSERT_EQ(tokens[i], answer[i]) << "token " << i << " of choice " << event.choice << " of request " << id();
    }
  }
  if (!HAS(bytes, fd_event, top_logprobs)) return;
  ASSERT_EQ(event.logprobs != nullptr, effective_.logprobs >= 0);
  if (event.logprobs == nullptr) return;
  EXPECT_EQ(event.top_logprob_count, static_cast<uint32_t>(effective_.logprobs));
  for (uint32_t i = 0; i < event.token_count; ++i) {
    EXPECT_LE(event.logprobs[i], 0);
    const fd_token_logprob* const top = event.top_logprobs + i * event.top_logprob_count;
    for (uint32_t n = 1; n < event.top_logprob_count; ++n) EXPECT_GE(top[n - 1].logprob, top[n].logprob);
  }
}

void FuzzCall::TakeEnd(const fd_event& event, size_t bytes, Choice* choice) {
  EXPECT_EQ(event.kind, FD_EVENT_FINISHED);
  choice->finished = true;
  ++finished;
  if (HAS(bytes, fd_event, error)) CheckEnd(event, *choice);
  if (HAS(bytes, fd_event, cached_tokens)) {
    EXPECT_LT(event.cached_tokens, prompt_tokens());
    if (effective_.no_prefix_cache != 0) EXPECT_EQ(event.cached_tokens, 0u);
  }
  if (!ended()) return;
  finish = event.finish;
  finish_known = HAS(bytes, fd_event, error);
  if (counts && !choices_[0].tokens.empty()) {
    for (const float logit : logits_) EXPECT_FALSE(std::isnan(logit)) << "a logit of the prompt was not filled in";
  }
  FreeLogits();
}

// What is known of the tokens is right already; here, how many there are, and why.
void FuzzCall::CheckEnd(const fd_event& event, const Choice& choice) {
  const RightEnd& right = choice.right;
  EXPECT_EQ(event.prompt_tokens, prompt_tokens());
  EXPECT_STREQ(event.error, "");
  if (counts) {
    EXPECT_EQ(event.generated_tokens, choice.tokens.size());
  }
  EXPECT_LE(event.generated_tokens, right.tokens);
  switch (event.finish) {
    case FD_FINISH_LENGTH:
      EXPECT_EQ(event.generated_tokens, right.tokens);
      EXPECT_EQ(right.finish, FD_FINISH_LENGTH);
      break;
    case FD_FINISH_STOP:
      if (!right.known) break;
      EXPECT_EQ(event.generated_tokens, right.tokens);
      EXPECT_EQ(right.finish, FD_FINISH_STOP);
      EXPECT_EQ(event.stop_token, right.stop_token);
      EXPECT_EQ(event.stop_index, right.stop_index);
      break;
    case FD_FINISH_CANCELLED:
      EXPECT_TRUE(cancel_asked) << "nobody has cancelled request " << id();
      break;
    case FD_FINISH_DEADLINE:
      EXPECT_NE(effective_.deadline_ns, 0u);
      EXPECT_GE(NowNs(), effective_.deadline_ns);
      break;
    case FD_FINISH_ERROR:
      ADD_FAILURE() << "request " << id() << ": " << event.error;
  }
  if (event.finish != FD_FINISH_STOP) {
    EXPECT_EQ(event.stop_token, -1);
    EXPECT_EQ(event.stop_index, -1);
  }
  if (!choice.whole_text || !right.known) return;
  if (!model_.has_tokenizer) {
    EXPECT_EQ(choice.text, "");
  } else if (event.finish == FD_FINISH_STOP || event.finish == FD_FINISH_LENGTH) {
    EXPECT_EQ(choice.text, right.text);
  } else {
    EXPECT_EQ(choice.text, choice.answer->texts[event.generated_tokens]);
  }
}

#undef HAS

}  // namespace fastdecode
