#include "engine/request/request_desk.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr uint64_t kSleepNsMax = 50'000'000;
constexpr int kEventsPerTurnMax = 1024;
constexpr size_t kStaleIdsMax = 1024;
constexpr int64_t kWaitNsMax = INT64_MAX / 4;  // 73 years: the clock and a longer wait would be more than an int64

// Waits for `ready()` under `lock`; false after timeout_ns (< 0: for ever).
template <class Ready>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, int64_t timeout_ns, Ready&& ready) {
  if (timeout_ns < 0) {
    changed.wait(lock, ready);
    return true;
  }
  return changed.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kWaitNsMax)), ready);
}

}  // namespace

RequestDesk::RequestDesk(Pipeline* pipeline, ParkWord* own_word, size_t queue_max, HomeKeeper* keeper,
                         const EventWriter& record)
    : pipeline_(pipeline), own_parker_(own_word), queue_max_(queue_max), keeper_(keeper), record_(record) {}

RequestDesk::~RequestDesk() { Stop(); }

void RequestDesk::Start() {
  thread_ = std::make_unique<PinnedThread>("fd-desk", -1, [this] { Run(); });
}

void RequestDesk::Stop() {
  if (thread_ == nullptr) return;
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    for (auto& [id, request] : requests_) request->sequence.cancelled.store(true, std::memory_order_release);
    pipeline_->NoteCancel();
    pipeline_->Wake();
    any_changed_.wait(lock, [this] { return lent_ == 0 && commands_.empty(); });
  }
  pipeline_->Stop();
  // Release: Run's acquire load comes after everything above.
  stop_.store(true, std::memory_order_release);
  own_parker_.RingAfterRelease();
  thread_.reset();
}

absl::Status RequestDesk::Submit(std::unique_ptr<Request> request, uint64_t* id) {
  {
    std::lock_guard lock(mutex_);
    if (draining_) return absl::UnavailableError("the engine is draining and takes no more requests");
    if (running_ >= queue_max_) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("the queue is full: %d requests are waiting or running (--max-queue)", running_));
    }
    Lend(std::move(request));
    *id = next_id_++;
  }
  commands_seen_.fetch_add(1, std::memory_order_release);
  own_parker_.RingAfterRelease();
  return absl::OkStatus();
}

// As request next_id_. Where memory runs out nothing is changed. REQUIRES: the mutex is held.
void RequestDesk::Lend(std::unique_ptr<Request> request) {
  request->sequence.id = next_id_;
  request->sequence.owner = request.get();
  request->in_pipeline = true;
  PipelineCommand command;
  command.sequence = &request->sequence;
  const auto taken = requests_.emplace(next_id_, std::move(request)).first;
  try {
    commands_.push_back(command);
  } catch (const std::bad_alloc&) {
    requests_.erase(taken);
    throw;
  }
  ++running_;
  ++lent_;
}

void RequestDesk::Command(const PipelineCommand& command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(command);
  }
  commands_seen_.fetch_add(1, std::memory_order_release);
  own_parker_.RingAfterRelease();
}

void RequestDesk::Cancel(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    found->second->sequence.cancelled.store(true, std::memory_order_release);
  }
  pipeline_->NoteCancel();
}

RequestDesk::NextResult RequestDesk::Next(uint64_t id, RequestEvent* out, int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->forgotten) return NextResult::kUnknown;
  Request& request = *found->second;
  const auto over = [&] { return request.forgotten || (request.ended && request.events.empty()); };
  ++request.waiters;
  WaitFor(request.changed, lock, timeout_ns, [&] { return !request.events.empty() || over(); });
  --request.waiters;
  NextResult result = over() ? NextResult::kUnknown : NextResult::kTimeout;
  if (!request.events.empty()) {
    result = NextResult::kEvent;
    *out = std::move(request.events.front());
    request.events.pop_front();
  }
  EraseIfDone(id);
  return result;
}

