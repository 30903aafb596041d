// What callers do with requests, and the events that wait for them. All of it under the desk's mutex.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "absl/strings/str_format.h"
#include "engine/request/request_desk.h"

namespace fastdecode {

namespace {

constexpr size_t kPolledMax = 4096;            // events at once, whatever the caller has room for
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

// The last event with a token of the same answer, which the next token may be added to; null: there is none, or the
// answer has paused since. Answers take turns, so that it is one of the last few.
RequestEvent* LastToken(Request& request, const RequestEvent& next) {
  if (next.kind != RequestEvent::Kind::kToken) return nullptr;
  std::deque<RequestEvent>& events = request.events;
  for (size_t back = 1; back <= std::min(events.size(), 2 * request.answers.size()); ++back) {
    RequestEvent& event = events[events.size() - back];
    if (event.answer != next.answer) continue;
    if (event.kind == RequestEvent::Kind::kPaused) return nullptr;
    if (event.kind == RequestEvent::Kind::kToken) return &event;
  }
  return nullptr;
}

bool AllTaken(const Request& request) { return request.ended == request.answers.size() && request.events.empty(); }

}  // namespace

// ---- Callers

absl::Status RequestDesk::Submit(std::unique_ptr<Request> request, uint64_t* id) {
  {
    std::lock_guard lock(mutex_);
    if (counts_.draining) return absl::UnavailableError("the engine is draining and takes no more requests");
    if (running_answers_ + request->answers.size() > queue_max_) {
      ++counts_.refused;
      return absl::ResourceExhaustedError(
          absl::StrFormat("the queue is full: %d requests are waiting or running (--max-queue)", running_answers_));
    }
    Lend(std::move(request));
    *id = next_id_++;
  }
  commands_seen_.fetch_add(1, std::memory_order_release);
  own_parker_.RingAfterRelease();
  return absl::OkStatus();
}

// The request gets the number next_id_. Where memory runs out nothing is changed.
void RequestDesk::Lend(std::unique_ptr<Request> given) {
  Request& request = *given;
  request.id = next_id_;
  request.lent = request.answers.size();
  for (size_t i = 0; i < request.answers.size(); ++i) {
    Sequence& sequence = request.answers[i]->sequence;
    sequence.id = next_sequence_id_ + i;
    sequence.request = request.id;
    sequence.owner = request.answers[i].get();
    if (i > 0) request.answers[i - 1]->sequence.next_follower = &sequence;
  }
  PipelineCommand command;
  command.sequence = &request.first();
  const std::pair<uint64_t, uint64_t> deadline = {request.deadline_ns, next_id_};
  const auto held = requests_.emplace(next_id_, std::move(given)).first;
  try {
    if (request.deadline_ns != UINT64_MAX) deadlines_.insert(deadline);
    commands_.push_back(command);
  } catch (const std::bad_alloc&) {
    deadlines_.erase(deadline);
    requests_.erase(held);
    throw;
  }
  if (!deadlines_.empty()) first_deadline_.store(deadlines_.begin()->first, std::memory_order_relaxed);
  ++counts_.submitted;
  ++counts_.running;
  running_answers_ += request.lent;
  counts_.prompt_tokens += request.first().prompt_tokens;
  lent_ += request.lent;
  next_sequence_id_ += request.lent;
}

void RequestDesk::Cancel(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    found->second->CancelSequences();
  }
  pipeline_->NoteCancel();
}

RequestDesk::NextResult RequestDesk::Next(uint64_t id, TakenEvent* out, int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->forgotten) return NextResult::kUnknown;
  Request& request = *found->second;
  const auto over = [&] { return request.forgotten || AllTaken(request); };
  ++request.waiters;
  WaitFor(request.changed, lock, timeout_ns, [&] { return !request.events.empty() || over(); });
  --request.waiters;
  NextResult result = NextResult::kTimeout;
  if (!request.events.empty()) {
    TakeFront(request, &request.taken);
    *out = {request.shared_from_this(), &request.taken};
    SignalEvents();
    result = NextResult::kEvent;
  } else if (over()) {
    request.released = true;
    result = NextResult::kUnknown;
  }
  EraseIfDone(id);
  return result;
}

void RequestDesk::Poll(size_t capacity, int64_t timeout_ns, std::vector<TakenEvent>* out) {
  capacity = std::min(capacity, kPolledMax);
  out->clear();  // the last hold on requests that have ended: not under the mutex
  out->reserve(capacity);
  std::unique_lock lock(mutex_);
  polled_.clear();
  polled_.reserve(capacity);
  ++any_waiters_;
  WaitFor(any_changed_, lock, timeout_ns, [this] { return !with_events_.empty(); });
  --any_waiters_;
  while (out->size() < capacity && !with_events_.empty()) {
    Request& request = *with_events_.front();
    TakeFront(request, &polled_.emplace_back());
    out->push_back({request.shared_from_this(), &polled_.back()});
    if (request.place.listed) with_events_.splice(with_events_.end(), with_events_, request.place.at);
    if (!AllTaken(request)) continue;
    request.released = true;
    EraseIfDone(request.id);
  }
  SignalEvents();
}

