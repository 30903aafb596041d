#include "tests/tools/serve/stub_sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

namespace fastdecode::stub {

namespace {

using Kind = ScriptStep::Kind;
constexpr uint64_t kNever = ~uint64_t{0};

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15u;
  return value ^ (value >> 29);
}

// How many bytes at the front of `bytes` are whole characters; what can be none is counted too.
size_t WholeCharacters(const std::string& bytes) {
  const size_t size = bytes.size();
  for (size_t back = 1; back <= std::min<size_t>(3, size); ++back) {
    const unsigned char byte = static_cast<unsigned char>(bytes[size - back]);
    if (byte < 0x80) return size;
    if (byte < 0xC0) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return length > back ? size - back : size;
  }
  return size;
}

// The text of bytes, with U+FFFD for each that is part of no character.
std::string ToText(const std::string& bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const unsigned char byte = static_cast<unsigned char>(bytes[i]);
    const size_t length = byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
    bool good = length > 0 && i + length <= bytes.size();
    for (size_t k = 1; good && k < length; ++k) good = (static_cast<unsigned char>(bytes[i + k]) & 0xC0) == 0x80;
    if (good) {
      text.append(bytes, i, length);
    } else {
      text += "\xEF\xBF\xBD";
    }
    i += good ? length : 1;
  }
  return text;
}

// So many bytes at the end of `text` may be the beginning of `stop`.
size_t HeldBy(const std::string& text, const std::string& stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) return n;
  }
  return 0;
}

fd_step_times SplitTimes(uint64_t steps, uint64_t total_ns) {
  fd_step_times times = {};
  times.steps = steps;
  times.total_ns = total_ns;
  times.s_ns = total_ns / 2;
  times.home_ns = total_ns / 4;
  times.wire_ns = total_ns / 8;
  times.sampling_ns = total_ns / 16;
  times.boundary_ns = total_ns / 32;
  times.wait_ns = total_ns - times.s_ns - times.home_ns - times.wire_ns - times.sampling_ns - times.boundary_ns;
  return times;
}

}  // namespace

fd_event StubEvent::View() const {
  fd_event view = event;
  view.tokens = tokens.empty() ? nullptr : tokens.data();
  view.token_count = static_cast<uint32_t>(tokens.size());
  view.logprobs = logprobs.empty() ? nullptr : logprobs.data();
  view.top_logprobs = top.empty() ? nullptr : top.data();
  view.text = text.c_str();
  view.text_bytes = text.size();
  view.special = special.empty() ? nullptr : special.data();
  view.special_count = static_cast<uint32_t>(special.size());
  view.error = error.c_str();
  view.times = event.kind == FD_EVENT_FINISHED ? &times : nullptr;
  return view;
}

StubSequence::StubSequence(StubTokenizer* tokenizer, const fd_request& request, std::vector<int32_t> prompt,
                           uint32_t length_max, uint64_t default_pause_ns, uint64_t now_ns)
    : tokenizer_(tokenizer),
      fields_(request),
      cache_salt_(request.cache_salt == nullptr ? std::string()
                                                : std::string(request.cache_salt, request.cache_salt_bytes)),
      stops_(request.stop, request.stop + request.stop_count),
      stop_tokens_(request.stop_token_ids, request.stop_token_ids + request.stop_token_id_count),
      prompt_(std::move(prompt)),
      length_max_(length_max),
      submit_ns_(now_ns),
      script_(ReadScript(tokenizer->Decode(prompt_, /*with_special=*/false))),
      every_ns_(default_pause_ns) {
  if (!fields_.ignore_eos) stop_tokens_.insert(kEos);
}

void StubSequence::Start(uint64_t now_ns) {
  state_ = State::kRunning;
  start_ns_ = last_token_ns_ = now_ns;
  due_ns_ = now_ns + script_.prefill_ns;
}

void StubSequence::Advance(uint64_t now_ns) {
  if (first_token_ns_ == 0) {
    first_token_ns_ = now_ns;
    if (fields_.prompt_logprobs >= 0 && choice == 0) AnnouncePrompt(now_ns);
  }
  if (generated_ >= length_max_) return Finish(FD_FINISH_LENGTH, now_ns);
  int32_t token = -1;
  if (!NextToken(now_ns, &token)) return;
  if (generated_ >= fields_.min_tokens && stop_tokens_.count(token) > 0) {
    stop_token_ = token;
    return Finish(FD_FINISH_STOP, now_ns);
  }
  Announce(token, now_ns);
  if (state_ == State::kEnded) return;
  if (generated_ >= length_max_) return Finish(FD_FINISH_LENGTH, now_ns);
  due_ns_ = now_ns + every_ns_;
}

