// How lost homes come back: the control thread's part of Homes.
#include <chrono>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/homes/homes.h"
#include "numa/clock.h"

namespace fastdecode {

void Homes::ControlLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    LetGoOfDrained();
    const bool down = TryDueHomes();
    lock.lock();
    if (stopping_) return;
    const auto lost = [this] {
      if (stopping_) return true;
      for (const auto& slot : slots_) {
        if (slot->state == Slot::State::kDrained) return true;
      }
      return false;
    };
    if (down) {
      changed_.wait_for(lock, std::chrono::nanoseconds(RetrySchedule::kPauseNs), lost);
    } else {
      changed_.wait(lock, lost);
    }
  }
}

// A link can be made where it cannot be used: over a fabric whose packets are filtered, to a worker that dies of its
// first hop. So a link that was asked and never replied counts as a failure, all of a worker's together as one; a link
// over which nothing was asked tells neither way.
void Homes::LetGoOfDrained() {
  std::vector<size_t> drained;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i]->state == Slot::State::kDrained) drained.push_back(i);
    }
  }
  std::set<RetrySchedule*> replied, silent;
  for (const size_t index : drained) {
    Slot& slot = *slots_[index];
    if (slot.link->AttendsInStage() || replies_(static_cast<int>(index)) > slot.replies_before) {
      replied.insert(slot.retry.get());
    } else if (slot.was_asked) {
      silent.insert(slot.retry.get());
      if (options_.logger != nullptr) {
        options_.logger->Info(Name(static_cast<int>(index)) +
                              " gave no reply before it was lost; until it does, the pauses between attempts to get it "
                              "back double");
      }
    }
    LetGo(index);
  }
  const uint64_t now_ns = NowNs();
  for (RetrySchedule* const schedule : replied) schedule->Reset();
  for (RetrySchedule* const schedule : silent) {
    if (!replied.contains(schedule)) schedule->Fail(now_ns);
  }
}

// False: no home is down.
bool Homes::TryDueHomes() {
  bool down = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return down;
      if (slots_[i]->state == Slot::State::kUp) continue;
      down = true;
      if (slots_[i]->state != Slot::State::kDown || !IsNextOfItsWorker(i)) continue;
    }
    if (!slots_[i]->retry->IsDue(NowNs())) continue;
    slots_[i]->attempt = ++attempts_;
    TakeBack(i);
  }
  return down;
}

// Whether this is the home of its worker that was tried the longest ago, of those that are down: one that is refused
// for a reason of its own does not keep the others away. REQUIRES: the mutex is held.
bool Homes::IsNextOfItsWorker(size_t index) const {
  const Slot& slot = *slots_[index];
  for (const std::unique_ptr<Slot>& other : slots_) {
    if (other->retry == slot.retry && other->state == Slot::State::kDown && other->attempt < slot.attempt) return false;
  }
  return true;
}

// REQUIRES: the slot is kDrained, so that only this thread touches its link and home.
void Homes::LetGo(size_t index) {
  Slot& slot = *slots_[index];
  std::unique_ptr<EngineLink> old;
  {
    std::lock_guard lock(mutex_);
    old = std::move(slot.link);
    slot.state = Slot::State::kDown;
  }
  UnregisterAreas(*old);
  monitor_.Quarantine(std::move(old), "given up by the engine");
}

// One attempt. REQUIRES: the slot's link was let go of.
void Homes::TakeBack(size_t index) {
  Slot& slot = *slots_[index];
  if (slot.home != nullptr) slot.home->Detach();
  absl::StatusOr<Made> made = AttachAgain(index);
  if (!made.ok()) {
    slot.retry->Fail(NowNs());
    const std::string failure(made.status().message());
    if (failure != slot.failure && options_.logger != nullptr) {
      options_.logger->Info(absl::StrFormat("home %d (%s) is not back yet: %s", index, slot.name, failure));
    }
    slot.failure = failure;
    return;
  }
  slot.retry->Connected();
  slot.failure.clear();
  slot.replies_before = replies_(static_cast<int>(index));
  {
    std::lock_guard lock(mutex_);
    PutUp(slot, *std::move(made));
  }
  LogLink(slot);
  if (options_.logger != nullptr) options_.logger->Info(absl::StrFormat("home %d (%s) is back", index, slot.name));
  Announce(index);
}

}  // namespace fastdecode