int RequestDesk::EventFd() {
  std::lock_guard lock(mutex_);
  if (event_fd_ < 0) {
    event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd_ >= 0) SignalEvents();
  }
  return event_fd_;
}

void RequestDesk::Forget(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  request.forgotten = true;
  request.events.clear();
  Unlist(request);
  SignalEvents();
  request.changed.notify_all();
  request.CancelSequences();
  pipeline_->NoteCancel();
  if (request.first().prompt_logits != nullptr) {
    ++request.waiters;
    request.changed.wait(lock, [&] { return request.lent == 0; });
    --request.waiters;
  }
  EraseIfDone(id);
}

size_t RequestDesk::Drain(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  counts_.draining = true;
  WaitFor(fewer_, lock, timeout_ns, [this] { return counts_.running == 0; });
  return counts_.running;
}

DeskStatistics RequestDesk::statistics() const {
  std::lock_guard lock(mutex_);
  DeskStatistics counts = counts_;
  counts.undelivered = with_events_.size();
  counts.running_answers = running_answers_;
  return counts;
}

// ---- Events

void RequestDesk::Push(Request& request, RequestEvent event) {
  if (request.forgotten) return;
  RequestEvent* const last = request.events.size() < Request::kUndeliveredMax ? nullptr : LastToken(request, event);
  if (last != nullptr) {
    last->token_count += event.token_count;
    last->text.Append(event.text);
    last->time_ns = event.time_ns;
  } else {
    request.events.push_back(std::move(event));
  }
  List(request);
  if (request.waiters > 0) request.changed.notify_all();
}

// A caller who is so far behind has nothing of it.
void RequestDesk::PushPause(Request& request, RequestEvent event) {
  if (request.events.size() < Request::kUndeliveredMax) Push(request, std::move(event));
}

// An answer's last event. The last one of all is the request's, which counts once, as that one ended.
void RequestDesk::End(RequestAnswer& answer, RequestEnd end, RequestText text, uint64_t time_ns) {
  Request& request = *answer.request;
  --running_answers_;
  if (++request.ended == request.answers.size()) {
    --counts_.running;
    ++counts_.finished[static_cast<size_t>(end.finish)];
    deadlines_.erase({request.deadline_ns, request.id});
    first_deadline_.store(deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first, std::memory_order_relaxed);
  }
  answer.end = std::move(end);
  RequestEvent last;
  last.kind = RequestEvent::Kind::kFinished;
  last.answer = answer.index;
  last.text = std::move(text);
  // The desk looks at its clock once a turn, and a request may come and end within one.
  last.time_ns = std::max(time_ns, request.submit_ns);
  Push(request, std::move(last));
  fewer_.notify_all();
}

void RequestDesk::TakeFront(Request& request, RequestEvent* out) {
  *out = std::move(request.events.front());
  request.events.pop_front();
  if (request.events.empty()) Unlist(request);
}

void RequestDesk::List(Request& request) {
  if (request.place.listed) return;
  with_events_.splice(with_events_.end(), request.place.own);
  request.place.listed = true;
}

void RequestDesk::Unlist(Request& request) {
  if (!request.place.listed) return;
  request.place.own.splice(request.place.own.begin(), with_events_, request.place.at);
  request.place.listed = false;
}

// After events came or were taken, once for all of them: wakes who waits for any, and makes the descriptor say what the
// list does.
void RequestDesk::SignalEvents() {
  const bool some = !with_events_.empty();
  if (some && any_waiters_ > 0) any_changed_.notify_all();
  if (event_fd_ < 0 || some == signalled_) return;
  uint64_t count = 1;
  // It fails only where a caller has read, or closed, what is not theirs; the list is right all the same.
  [[maybe_unused]] const ssize_t moved =
      some ? write(event_fd_, &count, sizeof(count)) : read(event_fd_, &count, sizeof(count));
  signalled_ = some;
}

// A request goes when the pipeline is done with its sequences and its callers with its events.
void RequestDesk::EraseIfDone(uint64_t id) {
  const auto found = requests_.find(id);
  Request& request = *found->second;
  if (request.lent > 0 || request.waiters > 0 || !(request.forgotten || request.released)) return;
  Unlist(request);
  requests_.erase(found);
}

}  // namespace fastdecode