bool RequestDesk::WaitAny(uint64_t* id, int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] {
    while (!with_events_.empty()) {
      const auto found = requests_.find(with_events_.front());
      if (found != requests_.end() && !found->second->events.empty()) return true;
      if (found != requests_.end()) found->second->listed = false;
      with_events_.pop_front();
    }
    return false;
  };
  if (!WaitFor(any_changed_, lock, timeout_ns, ready)) return false;
  // To the back: it stays listed until found without events, and the others come first.
  *id = with_events_.front();
  with_events_.pop_front();
  with_events_.push_back(*id);
  return true;
}

void RequestDesk::Forget(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  request.forgotten = true;
  request.events.clear();
  request.changed.notify_all();
  request.sequence.cancelled.store(true, std::memory_order_release);
  pipeline_->NoteCancel();
  if (request.sequence.prompt_logits != nullptr) {
    ++request.waiters;
    request.changed.wait(lock, [&] { return !request.in_pipeline; });
    --request.waiters;
  }
  EraseIfDone(id);
}

void RequestDesk::Drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  any_changed_.wait(lock, [this] { return running_ == 0; });
}

size_t RequestDesk::running() const {
  std::lock_guard lock(mutex_);
  return running_;
}

// A request goes when the pipeline is done with its sequence and its callers with its events.
void RequestDesk::EraseIfDone(uint64_t id) {
  const auto found = requests_.find(id);
  const Request& request = *found->second;
  if (request.in_pipeline || request.waiters > 0) return;
  if (!request.forgotten && !(request.ended && request.events.empty())) return;
  requests_.erase(found);
  // Ids of erased requests go when WaitAny meets them. Who never calls it must not gather them for ever.
  if (with_events_.size() <= 2 * requests_.size() + kStaleIdsMax) return;
  std::erase_if(with_events_, [this](uint64_t listed) { return requests_.count(listed) == 0; });
}

// ---- the desk thread

void RequestDesk::Run() {
  while (!stop_.load(std::memory_order_acquire)) {
    const bool forwarded = ForwardCommands();
    const bool handled = HandleEvents();
    if (forwarded || handled) continue;
    own_parker_.Arm();
    // Between Arm and Sleep: commands were counted, events queued, or the stop flag set before their ringer's look.
    const bool waiting = commands_seen_.load(std::memory_order_acquire) != commands_forwarded_;
    if (waiting || pipeline_->HasEvents() || stop_.load(std::memory_order_acquire)) {
      own_parker_.Disarm();
    } else {
      own_parker_.Sleep(kSleepNsMax);
    }
  }
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
    any_changed_.notify_all();
  }
  return moved;
}

bool RequestDesk::HandleEvents() {
  PipelineEvent event;
  int handled = 0;
  while (handled < kEventsPerTurnMax && pipeline_->TryEvent(&event)) {
    ++handled;
    if (event.kind == PipelineEvent::Kind::kHomeLost) {
      keeper_->OnHomeDrained(event.home, pipeline_->statistics().home_posts[event.home].value());
      continue;
    }
    Request& request = *static_cast<Request*>(event.sequence->owner);
    if (event.kind == PipelineEvent::Kind::kToken) {
      OnToken(request, event);
    } else {
      OnFinished(request, event);
    }
  }
  return handled > 0;
}

