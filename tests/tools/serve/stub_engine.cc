#include "tests/tools/serve/stub_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
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
  if (request.n > options_.max_choices) {
    throw StubFailure{FD_INVALID_ARGUMENT, absl::StrFormat("n: %d is more than %d", request.n, options_.max_choices)};
  }
  const uint32_t room = options_.max_context - static_cast<uint32_t>(prompt.size());
  std::vector<std::unique_ptr<StubSequence>> choices;
  for (fd_request one = request; choices.size() < request.n; ++one.seed) {
    choices.push_back(std::make_unique<StubSequence>(&tokenizer_, one, prompt, std::min(request.max_tokens, room),
                                                     options_.pause_ns, SteadyNs()));
  }
  const std::lock_guard lock(mutex_);
  if (draining_) throw StubFailure{FD_UNAVAILABLE, "the engine is stopping"};
  if (waiting_ + running_ + choices.size() > options_.max_queue) {
    ++counts_.requests_refused;
    throw StubFailure{FD_RESOURCE_EXHAUSTED,
                      absl::StrFormat("the queue is full: %d requests are waiting or running", waiting_ + running_)};
  }
  const uint64_t id = next_id_++;
  waiting_ += choices.size();
  open_[id] = request.n;
  ++counts_.requests_submitted;
  counts_.prompt_tokens += prompt.size();
  for (uint32_t choice = 0; choice < request.n; ++choice) {
    choices[choice]->request = id;
    choices[choice]->choice = choice;
    sequences_.emplace(next_key_++, std::move(choices[choice]));
  }
  play_.notify_one();
  return id;
}

void StubEngine::CancelAll(uint64_t id) {
  for (auto& [key, sequence] : sequences_) {
    if (sequence->request != id || sequence->state() == StubSequence::State::kEnded) continue;
    sequence->cancel_at_ns = std::min(sequence->cancel_at_ns, SteadyNs() + sequence->deaf_ns());
  }
  play_.notify_one();
}

void StubEngine::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (open_.count(id) > 0) CancelAll(id);
}

void StubEngine::Forget(uint64_t id) {
  const std::lock_guard lock(mutex_);
  for (auto at = sequences_.begin(); at != sequences_.end();) {
    const auto here = at++;
    StubSequence& sequence = *here->second;
    if (sequence.request != id) continue;
    sequence.forgotten = true;
    if (sequence.events() > 0) {
      sequence.DropEvents();
      ready_.erase(std::find(ready_.begin(), ready_.end(), here->first));
      UpdateEventFd();
    }
    if (sequence.state() == StubSequence::State::kEnded) sequences_.erase(here);
  }
  CancelAll(id);
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
    const uint64_t key = ready_.front();
    ready_.pop_front();
    const auto at = sequences_.find(key);
    polled_.push_back(at->second->TakeEvent());
    if (at->second->events() > 0) {
      ready_.push_back(key);
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
  WaitFor(lock, changed_, timeout_ns, [this] { return open_.empty(); });
  return open_.size();
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
        if (sequence.choice == 0) {
          counts_.prefix_tokens += sequence.prefix_tokens();
          counts_.cached_tokens += sequence.cached_tokens();
        }
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
    const auto open = open_.find(sequence.request);
    if (--open->second == 0) {
      ++finished_[static_cast<size_t>(sequence.finish())];
      open_.erase(open);
    }
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
  std::set<uint64_t> running, undelivered;
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->state() == StubSequence::State::kRunning) running.insert(sequence->request);
    if (sequence->events() > 0) undelivered.insert(sequence->request);
  }
  stats.requests_waiting = open_.size() - running.size();
  stats.requests_running = running.size();
  stats.requests_undelivered = undelivered.size();
  stats.choices_waiting = waiting_;
  stats.choices_running = running_;
  stats.finished_stop = finished_[FD_FINISH_STOP];
  stats.finished_length = finished_[FD_FINISH_LENGTH];
  stats.finished_cancelled = finished_[FD_FINISH_CANCELLED];
  stats.finished_error = finished_[FD_FINISH_ERROR];
  stats.finished_deadline = finished_[FD_FINISH_DEADLINE];
  stats.kv_pages = kHomePages * options_.homes_up;
  for (const auto& [key, sequence] : sequences_) {
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
  out->cached_tokens = index == 0 ? counts_.cached_tokens : 0;
  for (const auto& [key, sequence] : sequences_) {
    if (sequence->state() == StubSequence::State::kRunning && key % 2 == index) {
      out->kv_pages_used += (sequence->length() + kPageTokens - 1) / kPageTokens;
    }
  }
  return true;
}

}  // namespace fastdecode::stub