bool StubSequence::NextToken(uint64_t now_ns, int32_t* token) {
  while (spelled_.empty()) {
    if (step_ >= script_.steps.size()) return AtEndOfScript(now_ns, token);
    const ScriptStep& step = script_.steps[step_];
    switch (step.kind) {
      case Kind::kToken: {
        if (played_ >= step.number) {
          ++step_;
          played_ = 0;
          continue;
        }
        ++played_;
        const int32_t id = tokenizer_->IdOf(step.text);
        if (id >= 0) {
          *token = id;
          return true;
        }
        for (auto byte = step.text.rbegin(); byte != step.text.rend(); ++byte) {
          spelled_.push_back(static_cast<unsigned char>(*byte));
        }
        break;
      }
      case Kind::kId:
        ++step_;
        *token = static_cast<int32_t>(step.number);
        return true;
      case Kind::kSeed:
      case Kind::kField:
        ++step_;
        for (const char byte : step.kind == Kind::kSeed ? absl::StrFormat(" %d", fields_.seed) : Field(step.text)) {
          spelled_.insert(spelled_.begin(), static_cast<unsigned char>(byte));
        }
        if (const int32_t id = tokenizer_->IdOf(std::string(spelled_.rbegin(), spelled_.rend())); id >= 0) {
          spelled_.assign(1, id);
        }
        break;
      case Kind::kPause:
      case Kind::kHang:
        if (!paused_) {
          paused_ = true;
          due_ns_ = step.number == kNever ? kNever : now_ns + step.number;
          if (step.kind == Kind::kHang) hang_until_ns_ = due_ns_;
          return false;
        }
        paused_ = false;
        ++step_;
        break;
      case Kind::kEvery:
        ++step_;
        every_ns_ = step.number;
        break;
      case Kind::kStop:
        return AtEndOfScript(now_ns, token);
      case Kind::kLength:
        Finish(FD_FINISH_LENGTH, now_ns);
        return false;
      case Kind::kError:
        Finish(FD_FINISH_ERROR, now_ns, step.text);
        return false;
      case Kind::kWait:
        due_ns_ = kNever;
        return false;
    }
  }
  *token = spelled_.back();
  spelled_.pop_back();
  return true;
}

// The stop token, or filler where it may not come.
bool StubSequence::AtEndOfScript(uint64_t now_ns, int32_t* token) {
  *token = kEos;
  if (fields_.ignore_eos || generated_ < fields_.min_tokens) {
    const int32_t filler = tokenizer_->IdOf(" more");
    *token = filler >= 0 ? filler : '.';
  }
  return true;
}

std::string StubSequence::Field(const std::string& name) const {
  const std::pair<const char*, double> fields[] = {{"temperature", fields_.temperature},
                                                   {"top_k", fields_.top_k},
                                                   {"top_p", fields_.top_p},
                                                   {"min_p", fields_.min_p},
                                                   {"repetition_penalty", fields_.repetition_penalty},
                                                   {"presence_penalty", fields_.presence_penalty},
                                                   {"frequency_penalty", fields_.frequency_penalty},
                                                   {"max_tokens", fields_.max_tokens},
                                                   {"min_tokens", fields_.min_tokens},
                                                   {"ignore_eos", fields_.ignore_eos},
                                                   {"include_stop", fields_.include_stop},
                                                   {"show_special", fields_.show_special},
                                                   {"logprobs", fields_.logprobs},
                                                   {"prompt_logprobs", fields_.prompt_logprobs},
                                                   {"n", fields_.n},
                                                   {"no_prefix_cache", fields_.no_prefix_cache},
                                                   {"logit_bias_count", static_cast<double>(fields_.logit_bias_count)},
                                                   {"stop_count", static_cast<double>(stops_.size())}};
  if (name == "cache_salt") return " cache_salt=" + cache_salt_;
  for (const auto& [known, value] : fields) {
    if (name == known) return absl::StrFormat(" %s=%g", name, value);
  }
  return absl::StrFormat(" %s=?", name);
}

