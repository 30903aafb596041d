#include "numa/core_turn.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <mutex>

#include "numa/check.h"

namespace fastdecode {

namespace {

thread_local CoreTurns* turns_of_this_thread = nullptr;  // null: it shares no core

// The turns of all cores. It is never destroyed: threads of static objects may outlive main.
struct Registry {
  std::mutex mutex;
  std::map<int, CoreTurns> turns;
};
std::atomic<Registry*> registry = nullptr;

// A forked child has none of the threads that held tickets, or the mutex, when it was forked: it begins anew.
void StartRegistry() { registry.store(new Registry, std::memory_order_release); }

CoreTurns* TurnsOf(int core) {
  static const bool started = [] {
    StartRegistry();
    return pthread_atfork(nullptr, nullptr, &StartRegistry) == 0;
  }();
  FD_CHECK(started, "no memory for a fork handler");
  Registry* const all = registry.load(std::memory_order_acquire);
  std::lock_guard lock(all->mutex);
  return &all->turns[core];
}

// Waiters sleep on one word; the bit lets a waker reach the one whose turn it is.
uint32_t FutexBit(uint32_t ticket) { return 1u << (ticket % 32); }

}  // namespace

// Seq_cst here and in Give: each side writes one of the two words and then reads the other, so at least one of them
// sees what the other wrote: the giver a ticket to wake, or the taker that it is served.
void CoreTurns::Take() { Await(next_ticket_.fetch_add(1, std::memory_order_seq_cst)); }

void CoreTurns::Await(uint32_t ticket) {
  for (;;) {
    const uint32_t serving = serving_.load(std::memory_order_seq_cst);
    if (serving == ticket) return;
    // The kernel compares the word again before the thread sleeps.
    syscall(SYS_futex, &serving_, FUTEX_WAIT_BITSET_PRIVATE, serving, nullptr, nullptr, FutexBit(ticket));
  }
}

void CoreTurns::Give() {
  const uint32_t following = serving_.load(std::memory_order_relaxed) + 1;  // only the turn's holder writes it
  serving_.store(following, std::memory_order_seq_cst);
  if (next_ticket_.load(std::memory_order_seq_cst) == following) return;
  syscall(SYS_futex, &serving_, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, nullptr, nullptr, FutexBit(following));
}

// The ticket comes before the gift: the woken thread may run at once, before this one sleeps, and must see that its
// turn is awaited.
bool CoreTurns::PassOn() {
  if (next_ticket_.load(std::memory_order_relaxed) == serving_.load(std::memory_order_relaxed) + 1) return false;
  const uint32_t ticket = next_ticket_.fetch_add(1, std::memory_order_seq_cst);
  Give();
  Await(ticket);
  return true;
}

CoreTurn::CoreTurn(int core) {
  FD_CHECK(turns_of_this_thread == nullptr, "the thread already shares a core");
  if (core < 0) return;
  CoreTurns* const turns = TurnsOf(core);
  turns->Take();
  turns_of_this_thread = turns;
}

CoreTurn::~CoreTurn() {
  if (turns_of_this_thread != nullptr) turns_of_this_thread->Give();
  turns_of_this_thread = nullptr;
}

bool CoreTurn::PassOn() { return turns_of_this_thread != nullptr && turns_of_this_thread->PassOn(); }

CoreTurn::Away::Away() {
  if (turns_of_this_thread != nullptr) turns_of_this_thread->Give();
}

CoreTurn::Away::~Away() {
  if (turns_of_this_thread != nullptr) turns_of_this_thread->Take();
}

}  // namespace fastdecode
