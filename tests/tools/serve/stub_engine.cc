#include "tests/tools/serve/stub_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"

namespace fastdecode::stub {

namespace {

constexpr size_t kPolledMax = 4096;
constexpr uint64_t kPageTokens = 16;
constexpr uint64_t kHomePages = 100'000;
constexpr const char* kHomeNames[] = {"local/0", "hostb:7471/1"};
// While sequences run, the engine is never longer without a step.
constexpr uint64_t kStepNs = 20'000'000;

uint64_t SteadyNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

std::chrono::steady_clock::time_point AtNs(uint64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(static_cast<int64_t>(ns)));
}

}  // namespace

StubEngine::StubEngine(Options options)
    : options_(std::move(options)), event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), created_ns_(SteadyNs()) {
  thread_ = std::thread([this] { Run(); });
}

StubEngine::~StubEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  play_.notify_all();
  thread_.join();
  close(event_fd_);
}

uint64_t StubEngine::Submit(const fd_request& request, std::vector<int32_t> prompt) {
  const uint32_t room = options_.max_context - static_cast<uint32_t>(prompt.size());
  auto sequence = std::make_unique<StubSequence>(&tokenizer_, request, std::move(prompt),
                                                 std::min(request.max_tokens, room), options_.pause_ns, SteadyNs());
  const std::lock_guard lock(mutex_);
  if (draining_) throw StubFailure{FD_UNAVAILABLE, "the engine is stopping"};
  if (waiting_ + running_ >= options_.max_queue) {
    ++counts_.requests_refused;
    throw StubFailure{FD_RESOURCE_EXHAUSTED,
                      absl::StrFormat("the queue is full: %d requests are waiting or running", waiting_ + running_)};
  }
  ++waiting_;
  ++counts_.requests_submitted;
  counts_.prompt_tokens += sequence->prompt_tokens();
  const uint64_t id = next_id_++;
  sequences_.emplace(id, std::move(sequence));
  play_.notify_one();
  return id;
}

void StubEngine::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || at->second->state() == StubSequence::State::kEnded) return;
  StubSequence& sequence = *at->second;
  sequence.cancel_at_ns = std::min(sequence.cancel_at_ns, SteadyNs() + sequence.deaf_ns());
  play_.notify_one();
}

void StubEngine::Forget(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return;
  StubSequence& sequence = *at->second;
  sequence.forgotten = true;
  if (sequence.events() > 0) {
    sequence.DropEvents();
    ready_.erase(std::find(ready_.begin(), ready_.end(), id));
    UpdateEventFd();
  }
  if (sequence.state() == StubSequence::State::kEnded) {
    sequences_.erase(at);
    return;
  }
  sequence.cancel_at_ns = std::min(sequence.cancel_at_ns, SteadyNs() + sequence.deaf_ns());
  play_.notify_one();
}

template <class Done>
void StubEngine::WaitFor(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, int64_t timeout_ns,
                         Done done) {
  if (timeout_ns < 0) {
    wake.wait(lock, done);
  } else if (timeout_ns > 0) {
    wake.wait_until(lock, AtNs(SteadyNs() + static_cast<uint64_t>(timeout_ns)), done);
  }
}

const std::vector<StubEvent>& StubEngine::Poll(size_t capacity, int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  polled_.clear();
  WaitFor(lock, changed_, timeout_ns, [this] { return !ready_.empty(); });
  while (polled_.size() < std::min(capacity, kPolledMax) && !ready_.empty()) {
    const uint64_t id = ready_.front();
    ready_.pop_front();
    const auto at = sequences_.find(id);
    polled_.push_back(at->second->TakeEvent());
    polled_.back().event.id = id;
    if (at->second->events() > 0) {
      ready_.push_back(id);
    } else if (at->second->state() == StubSequence::State::kEnded) {
      sequences_.erase(at);
    }
  }
  UpdateEventFd();
  return polled_;
}

size_t StubEngine::Drain(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  WaitFor(lock, changed_, timeout_ns, [this] { return waiting_ + running_ == 0; });
  return waiting_ + running_;
}

