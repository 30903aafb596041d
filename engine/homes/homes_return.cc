// How lost homes come back, and late ones come: the control thread's part of Homes.
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/homes/homes.h"
#include "numa/clock.h"

namespace fastdecode {

void Homes::ControlLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    LetGoOfLost();
    const bool down = TryDueHomes();
    lock.lock();
    if (stopping_) return;
    const auto lost = [this] {
      if (stopping_) return true;
      for (size_t i = 0; i < count(); ++i) {
        if (slots_[i]->state == Slot::State::kLost) return true;
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
void Homes::LetGoOfLost() {
  std::vector<size_t> lost;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count(); ++i) {
      if (slots_[i]->state == Slot::State::kLost) lost.push_back(i);
    }
  }
  std::set<RetrySchedule*> replied, silent;
  for (const size_t index : lost) {
    Slot& slot = *slots_[index];
    if (slot.link->AttendsInStage() || replies_(static_cast<int>(index)) > slot.replies_before) {
      replied.insert(slot.retry.get());
    } else if (slot.was_asked) {
      silent.insert(slot.retry.get());
      if (options_.logger != nullptr) {
        options_.logger->Info(NameOf(index) +
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

// False: no home is down, but for those that are not tried any more.
bool Homes::TryDueHomes() {
  bool down = false;
  for (size_t i = 0; i < count(); ++i) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return down;
      if (slots_[i]->state == Slot::State::kUp || slots_[i]->state == Slot::State::kGivenUp) continue;
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
  for (size_t i = 0; i < count(); ++i) {
    const Slot& other = *slots_[i];
    if (other.retry == slot.retry && other.state == Slot::State::kDown && other.attempt < slot.attempt) return false;
  }
  return true;
}

// REQUIRES: the slot is kLost, so that only this thread touches its link and home.
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

// One attempt. REQUIRES: the slot has no link.
void Homes::TakeBack(size_t index) {
  Slot& slot = *slots_[index];
  if (slot.home != nullptr) slot.home->Detach();
  absl::StatusOr<Made> made = AttachAgain(index);
  if (!made.ok()) return Fail(index, made.status());
  if (absl::Status twice = CheckNew(slot, *made); !twice.ok()) return GiveUp(index, *std::move(made), twice);
  slot.retry->Connected();
  slot.replies_before = replies_(static_cast<int>(index));
  const bool is_late = !slot.has_come;
  const uint32_t homes_at_worker = made->homes_at_worker;
  {
    std::lock_guard lock(mutex_);
    slot.failure.clear();
    PutUp(slot, *std::move(made));
  }
  LogLink(slot);
  if (options_.logger != nullptr) options_.logger->Info(NameOf(index) + (is_late ? " has come" : " is back"));
  if (is_late) AddSiblings(slot, homes_at_worker);  // first: who can only wait for one of these goes on waiting
  Announce(index);
}

void Homes::Fail(size_t index, const absl::Status& status) {
  Slot& slot = *slots_[index];
  slot.retry->Fail(NowNs());
  std::string failure(status.message());
  if (failure == slot.failure) return;
  if (options_.logger != nullptr) {
    const char* const what = slot.has_come ? "is not back yet" : "has not come yet";
    options_.logger->Info(absl::StrCat(NameOf(index), " ", what, ": ", failure));
  }
  std::lock_guard lock(mutex_);
  slot.failure = std::move(failure);
}

// Another place has this home. To ask again would cost that one its link each time, and gain nothing.
void Homes::GiveUp(size_t index, Made made, const absl::Status& why) {
  Slot& slot = *slots_[index];
  made.watched.reset();
  UnregisterAreas(*made.link);
  monitor_.Quarantine(std::move(made.link), "the engine has this home by another name");
  {
    std::lock_guard lock(mutex_);
    slot.state = Slot::State::kGivenUp;
    slot.failure = std::string(why.message());
  }
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kForgetHome;
  command.home = static_cast<int>(index);
  command_(command);
  if (options_.logger != nullptr) options_.logger->Warning(absl::StrCat(NameOf(index), " ", AbsenceOf(slot)));
}

// The first home of a late worker has come, and says how many there are. The others come next.
void Homes::AddSiblings(const Slot& first, uint32_t homes) {
  for (uint32_t i = 0; i < homes; ++i) {
    const auto is_this = [&](size_t s) { return slots_[s]->endpoint == first.endpoint && slots_[s]->home_index == i; };
    bool has_place = false;
    for (size_t s = 0; s < count(); ++s) has_place |= is_this(s);
    if (has_place) continue;
    Slot slot = WorkersPlace(first.endpoint, i);
    slot.name = slot.NameAtWorker();
    slot.failure = "its worker has just come";
    if (absl::Status full = AddPlace(std::move(slot)); !full.ok()) {
      if (options_.logger != nullptr) {
        options_.logger->Warning(
            absl::StrFormat("%s: homes %d to %d of %s are not used", full.message(), i, homes - 1, first.place));
      }
      return;
    }
    Expect(count() - 1);
  }
}

}  // namespace fastdecode
