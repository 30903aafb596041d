#include "numa/ticket_team.h"

#include <pmmintrin.h>
#include <xmmintrin.h>

#include <limits>

#include "numa/parker.h"

namespace fastdecode {

void SetFlushDenormals() {
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
}

TicketTeam::TicketTeam(int thread_count, PollMode mode)
    : thread_count_(thread_count),
      helper_count_(static_cast<uint64_t>(thread_count - 1)),
      mode_(mode),
      barrier_(thread_count, mode) {
  FD_CHECK(thread_count > 0, "a team has at least its owner");
}

// Once the other constructor is done, the destructor ends the helpers that there are, however this one ends.
TicketTeam::TicketTeam(const std::string& name, const std::vector<int>& cores, PollMode mode)
    : TicketTeam(static_cast<int>(cores.size()), mode) {
  helpers_.reserve(helper_count_);
  for (int i = 1; i < thread_count_; ++i) {
    helpers_.emplace_back(name + "-" + std::to_string(i), cores[i],
                          [this, i, core = cores[i]] { HelperLoop(i, core); });
    if (helpers_.back().pin_error() == 0) continue;
    ++unpinned_count_;
    pin_error_ = helpers_.back().pin_error();
  }
}

TicketTeam::~TicketTeam() {
  FD_CHECK(Done(), "a team is destroyed at work");
  Start(nullptr, nullptr);
  helpers_.clear();
}

void TicketTeam::HelperLoop(int thread_index, int core) {
  SetFlushDenormals();
  const CoreTurn turn(mode_ == PollMode::kTurns ? core : -1);
  for (uint64_t ticket = 0;;) {
    ticket = AwaitTicketAfter(ticket);
    if (release_.work == nullptr) return;
    release_.work(release_.context, thread_index, thread_count_);
    // Acq_rel: the owner's acquire load in Done() sees this share; acquire keeps the helpers' shares in one order.
    finished_.value.fetch_add(1, std::memory_order_acq_rel);
  }
}

uint64_t TicketTeam::AwaitTicketAfter(uint64_t last_ticket) {
  PollBackoff backoff(mode_);
  for (;;) {
    // Acquire: pairs with the owner's release store in Start().
    const uint64_t ticket = release_.ticket.load(std::memory_order_acquire);
    if (ticket != last_ticket) return ticket;
    // Relaxed: the kernel compares the word again before it sleeps, and the owner clears it after storing the ticket.
    if (release_.parked.load(std::memory_order_relaxed) != 0) {
      FutexPolicy::Wait(&release_.parked, 1, FutexPolicy::kForever);
    } else {
      backoff.Idle();
    }
  }
}

void TicketTeam::Park() {
  FD_CHECK(Done(), "a team is parked at work");
  if (helper_count_ == 0 || parked_) return;
  parked_ = true;
  release_.parked.store(1, std::memory_order_relaxed);
}

void TicketTeam::WakeHelpers() {
  parked_ = false;
  // Release: a helper that reads 0 and polls again finds the ticket that was stored before.
  release_.parked.store(0, std::memory_order_release);
  FutexPolicy::Wake(&release_.parked, std::numeric_limits<int>::max());
}

}  // namespace fastdecode
