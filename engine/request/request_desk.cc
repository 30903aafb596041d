#include "engine/request/request_desk.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr uint64_t kSleepNsMax = 50'000'000;
constexpr size_t kEventsPerTurnMax = 1024;

}  // namespace

RequestDesk::RequestDesk(Pipeline* pipeline, ParkWord* own_word, size_t queue_max, HomeKeeper* keeper,
                         const EventWriter& record)
    : pipeline_(pipeline), own_parker_(own_word), queue_max_(queue_max), keeper_(keeper), record_(record) {
  deliveries_.reserve(kEventsPerTurnMax);
}

RequestDesk::~RequestDesk() {
  Stop();
  if (event_fd_ >= 0) close(event_fd_);
}

void RequestDesk::Start() {
  thread_ = std::make_unique<PinnedThread>("fd-desk", -1, [this] { Run(); });
}

void RequestDesk::Stop() {
  if (thread_ == nullptr) return;
  {
    std::unique_lock lock(mutex_);
    counts_.draining = true;
    for (auto& [id, request] : requests_) request->CancelSequences();
    pipeline_->NoteCancel();
    pipeline_->Wake();
    fewer_.wait(lock, [this] { return lent_ == 0 && commands_.empty(); });
  }
  pipeline_->Stop();
  // Release: Run's acquire load comes after everything above.
  stop_.store(true, std::memory_order_release);
  own_parker_.RingAfterRelease();
  thread_.reset();
}

void RequestDesk::Command(const PipelineCommand& command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(command);
  }
  commands_seen_.fetch_add(1, std::memory_order_release);
  own_parker_.RingAfterRelease();
}

void RequestDesk::Run() {
  while (!stop_.load(std::memory_order_acquire)) {
    const bool forwarded = ForwardCommands();
    const bool handled = HandleEvents();
    const bool ended = EndOverdue();
    if (forwarded || handled || ended) continue;
    own_parker_.Arm();
    // Between Arm and Sleep: commands were counted, events queued, or the stop flag set before their ringer's look.
    const bool waiting = commands_seen_.load(std::memory_order_acquire) != commands_forwarded_;
    if (waiting || pipeline_->HasEvents() || stop_.load(std::memory_order_acquire)) {
      own_parker_.Disarm();
    } else {
      own_parker_.Sleep(SleepNs());
    }
  }
}

uint64_t RequestDesk::SleepNs() const {
  const uint64_t deadline_ns = first_deadline_.load(std::memory_order_relaxed);
  if (deadline_ns == UINT64_MAX) return kSleepNsMax;
  const uint64_t now_ns = NowNs();
  return deadline_ns <= now_ns ? 1 : std::min(kSleepNsMax, deadline_ns - now_ns);
}

bool RequestDesk::ForwardCommands() {
  const uint64_t seen = commands_seen_.load(std::memory_order_acquire);
  if (seen == commands_forwarded_) return false;
  bool moved = false;
  bool all = true;
  {
    std::lock_guard lock(mutex_);
    while (!commands_.empty()) {
      if (!pipeline_->TryCommand(commands_.front())) {
        all = false;  // tried again on the next turn
        break;
      }
      if (record_.on()) RecordSubmission(commands_.front());
      commands_.pop_front();
      moved = true;
    }
  }
  if (all) commands_forwarded_ = seen;
  if (moved) {
    pipeline_->Wake();
    fewer_.notify_all();
  }
  return moved;
}