void StubEngine::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const uint64_t next_ns = Play(SteadyNs());
    if (next_ns == ~uint64_t{0}) {
      play_.wait(lock);
    } else if (next_ns > SteadyNs()) {
      play_.wait_until(lock, AtNs(next_ns));
    } else {  // others have their turn
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

uint64_t StubEngine::Play(uint64_t now_ns) {
  const bool hangs =
      std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& one) { return one.second->hangs(now_ns); });
  uint64_t next_ns = ~uint64_t{0};
  uint64_t rows = 0;
  for (auto at = sequences_.begin(); at != sequences_.end();) {
    const auto here = at++;
    StubSequence& sequence = *here->second;
    if (sequence.state() == StubSequence::State::kEnded) continue;
    const size_t events_before = sequence.events();
    EndIfDue(sequence, now_ns);
    if (sequence.state() == StubSequence::State::kWaiting && running_ < options_.max_sequences && !hangs) {
      if (sequence.ready_ns() <= now_ns) {
        sequence.Start(now_ns);
        --waiting_;
        ++running_;
      } else {
        next_ns = std::min(next_ns, sequence.ready_ns());
      }
    }
    if (sequence.state() == StubSequence::State::kRunning && (!hangs || sequence.hangs(now_ns))) {
      const uint32_t generated = sequence.generated_tokens();
      if (sequence.due_ns() <= now_ns) sequence.Advance(now_ns);
      rows += sequence.generated_tokens() - generated;
      next_ns = std::min(next_ns, sequence.due_ns());
    }
    if (sequence.state() != StubSequence::State::kEnded) {
      next_ns = std::min(next_ns, sequence.cancel_at_ns);
      if (sequence.deadline_ns() != 0) next_ns = std::min(next_ns, sequence.deadline_ns());
    }
    AfterChange(here, events_before);
  }
  counts_.rows += rows;
  counts_.generated_tokens += rows;
  if (running_ > 0 && !hangs && (rows > 0 || now_ns >= counts_.last_step_ns + kStepNs)) {
    ++counts_.steps;
    counts_.hops += 2;
    counts_.s_busy_ns += std::min<uint64_t>(1'000, now_ns - created_ns_);
    counts_.last_step_ns = now_ns;
  }
  if (running_ > 0 || hangs) next_ns = std::min(next_ns, now_ns + kStepNs);
  return next_ns;
}

void StubEngine::EndIfDue(StubSequence& sequence, uint64_t now_ns) {
  if (sequence.cancel_at_ns <= now_ns) {
    sequence.Finish(FD_FINISH_CANCELLED, now_ns);
  } else if (sequence.deadline_ns() != 0 && sequence.deadline_ns() <= now_ns) {
    sequence.Finish(FD_FINISH_DEADLINE, now_ns);
  }
}

void StubEngine::AfterChange(Sequences::iterator at, size_t events_before) {
  StubSequence& sequence = *at->second;
  if (sequence.state() == StubSequence::State::kEnded) {
    --(sequence.started() ? running_ : waiting_);
    ++finished_[static_cast<size_t>(sequence.finish())];
  }
  if (events_before == 0 && sequence.events() > 0) {
    ready_.push_back(at->first);
    UpdateEventFd();
  }
  if (sequence.events() > events_before || sequence.state() == StubSequence::State::kEnded) changed_.notify_all();
  if (sequence.state() == StubSequence::State::kEnded && sequence.forgotten) sequences_.erase(at);
}

void StubEngine::UpdateEventFd() {
  const bool wanted = !ready_.empty();
  if (wanted == fd_set_) return;
  uint64_t one = 1;
  const ssize_t done = wanted ? write(event_fd_, &one, sizeof(one)) : read(event_fd_, &one, sizeof(one));
  if (done == static_cast<ssize_t>(sizeof(one))) fd_set_ = wanted;
}

fd_stats StubEngine::Stats() const {
  const std::lock_guard lock(mutex_);
  fd_stats stats = counts_;
  stats.homes = 2;
  stats.homes_up = options_.homes_up;
  stats.draining = draining_ ? 1 : 0;
  stats.requests_waiting = waiting_;
  stats.requests_running = running_;
  stats.requests_undelivered = ready_.size();
  stats.finished_stop = finished_[FD_FINISH_STOP];
  stats.finished_length = finished_[FD_FINISH_LENGTH];
  stats.finished_cancelled = finished_[FD_FINISH_CANCELLED];
  stats.finished_error = finished_[FD_FINISH_ERROR];
  stats.finished_deadline = finished_[FD_FINISH_DEADLINE];
  stats.kv_pages = kHomePages * options_.homes_up;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state() == StubSequence::State::kRunning) {
      stats.kv_pages_used += (sequence->length() + kPageTokens - 1) / kPageTokens;
    }
  }
  stats.now_ns = SteadyNs();
  stats.created_ns = created_ns_;
  return stats;
}

bool StubEngine::Home(size_t index, fd_home_stats* out) const {
  if (index >= std::size(kHomeNames)) return false;
  const std::lock_guard lock(mutex_);
  *out = {};
  out->up = index < options_.homes_up ? 1 : 0;
  out->name = kHomeNames[index];
  out->hops = counts_.steps;
  out->work_ns = counts_.steps * 500;
  out->last_reply_ns = counts_.last_step_ns;
  out->kv_pages = out->up ? kHomePages : 0;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state() == StubSequence::State::kRunning && id % 2 == index) {
      out->kv_pages_used += (sequence->length() + kPageTokens - 1) / kPageTokens;
    }
  }
  return true;
}

}  // namespace fastdecode::stub
