// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/batcher.h"

#include <array>

#include "numa/check.h"

namespace fastdecode {

Batcher::Batcher(const BatchLimits& limits)
    : limits_(limits),
      ledger_(limits.open_pages, 2 * size_t{limits.active()}),  // a sequence whose prompt is pushed holds pages twice
      micro_batches_(limits.micro_batches, limits.sequences_max),
      ready_(size_t{limits.ready_max} + limits.active()),
      placer_(limits, &ledger_, &micro_batches_, &ready_),
      composer_(limits, &ledger_, &micro_batches_) {
  FD_CHECK(limits.micro_batches >= 1 && limits.micro_batches <= kMaxSlots, "micro-batches out of range");
  FD_CHECK(limits.sequences_max >= 1 && limits.sequences_max <= limits.rows_max, "more sequences than rows");
  FD_CHECK(limits.active() <= size_t{limits.sequences_max} * limits.micro_batches, "more sequences than places");
  FD_CHECK(limits.chunk_tokens_max >= 1, "prompts could never start");
}

void Batcher::AddHome(int home, uint32_t pages, uint32_t read_rate, PushRole push, bool near) {
  ledger_.AddHome(home, pages);
  placer_.AddHome(home, read_rate, push, near);
}

void Batcher::LoseHome(int home) {
  placer_.LoseHome(home);
  for (int m = 0; m < limits_.micro_batches; ++m) {
    for (Sequence* sequence : Members(m)) {
      if ((sequence->home != home && sequence->push_home != home) || sequence->failed) continue;
      sequence->failed = true;
      sequence->fail_reason = FinishReason::kHomeLost;
      sequence->fail_home = home;
    }
  }
}

void Batcher::Enqueue(Sequence* sequence) {
  ++queue_changes_;
  ready_.Append(sequence);
}

void Batcher::CancelAll() {
  for (Sequence* sequence : ready_) sequence->cancelled.store(true, std::memory_order_relaxed);
  for (int m = 0; m < limits_.micro_batches; ++m) {
    for (Sequence* sequence : Members(m)) sequence->cancelled.store(true, std::memory_order_relaxed);
  }
}

void Batcher::DropLeavers(int m, BoundaryChanges* changes) {
  for (Sequence* sequence : Members(m)) ledger_.EndStep(sequence->seat);
  for (size_t i = 0; i < Members(m).size();) {
    Sequence* const sequence = Members(m)[i];
    const bool ends = sequence->failed || sequence->cancelled.load(std::memory_order_relaxed);
    if (!ends && !sequence->preempt) {
      ++i;
      continue;
    }
    Leave(sequence, ends ? LeaveReason::kEnds : LeaveReason::kPreempted, changes);  // member i is now the next one
  }
}

void Batcher::Settle(Sequence* sequence, BoundaryChanges* changes) {
  changes->Append(
      {.kind = BoundaryChange::Kind::kSettled, .home = static_cast<int16_t>(sequence->home), .sequence = sequence});
  ledger_.Release(sequence->seat);
  micro_batches_.ChangeHome(sequence, sequence->push_home);
  sequence->seat = sequence->push_seat;
  sequence->push_home = -1;
  sequence->push_seat = HomeLedger::kNobody;
}

void Batcher::Rearrange(int m, BoundaryChanges* changes) {
  if (Members(m).empty() || !placer_.Replan()) return;
  for (size_t i = 0; i < Members(m).size();) {
    Sequence* const sequence = Members(m)[i];
    const int to = placer_.MicroBatchFor(*sequence);
    if (to == m) {
      ++i;
      continue;
    }
    // Homes know sequences by their numbers: one may be in any roster.
    ++moves_;
    const bool near = placer_.IsNear(*sequence);
    micro_batches_.Remove(*sequence, near);  // member i is now the next one
    sequence->rows = 0;                      // of a step that may be under way, and so previous_rows of the next
    micro_batches_.Add(sequence, to, near);
    changes->Append({.kind = BoundaryChange::Kind::kMoved, .sequence = sequence});
  }
}

void Batcher::TakeIn(int m, BoundaryChanges* changes, uint64_t now_ns) {
  while (!ready_.empty() && active_count() < limits_.active() && micro_batches_.HasPlace(m)) {
    size_t head = 0;
    const Seats seats = placer_.PlaceHead(m, now_ns, Changes(), &head);
    if (seats.home < 0) return;  // in order of age: nobody overtakes the head
    Sequence* const sequence = ready_[head];
    ++queue_changes_;
    ready_.Erase(head);
    Join(sequence, m, seats);
    changes->Append({.kind = BoundaryChange::Kind::kJoined, .sequence = sequence});
  }
}

void Batcher::Join(Sequence* sequence, int m, const Seats& seats) {
  const uint32_t pages = ledger_.counts().Most(sequence->length);
  sequence->home = seats.home;
  sequence->seat = ledger_.Open(seats.home);
  bool has_pages = ledger_.Take(sequence->seat, pages);
  if (seats.push_home >= 0) {
    sequence->push_home = seats.push_home;
    sequence->push_seat = ledger_.Open(seats.push_home);
    has_pages = ledger_.Take(sequence->push_seat, pages) && has_pages;
  }
  FD_CHECK(has_pages, "placed at a home without room");
  sequence->rows = 0;
  sequence->computed = sequence->fill_tokens;
  sequence->head_since_ns = 0;
  micro_batches_.Add(sequence, m, placer_.IsNear(*sequence));
}

uint32_t Batcher::ComposeRows(int m, BoundaryChanges* changes, bool hold_pushes) {
  composer_.GiveRows(m, hold_pushes);
  while (Sequence* const victim = composer_.NextToGiveWay(m)) Leave(victim, LeaveReason::kPreempted, changes);
  return composer_.TakePages(m);
}

void Batcher::Leave(Sequence* sequence, LeaveReason reason, BoundaryChanges* changes) {
  changes->Append({.kind = BoundaryChange::Kind::kLeft,
                   .reason = reason,
                   .home = static_cast<int16_t>(sequence->home),
                   .push_home = static_cast<int16_t>(sequence->push_home),
                   .sequence = sequence});
  micro_batches_.Remove(*sequence, placer_.IsNear(*sequence));
  ledger_.Release(sequence->seat);
  if (sequence->push_home >= 0) ledger_.Release(sequence->push_seat);
  sequence->seat = sequence->push_seat = HomeLedger::kNobody;
  sequence->home = sequence->push_home = -1;
  sequence->computed = 0;
  sequence->micro_batch = -1;
  sequence->preempt = false;
  if (reason != LeaveReason::kPreempted) return;
  ++preemptions_;
  ReturnToReady(sequence);
}

void Batcher::ReturnToReady(Sequence* sequence) {
  ++queue_changes_;
  size_t index = 0;
  while (index < ready_.size() && ready_[index]->id < sequence->id) ++index;
  ready_.Insert(index, sequence);
}

void Batcher::CheckInvariants() const {
  ledger_.CheckInvariants();
  size_t active = 0;
  std::array<uint32_t, kMaxHomes> holders = {};
  std::array<uint32_t, kMaxHomes> pages = {};
  for (int m = 0; m < limits_.micro_batches; ++m) {
    size_t members = 0, near = 0;
    std::array<size_t, kMaxHomes> at_home = {};
    for (const Sequence* sequence : Members(m)) {
      ++members;
      near += placer_.IsNear(*sequence);
      FD_CHECK(sequence->micro_batch == m, "a member of another micro-batch");
      const size_t i = at_home[sequence->home]++;
      FD_CHECK(i < MembersAt(m, sequence->home).size() && MembersAt(m, sequence->home)[i] == sequence,
               "a home's members are not those of the micro-batch, in their order");
      FD_CHECK(ledger_.home(sequence->seat) == sequence->home, "a sequence holds pages of another home");
      ++holders[sequence->home];
      pages[sequence->home] += ledger_.pages_alone(sequence->seat);
      FD_CHECK(sequence->failed || sequence->computed < sequence->length, "a member with nothing to compute");
      if (sequence->push_home < 0) continue;
      FD_CHECK(ledger_.home(sequence->push_seat) == sequence->push_home, "a prompt is pushed to another home");
      ++holders[sequence->push_home];
      pages[sequence->push_home] += ledger_.pages_alone(sequence->push_seat);
    }
    for (int h = 0; h < kMaxHomes; ++h)
      FD_CHECK(at_home[h] == MembersAt(m, h).size(), "a home has a member that is none");
    FD_CHECK(members == Members(m).size(), "a micro-batch's members are miscounted");
    FD_CHECK(near == micro_batches_.Count(m, /*near=*/true), "near members are miscounted");
    active += members;
  }
  FD_CHECK(active == active_count(), "active sequences are miscounted");
  for (int h = 0; h < kMaxHomes; ++h) {
    FD_CHECK(holders[h] == ledger_.holders(h), "pages are held for nobody");
    FD_CHECK(pages[h] == ledger_.pages_used(h), "pages are used by nobody");
  }
  for (size_t i = 0; i < ready_.size(); ++i) {
    FD_CHECK(ready_[i]->micro_batch < 0 && ready_[i]->seat == HomeLedger::kNobody, "one that waits has a place");
  }
}

}  // namespace fastdecode