// What the pipeline has said meanwhile is turned into callers' events first, and then handed out under one lock.
bool RequestDesk::HandleEvents() {
  PipelineEvent event;
  size_t handled = 0;
  deliveries_.clear();
  while (handled < kEventsPerTurnMax && pipeline_->TryEvent(&event)) {
    ++handled;
    if (event.kind == PipelineEvent::Kind::kHomeDrains) {
      keeper_->OnHomeDraining(event.home);
      continue;
    }
    if (event.kind == PipelineEvent::Kind::kHomeLost) {
      keeper_->OnHomeLost(event.home, pipeline_->statistics().home_posts[event.home].value(), event.sequences);
      continue;
    }
    RequestAnswer& answer = *static_cast<RequestAnswer*>(event.sequence->owner);
    Delivery& delivery = deliveries_.emplace_back();
    delivery.answer = &answer;
    delivery.id = answer.request->id;
    delivery.time_ns = event.time_ns;
    if (event.kind == PipelineEvent::Kind::kToken) {
      MakeToken(answer, event, &delivery);
    } else if (event.kind == PipelineEvent::Kind::kFinished) {
      MakeEnd(answer, event, &delivery);
    } else if (!answer.over) {
      delivery.lost_home = event.home;
    }
  }
  if (deliveries_.empty()) return handled > 0;
  {
    std::lock_guard lock(mutex_);
    for (Delivery& delivery : deliveries_) Deliver(&delivery);
    SignalEvents();
  }
  if (!record_.on()) return true;
  for (const Delivery& delivery : deliveries_) {
    if (delivery.token) RecordDelivery(delivery.id, *delivery.token, delivery.time_ns);
  }
  return true;
}

// REQUIRES: the pipeline has computed all of the prompt.
void RequestDesk::MakePrompt(Request& request, Delivery* out) {
  out->prompt = !request.prompt_told && !request.first().log.prompt_logprobs.empty();
  request.prompt_told = true;
}

void RequestDesk::MakeToken(RequestAnswer& answer, const PipelineEvent& event, Delivery* out) {
  if (answer.over) return;
  MakePrompt(*answer.request, out);
  const Sequence& sequence = answer.sequence;
  const uint32_t index = event.token_index - sequence.prompt_tokens;
  ++answer.announced;
  out->token = index;
  if (answer.stops && index == sequence.sampling.min_tokens) answer.unmatched_bytes = answer.detokenizer->Held().size();
  std::string text;
  if (answer.detokenizer) text = MakeText(answer, sequence.log.tokens[event.token_index]);
  const bool matches = answer.stops && index >= sequence.sampling.min_tokens;
  out->text = Tell(answer, matches ? MatchStops(answer, text) : std::move(text));
  if (!matches) return;
  // A run of byte tokens is held back, since it is text only as a whole. If a stop string ends in it, so does the
  // answer.
  const std::string held = answer.detokenizer->Held();
  if (held.size() > answer.unmatched_bytes &&
      answer.stops->WouldMatch(std::string_view(held).substr(answer.unmatched_bytes))) {
    out->text.Append(Tell(answer, MatchStops(answer, EndText(answer))));
  }
  if (!answer.stops->match().has_value()) return;
  // Found here, a step or more behind the pipeline: the sequence leaves at its next boundary, the caller is done now.
  answer.sequence.stopped.store(true, std::memory_order_relaxed);
  answer.over = true;
  out->end.emplace();
  out->end->finish = RequestFinish::kStop;
  out->end->stop_index = static_cast<int32_t>(answer.stops->match()->stop_index);
  out->end->generated_tokens = answer.announced;
  out->end->TakeTimes(sequence.times_so_far.Load());
  answer.sequence.cancelled.store(true, std::memory_order_release);
  pipeline_->NoteCancel();
}

void RequestDesk::MakeEnd(RequestAnswer& answer, const PipelineEvent& event, Delivery* out) {
  out->given_back = true;
  if (answer.over) return;
  answer.over = true;
  RequestEnd& end = out->end.emplace();
  end.finish = RequestFinish::kError;
  if (event.reason == FinishReason::kStopToken) end.finish = RequestFinish::kStop;
  if (event.reason == FinishReason::kLength) end.finish = RequestFinish::kLength;
  if (event.reason == FinishReason::kCancelled) {
    end.finish = answer.request->overdue ? RequestFinish::kDeadline : RequestFinish::kCancelled;
  }
  if (end.finish == RequestFinish::kStop) end.stop_token = answer.sequence.stop_token;
  if (end.finish == RequestFinish::kStop || end.finish == RequestFinish::kLength) MakePrompt(*answer.request, out);
  end.error = DescribeFailure(event);
  end.generated_tokens = answer.announced;
  end.TakeTimes(answer.sequence.times);
  out->last_text = LastText(answer);
  const bool ended = end.finish == RequestFinish::kStop || end.finish == RequestFinish::kLength;
  if (!ended || !answer.stops || !answer.stops->match().has_value()) return;
  end.finish = RequestFinish::kStop;  // half a character, which ends as U+FFFD, has completed a stop string
  end.stop_index = static_cast<int32_t>(answer.stops->match()->stop_index);
  end.stop_token = RequestEnd().stop_token;
}