void StubSequence::Announce(int32_t token, uint64_t now_ns) {
  StubEvent event = NewEvent(FD_EVENT_TOKEN, now_ns);
  event.event.token_index = generated_;
  event.tokens.push_back(token);
  if (fields_.logprobs >= 0) AppendLogprobs(token, prompt_.size() + generated_, fields_.logprobs, &event);
  if (fields_.show_special || !StubTokenizer::IsSpecial(token)) bytes_ += tokenizer_->BytesOf(token);
  ++generated_;
  last_token_ns_ = now_ns;
  const bool stopped = ReleaseText(/*at_end=*/false, &event.text);
  const size_t own = tokenizer_->BytesOf(token).size();
  if (fields_.show_special && StubTokenizer::IsSpecial(token) && stops_.empty()) {
    event.special.push_back({event.text.size() - own, event.text.size()});
  }
  if (events_.size() >= FD_UNDELIVERED_MAX && events_.back().event.kind == FD_EVENT_TOKEN) {
    StubEvent& last = events_.back();
    last.tokens.push_back(token);
    last.logprobs.insert(last.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    last.top.insert(last.top.end(), event.top.begin(), event.top.end());
    for (const fd_text_range& range : event.special) {
      last.special.push_back({last.text.size() + range.begin, last.text.size() + range.end});
    }
    last.text += event.text;
    last.event.time_ns = now_ns;
  } else if (!forgotten) {
    events_.push_back(std::move(event));
  }
  if (stopped) Finish(FD_FINISH_STOP, now_ns);
}

void StubSequence::AnnouncePrompt(uint64_t now_ns) {
  StubEvent event = NewEvent(FD_EVENT_PROMPT, now_ns);
  event.tokens = prompt_;
  for (size_t i = 0; i < prompt_.size(); ++i) AppendLogprobs(prompt_[i], i, fields_.prompt_logprobs, &event);
  event.logprobs[0] = std::numeric_limits<float>::quiet_NaN();
  for (int32_t i = 0; i < fields_.prompt_logprobs; ++i) {
    event.top[i] = {-1, std::numeric_limits<float>::quiet_NaN()};
  }
  if (!forgotten) events_.push_back(std::move(event));
}

void StubSequence::Finish(fd_finish finish, uint64_t now_ns, std::string error) {
  StubEvent event = NewEvent(FD_EVENT_FINISHED, now_ns);
  if (finish == FD_FINISH_STOP && stop_index_ >= 0) {
    // The text ends with or before the stop string.
  } else if (ReleaseText(/*at_end=*/true, &event.text) && finish == FD_FINISH_LENGTH) {
    finish = FD_FINISH_STOP;
  }
  state_ = State::kEnded;
  finish_ = finish;
  due_ns_ = kNever;
  event.error = std::move(error);
  event.event.finish = finish;
  event.event.stop_index = finish == FD_FINISH_STOP ? stop_index_ : -1;
  event.event.stop_token = finish == FD_FINISH_STOP && stop_index_ < 0 ? stop_token_ : -1;
  event.event.prompt_tokens = prompt_tokens();
  event.event.generated_tokens = generated_;
  event.event.cached_tokens = start_ns_ == 0 ? 0 : cached_tokens();
  event.times.struct_size = sizeof(event.times);
  const uint64_t started_ns = start_ns_ == 0 ? now_ns : start_ns_;
  event.times.queue_ns = started_ns - submit_ns_;
  if (start_ns_ != 0) {
    const uint64_t first_ns = first_token_ns_ == 0 ? now_ns : first_token_ns_;
    event.times.prefill = SplitTimes(1, first_ns - start_ns_);
    event.times.decode =
        SplitTimes(generated_ == 0 ? 0 : generated_ - 1, std::max(last_token_ns_, first_ns) - first_ns);
  }
  if (!forgotten) events_.push_back(std::move(event));
}

bool StubSequence::ReleaseText(bool at_end, std::string* text) {
  const size_t whole = at_end ? bytes_.size() : WholeCharacters(bytes_);
  held_ += ToText(bytes_.substr(0, whole));
  bytes_.erase(0, whole);
  size_t hold = 0;
  if (generated_ > fields_.min_tokens) {
    size_t first = std::string::npos;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const size_t at = held_.find(stops_[i]);
      if (at < first) {
        first = at;
        stop_index_ = static_cast<int32_t>(i);
      }
      hold = std::max(hold, HeldBy(held_, stops_[i]));
    }
    if (first != std::string::npos) {
      *text = held_.substr(0, first + (fields_.include_stop ? stops_[stop_index_].size() : 0));
      held_.clear();
      bytes_.clear();
      return true;
    }
  }
  if (at_end) hold = 0;
  *text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return false;
}

StubEvent StubSequence::TakeEvent() {
  StubEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

float StubSequence::Logprob(int32_t token, uint64_t position) const {
  const uint64_t mixed = Mix(Mix(static_cast<uint64_t>(token) + 1) + position);
  return -static_cast<float>(mixed % 99'991) / 9'973.0f;
}

// The token has the first place of its list, but for each third position, where another one is likelier.
void StubSequence::AppendLogprobs(int32_t token, uint64_t position, int32_t count, StubEvent* event) const {
  const float chosen = Logprob(token, position);
  event->logprobs.push_back(chosen);
  const bool first = position % 3 != 2;
  for (int32_t k = 0; k < count; ++k) {
    if (first && k == 0) {
      event->top.push_back({token, chosen});
    } else {
      const int32_t other =
          static_cast<int32_t>('!') + static_cast<int32_t>((position + static_cast<uint64_t>(k)) % 90);
      const float likelier = chosen * 0.5f;
      event->top.push_back(
          {other == token ? '~' : other, !first && k == 0 ? likelier : chosen - 0.125f * static_cast<float>(k + 1)});
    }
  }
}

StubEvent StubSequence::NewEvent(fd_event_kind kind, uint64_t now_ns) const {
  StubEvent event;
  event.event.struct_size = sizeof(fd_event);
  event.event.kind = kind;
  event.event.id = request;
  event.event.choice = choice;
  event.event.user = fields_.user;
  event.event.hides_special = fields_.show_special == 2 ? 1 : 0;
  event.event.stop_index = event.event.stop_token = -1;
  event.event.submit_ns = submit_ns_;
  event.event.time_ns = now_ns;
  const int32_t top = kind == FD_EVENT_PROMPT ? fields_.prompt_logprobs : kind == FD_EVENT_TOKEN ? fields_.logprobs : 0;
  event.event.top_logprob_count = static_cast<uint32_t>(std::max(top, 0));
  return event;
}

}  // namespace fastdecode::stub
