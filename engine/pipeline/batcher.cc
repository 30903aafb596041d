// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/batcher.h"

#include <algorithm>
#include <array>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {
// Numbers of homes' sequences from here on are no sequence's id.
constexpr uint64_t kFirstNumber = uint64_t{1} << 62;
}  // namespace

Batcher::Batcher(const BatchLimits& limits)
    : limits_(limits),
      ledger_(limits.open_pages, limits.holders()),
      cache_(limits, &ledger_),
      micro_batches_(limits.micro_batches, limits.sequences_max),
      ready_(size_t{limits.ready_max} + limits.active()),
      placer_(limits, &ledger_, &cache_, &micro_batches_, &ready_),
      composer_(limits, &ledger_, &micro_batches_) {
  FD_CHECK(limits.micro_batches >= 1 && limits.micro_batches <= kMaxSlots, "micro-batches out of range");
  FD_CHECK(limits.sequences_max >= 1 && limits.sequences_max <= limits.rows_max, "more sequences than rows");
  FD_CHECK(limits.active() <= size_t{limits.sequences_max} * limits.micro_batches, "more sequences than places");
  FD_CHECK(limits.chunk_tokens_max >= 1, "prompts could never start");
}

void Batcher::AddHome(int home, uint32_t pages, uint32_t read_rate, PushRole push, bool near) {
  ledger_.AddHome(home, pages);
  cache_.OpenHome(home);
  placer_.AddHome(home, read_rate, push, near);
}

uint32_t Batcher::LoseHome(int home, uint64_t now_ns) {
  placer_.LoseHome(home);
  cache_.LoseHome(home);
  uint32_t marked = 0;
  for (int m = 0; m < limits_.micro_batches; ++m) {
    for (Sequence* sequence : Members(m)) {
      if (sequence->seat.home == home || sequence->push.seat.home == home) marked += sequence->Recover(home, now_ns);
    }
  }
  return marked;
}

void Batcher::Enqueue(Sequence* sequence) {
  ++queue_changes_;
  sequence->Enter(SequenceState::kWaits);
  ready_.Append(sequence);
  size_t followers = 0;
  for (Sequence* follower = sequence->next_follower; follower != nullptr; follower = follower->next_follower) {
    follower->Enter(SequenceState::kFollows);
    ++followers;
  }
  FD_CHECK(followers <= kFollowersMax && followers < limits_.rows_max, "a sequence with too many followers");
  following_ += followers;
}

Sequence* Batcher::TakeFollower(Sequence* leader) {
  Sequence* const follower = leader->next_follower;
  if (follower == nullptr) return nullptr;
  leader->next_follower = std::exchange(follower->next_follower, nullptr);
  --following_;
  return follower;
}

// Its pages must leave each sequence of the home room to grow by a page; those of open pages, which come and go, are
// not looked at, so that one may have to give way sooner. It passes those that wait: its request was taken in with its
// leader.
bool Batcher::SeatFollower(Sequence* follower, const Sequence& leader, BoundaryChanges* changes) {
  const int home = leader.seat.home, m = leader.micro_batch;
  const uint32_t pieces = ledger_.counts().PiecesOfCut(leader.prompt_tokens);
  const uint32_t needed = pieces + ledger_.holders(home) + 1;
  const bool has_room =
      active_count() < limits_.active() && micro_batches_.HasPlace(m) && ledger_.pages_available(home) >= needed;
  if (!has_room || leader.is_pushed() || leader.state != SequenceState::kComputes) {
    follower->Enter(SequenceState::kWaits);
    ReturnToReady(follower);
    return false;
  }
  cache_.MakeRoom(home, pieces, changes);
  follower->Enter(SequenceState::kComputes);
  follower->seat = {.home = home,
                    .holder = ledger_.Fork(leader.seat.holder, leader.prompt_tokens),
                    .number = NumberOf(*follower),
                    .told = true};
  FD_CHECK(follower->seat.holder != HomeLedger::kNobody, "a fork for which there was room");
  follower->computed = leader.prompt_tokens;
  follower->rows = 0;
  cache_.BeginFollower(*follower, leader);
  micro_batches_.Add(follower, m, placer_.IsNear(*follower));
  return true;
}