// REQUIRES: the mutex is held.
void RequestDesk::Deliver(Delivery* delivery) {
  RequestAnswer& answer = *delivery->answer;
  Request& request = *answer.request;
  if (delivery->prompt) {
    RequestEvent event;
    event.kind = RequestEvent::Kind::kPrompt;
    event.time_ns = delivery->time_ns;
    Push(request, std::move(event));
  }
  if (delivery->token) {
    ++counts_.generated_tokens;
    RequestEvent event;
    event.answer = answer.index;
    event.token_index = *delivery->token;
    event.token_count = 1;
    event.text = std::move(delivery->text);
    event.time_ns = delivery->time_ns;
    Push(request, std::move(event));
  }
  if (delivery->lost_home >= 0) {
    RequestEvent event;
    event.kind = RequestEvent::Kind::kPaused;
    event.answer = answer.index;
    event.home = delivery->lost_home;
    event.time_ns = delivery->time_ns;
    PushPause(request, std::move(event));
  }
  if (delivery->end) End(answer, *std::move(delivery->end), std::move(delivery->last_text), delivery->time_ns);
  if (!delivery->given_back) return;
  --request.lent;
  --lent_;
  if (request.waiters > 0) request.changed.notify_all();
  fewer_.notify_all();
  EraseIfDone(delivery->id);
}

// Whose time is over has what was generated until then.
bool RequestDesk::EndOverdue() {
  const uint64_t first_ns = first_deadline_.load(std::memory_order_relaxed);
  if (first_ns == UINT64_MAX) return false;
  const uint64_t now_ns = NowNs();
  if (now_ns < first_ns) return false;
  {
    std::lock_guard lock(mutex_);
    while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
      Request& request = *requests_.find(deadlines_.begin()->second)->second;
      request.CancelSequences();
      if (request.first().prompt_logits != nullptr) {  // FINISHED says that nothing is written there any more
        request.overdue = true;
        deadlines_.erase(deadlines_.begin());
        continue;
      }
      EndOverdue(request, now_ns);
    }
    first_deadline_.store(deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first, std::memory_order_relaxed);
    SignalEvents();
  }
  pipeline_->NoteCancel();
  return true;
}

// REQUIRES: the mutex is held.
void RequestDesk::EndOverdue(Request& request, uint64_t now_ns) {
  for (const auto& answer : request.answers) {
    if (answer->over) continue;
    answer->over = true;
    RequestEnd end;
    end.finish = RequestFinish::kDeadline;
    end.generated_tokens = answer->announced;
    // Until its first token an answer has been where the one was that computes the prompt.
    const Sequence& sequence = answer->announced > 0 ? answer->sequence : request.first();
    end.TakeTimes(sequence.times_so_far.Load());
    if (end.times.queue_ns == 0) end.times.queue_ns = now_ns - request.submit_ns;  // it was in no step
    End(*answer, std::move(end), LastText(*answer), now_ns);
  }
}

// Reads only what the pipeline does not change.
void RequestDesk::RecordSubmission(const PipelineCommand& command) {
  if (command.kind != PipelineCommand::Kind::kAdd) return;
  RecordEvent event = {};
  event.kind = kRecordSubmit;
  event.start_ns = command.sequence->submit_ns;
  event.end_ns = NowNs();
  event.id = command.sequence->request;
  event.rows = command.sequence->prompt_tokens;
  event.home = -1;
  record_.Write(event);
}