void RequestDesk::OnToken(Request& request, const PipelineEvent& event) {
  const Sequence& sequence = request.sequence;
  const uint32_t index = event.token_index - sequence.prompt_tokens;
  RequestEvent out;
  out.token = sequence.tokens[event.token_index];
  out.token_index = index;
  out.logprob = sequence.logprobs[index];
  const size_t top = static_cast<size_t>(std::max(sequence.sampling.logprobs, 0));
  out.top_logprobs.assign(sequence.top_logprobs.begin() + index * top,
                          sequence.top_logprobs.begin() + (index + 1) * top);
  out.submit_ns = request.submit_ns;
  out.time_ns = event.time_ns;
  if (request.detokenizer) out.text = request.detokenizer->Push(out.token);
  bool stopped = false;
  if (request.stops && index >= sequence.min_tokens) {
    out.text = request.stops->Feed(out.text);
    stopped = request.stops->match().has_value();
  }
  std::lock_guard lock(mutex_);
  if (request.ended) return;
  ++request.announced;
  Push(request, std::move(out));
  if (record_.on()) RecordDelivery(request.sequence.id, index, event.time_ns);
  if (!stopped) return;
  // Found here, a step or more behind the pipeline: the sequence leaves at its next boundary, the caller is done now.
  request.sequence.stopped.store(true, std::memory_order_relaxed);
  request.sequence.cancelled.store(true, std::memory_order_release);
  pipeline_->NoteCancel();
  End(request, RequestFinish::kStop, "", "", event.time_ns);
}

// Of what the pipeline does not change.
void RequestDesk::RecordSubmission(const PipelineCommand& command) {
  if (command.kind != PipelineCommand::Kind::kAdd) return;
  RecordEvent event = {};
  event.kind = kRecordSubmit;
  event.start_ns = command.sequence->submit_ns;
  event.end_ns = NowNs();
  event.id = command.sequence->id;
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

void RequestDesk::OnFinished(Request& request, const PipelineEvent& event) {
  RequestFinish finish = RequestFinish::kError;
  if (event.reason == FinishReason::kStopToken) finish = RequestFinish::kStop;
  if (event.reason == FinishReason::kLength) finish = RequestFinish::kLength;
  if (event.reason == FinishReason::kCancelled) finish = RequestFinish::kCancelled;
  std::string error = DescribeFailure(event);
  std::string rest = LastText(request);
  std::lock_guard lock(mutex_);
  request.in_pipeline = false;
  --lent_;
  if (!request.ended) End(request, finish, std::move(error), std::move(rest), event.time_ns);
  request.changed.notify_all();  // for Forget: End says nothing of forgotten ones
  any_changed_.notify_all();
  EraseIfDone(request.sequence.id);
}

// Empty if it is none.
std::string RequestDesk::DescribeFailure(const PipelineEvent& event) {
  switch (event.reason) {
    case FinishReason::kHomeLost:
      return event.home >= 0 ? keeper_->DescribeLoss(event.home) : keeper_->DescribeNoRoom(event.sequence->length_max);
    case FinishReason::kBadRow:
      return keeper_->Name(event.home) +
             " could not compute this request's attention: what it has of the sequence, or room for, is not what this "
             "engine counts";
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

// What was held back: half a character, and before it what may have been the start of a stop string.
std::string RequestDesk::LastText(Request& request) {
  std::string text;
  if (request.detokenizer) text = request.detokenizer->Finish();
  if (!request.stops) return text;
  if (request.announced > request.sequence.min_tokens) text = request.stops->Feed(text);
  return text + request.stops->Finish();
}

// The caller's last event. REQUIRES: the mutex is held.
void RequestDesk::End(Request& request, RequestFinish finish, std::string error, std::string text, uint64_t time_ns) {
  RequestEvent out;
  out.finished = true;
  out.finish = finish;
  out.error = std::move(error);
  out.text = std::move(text);
  out.prompt_tokens = request.sequence.prompt_tokens;
  out.generated_tokens = request.announced;
  out.submit_ns = request.submit_ns;
  out.time_ns = time_ns;
  Push(request, std::move(out));
  request.ended = true;
  --running_;
}

void RequestDesk::Push(Request& request, RequestEvent event) {
  if (request.forgotten) return;
  request.events.push_back(std::move(event));
  if (!request.listed) with_events_.push_back(request.sequence.id);
  request.listed = true;
  request.changed.notify_all();
  any_changed_.notify_all();
}

}  // namespace fastdecode