void Batcher::CancelAll() {
  const auto cancel = [](Sequence* sequence) {
    for (; sequence != nullptr; sequence = sequence->next_follower) {
      sequence->cancelled.store(true, std::memory_order_relaxed);
    }
  };
  for (Sequence* sequence : ready_) cancel(sequence);
  for (int m = 0; m < limits_.micro_batches; ++m) {
    for (Sequence* sequence : Members(m)) cancel(sequence);
  }
}

void Batcher::DropLeavers(int m, BoundaryChanges* changes) {
  for (Sequence* sequence : Members(m)) ledger_.EndStep(sequence->seat.holder);
  for (size_t i = 0; i < Members(m).size();) {
    Sequence* const sequence = Members(m)[i];
    // Member i is the next one when this one has left.
    if (sequence->fails() || sequence->cancelled.load(std::memory_order_relaxed)) {
      Leave(sequence, LeaveReason::kEnds, changes);
    } else if (sequence->recovers()) {
      Leave(sequence, LeaveReason::kHomeLost, changes);
    } else if (sequence->state == SequenceState::kGivesWay) {
      Leave(sequence, LeaveReason::kPreempted, changes);
    } else {
      ++i;
    }
  }
}

void Batcher::Settle(Sequence* sequence, BoundaryChanges* changes) {
  changes->Append({.kind = BoundaryChange::Kind::kSettled, .seat = sequence->seat, .sequence = sequence});
  ledger_.Release(sequence->seat.holder);
  micro_batches_.ChangeSeat(sequence, std::exchange(sequence->push.seat, {}));
  cache_.Begin(*sequence, {});
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
  cache_.MakeRoomForBlocks(changes);
  while (!ready_.empty() && active_count() < limits_.active() && micro_batches_.HasPlace(m)) {
    size_t head = 0;
    const Seats seats = placer_.PlaceHead(m, now_ns, Changes(), &head);
    if (seats.home < 0) return;  // in order of age: nobody overtakes the head
    Sequence* const sequence = ready_[head];
    ++queue_changes_;
    ready_.Erase(head);
    Join(sequence, m, seats, changes);
  }
}

// A fork is told before anything makes room, which may end what it is a fork of. Whoever has pages of its own at once,
// as one that is filled or pushed, is told afterwards.
void Batcher::Join(Sequence* sequence, int m, const Seats& seats, BoundaryChanges* changes) {
  sequence->Enter(SequenceState::kComputes);
  sequence->seat = TakeSeat(sequence, seats.home, seats.hit);
  if (seats.push_home >= 0) sequence->push.seat = TakeSeat(sequence, seats.push_home, {});
  sequence->rows = 0;
  sequence->computed = std::max(sequence->fill_tokens, seats.hit.tokens);
  sequence->head_since_ns = sequence->no_home_since_ns = 0;
  micro_batches_.Add(sequence, m, placer_.IsNear(*sequence));
  if (!sequence->is_pushed()) cache_.Begin(*sequence, seats.hit);
  const BoundaryChange joined = {.kind = BoundaryChange::Kind::kJoined, .sequence = sequence, .hit = seats.hit};
  const bool forks = seats.hit.tokens > 0;
  if (forks) changes->Append(joined);
  TakePages(*sequence, sequence->seat, changes);
  if (sequence->is_pushed()) TakePages(*sequence, sequence->push.seat, changes);
  if (!forks) changes->Append(joined);
}

Seat Batcher::TakeSeat(Sequence* sequence, int home, const PrefixHit& hit) {
  const bool forks = hit.tokens > 0;
  const Seat seat = {.home = home,
                     .holder = forks ? ledger_.Fork(hit.source, hit.tokens) : ledger_.Open(home),
                     .number = NumberOf(*sequence),
                     .told = forks};
  FD_CHECK(seat.holder != HomeLedger::kNobody, "a fork of full pages needs none");
  return seat;
}

void Batcher::TakePages(const Sequence& sequence, const Seat& seat, BoundaryChanges* changes) {
  const uint32_t pages = ledger_.counts().Most(sequence.length), has = ledger_.pages(seat.holder);
  if (pages > has) cache_.MakeRoom(seat.home, pages - has, changes);
  FD_CHECK(ledger_.Take(seat.holder, pages), "placed at a home without room");
}