void RequestDesk::RecordDelivery(uint64_t id, uint32_t index, uint64_t step_end_ns) {
  RecordEvent event = {};
  event.kind = kRecordDeliver;
  event.start_ns = step_end_ns;
  event.end_ns = NowNs();
  event.id = id;
  event.count = index;
  event.home = -1;
  record_.Write(event);
}

// Empty if it is none.
std::string RequestDesk::DescribeFailure(const PipelineEvent& event) {
  switch (event.reason) {
    case FinishReason::kNoHome:
      return keeper_->DescribeNoRoom(event.sequence->length_max);
    case FinishReason::kBadRow:
      return keeper_->Name(event.home) +
             " could not compute this request's attention: what it has of the sequence, or room for, is not what this "
             "engine counts";
    case FinishReason::kLosesHomes:
      return absl::StrFormat(
          "its home was lost %d times in a row without a token of this request in between, the last time %s; if it is "
          "the request that ends homes, their logs say how",
          Recovery::kLossesInVainMax, keeper_->Name(event.home));
    case FinishReason::kBadLogits:
      return "the model's output is not a number; is the checkpoint intact?";
    case FinishReason::kNoCandidate:
      return "no token can be sampled: each is banned, as stop tokens are before min_tokens, or has a logit of "
             "-infinity";
    case FinishReason::kSPartFailed:
      return "the S-Part failed: " + pipeline_->s_part_failure();
    case FinishReason::kStopToken:
    case FinishReason::kLength:
    case FinishReason::kCancelled:
      break;
  }
  return "";
}

// The text that becomes certain with a token. It is untold from then on.
std::string RequestDesk::MakeText(RequestAnswer& answer, int32_t token) {
  std::string text;
  std::vector<TextRange> special;
  answer.detokenizer->Push(token, &text, &special);
  for (const TextRange& range : special) {
    AddRange({answer.untold_bytes + range.begin, answer.untold_bytes + range.end}, &answer.untold_special);
  }
  answer.untold_bytes += text.size();
  return text;
}

// The same of what was held back, such as half a character, at the end.
std::string RequestDesk::EndText(RequestAnswer& answer) {
  std::string text = answer.detokenizer->Finish();
  answer.untold_bytes += text.size();
  return text;
}

// What was held back: half a character, and before it what may have been the start of a stop string.
RequestText RequestDesk::LastText(RequestAnswer& answer) {
  std::string text;
  if (answer.detokenizer) text = EndText(answer);
  if (!answer.stops) return Tell(answer, std::move(text));
  if (answer.announced > answer.sequence.sampling.min_tokens) text = MatchStops(answer, text);
  return Tell(answer, text + answer.stops->Finish());
}

// A text that goes out, with what of it special tokens wrote. It is the beginning of what is untold.
RequestText RequestDesk::Tell(RequestAnswer& answer, std::string text) {
  RequestText told = {std::move(text), {}};
  const size_t bytes = told.text.size();
  std::vector<TextRange> rest;
  for (const TextRange& range : answer.untold_special) {
    if (range.begin < bytes) AddRange({range.begin, std::min(range.end, bytes)}, &told.special);
    if (range.end > bytes) AddRange({std::max(range.begin, bytes) - bytes, range.end - bytes}, &rest);
  }
  answer.untold_special = std::move(rest);
  answer.untold_bytes -= bytes;
  return told;
}

void RequestText::Append(const RequestText& next) {
  for (const TextRange& range : next.special) AddRange({text.size() + range.begin, text.size() + range.end}, &special);
  text += next.text;
}

// What may go out of a text. Text of tokens before min_tokens, which may come out later, is in no stop string.
std::string RequestDesk::MatchStops(RequestAnswer& answer, std::string_view text) {
  const size_t passed = std::min(answer.unmatched_bytes, text.size());
  answer.unmatched_bytes -= passed;
  return std::string(text.substr(0, passed)) + answer.stops->Feed(text.substr(passed));
}

}  // namespace fastdecode