uint32_t Batcher::ComposeRows(int m, BoundaryChanges* changes, bool hold_pushes) {
  composer_.GiveRows(m, hold_pushes);
  while (Sequence* const victim = composer_.NextToGiveWay(m)) Leave(victim, LeaveReason::kPreempted, changes);
  for (int home = 0; home < kMaxHomes && cache_.kept() > 0; ++home) {
    cache_.MakeRoom(home, composer_.Wanted(home), changes);
  }
  return composer_.TakePages(m);
}

void Batcher::Leave(Sequence* sequence, LeaveReason reason, BoundaryChanges* changes) {
  const bool is_sound = reason != LeaveReason::kHomeLost && !sequence->fails();
  if (is_sound) cache_.NoteStored(sequence);  // one that was pushed home may not have filled a page there since
  const uint32_t kept_tokens = cache_.Leave(*sequence, is_sound, changes);
  changes->Append({.kind = BoundaryChange::Kind::kLeft,
                   .reason = reason,
                   .seat = sequence->seat,
                   .push_seat = sequence->push.seat,
                   .sequence = sequence,
                   .kept_tokens = kept_tokens});
  micro_batches_.Remove(*sequence, placer_.IsNear(*sequence));
  if (kept_tokens == 0) ledger_.Release(sequence->seat.holder);
  if (kept_tokens > 0) sequence->number = kFirstNumber + numbers_++;  // the home has something by its number
  if (sequence->is_pushed()) ledger_.Release(sequence->push.seat.holder);
  sequence->seat = sequence->push.seat = {};
  sequence->computed = 0;
  sequence->micro_batch = -1;
  sequence->Enter(reason == LeaveReason::kEnds ? SequenceState::kIdle : SequenceState::kWaits);
  if (reason == LeaveReason::kEnds) return;
  preemptions_ += reason == LeaveReason::kPreempted;
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
  cache_.CheckInvariants();
  size_t active = 0, following = 0;
  std::array<uint32_t, kMaxHomes> holders = {};
  std::array<uint32_t, kMaxHomes> pages = {};
  for (int m = 0; m < limits_.micro_batches; ++m) {
    size_t members = 0, near = 0;
    std::array<size_t, kMaxHomes> at_home = {};
    for (const Sequence* sequence : Members(m)) {
      ++members;
      near += placer_.IsNear(*sequence);
      FD_CHECK(sequence->micro_batch == m, "a member of another micro-batch");
      FD_CHECK(sequence->state >= SequenceState::kComputes, "a member whose state is that of none");
      following += CountFollowers(*sequence);
      const size_t i = at_home[sequence->seat.home]++;
      FD_CHECK(i < MembersAt(m, sequence->seat.home).size() && MembersAt(m, sequence->seat.home)[i] == sequence,
               "a home's members are not those of the micro-batch, in their order");
      FD_CHECK(ledger_.home(sequence->seat.holder) == sequence->seat.home, "a sequence holds pages of another home");
      ++holders[sequence->seat.home];
      pages[sequence->seat.home] += ledger_.pages_alone(sequence->seat.holder);
      FD_CHECK(sequence->fails() || sequence->recovers() || sequence->computed < sequence->length,
               "a member with nothing to compute");
      if (!sequence->is_pushed()) continue;
      FD_CHECK(ledger_.home(sequence->push.seat.holder) == sequence->push.seat.home,
               "a prompt is pushed to another home");
      ++holders[sequence->push.seat.home];
      pages[sequence->push.seat.home] += ledger_.pages_alone(sequence->push.seat.holder);
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
    FD_CHECK(pages[h] + ledger_.CountNotAlone(h) == ledger_.pages_used(h), "pages are used by nobody");
  }
  for (const Sequence* sequence : ready_) {
    FD_CHECK(sequence->state == SequenceState::kWaits, "one that waits has the state of a member");
    FD_CHECK(sequence->micro_batch < 0 && sequence->seat.home < 0, "one that waits has a place");
    following += CountFollowers(*sequence);
  }
  FD_CHECK(following == following_, "followers are miscounted");
}

}  // namespace fastdecode
