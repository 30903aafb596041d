// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/micro_batches.h"

#include <algorithm>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {

size_t IndexOf(const MemberList& list, const Sequence* sequence) {
  return static_cast<size_t>(std::find(list.begin(), list.end(), sequence) - list.begin());
}

}  // namespace

MicroBatches::Batch::Batch(size_t members_max) : members(members_max) {
  for (int h = 0; h < kMaxHomes; ++h) at_home.emplace_back(members_max);  // at start
}

MicroBatches::MicroBatches(int count, size_t members_max) {
  batches_.reserve(static_cast<size_t>(count));                        // at start
  for (int m = 0; m < count; ++m) batches_.emplace_back(members_max);  // at start
}

void MicroBatches::Add(Sequence* sequence, int m, bool is_near) {
  ++changes_;
  ++active_;
  Batch& batch = batches_[m];
  sequence->micro_batch = m;
  batch.members.Append(sequence);
  batch.at_home[sequence->seat.home].Append(sequence);
  batch.near_members += is_near;
  batch.roster_changed[sequence->seat.home] = true;
}

void MicroBatches::Remove(const Sequence& sequence, bool is_near) {
  ++changes_;
  --active_;
  Batch& batch = batches_[sequence.micro_batch];
  MemberList& at_home = batch.at_home[sequence.seat.home];
  batch.members.Erase(IndexOf(batch.members, &sequence));
  at_home.Erase(IndexOf(at_home, &sequence));
  batch.near_members -= is_near;
  batch.roster_changed[sequence.seat.home] = true;
}

void MicroBatches::ChangeSeat(Sequence* sequence, const Seat& seat) {
  const int home = seat.home;
  ++changes_;
  Batch& batch = batches_[sequence->micro_batch];
  MemberList& before = batch.at_home[sequence->seat.home];
  MemberList& after = batch.at_home[home];
  batch.roster_changed[sequence->seat.home] = true;
  batch.roster_changed[home] = true;
  before.Erase(IndexOf(before, sequence));
  const Sequence* const* next = std::find_if(std::as_const(batch.members).begin() + IndexOf(batch.members, sequence),
                                             std::as_const(batch.members).end(),
                                             [home](const Sequence* other) { return other->seat.home == home; });
  after.Insert(next == std::as_const(batch.members).end() ? after.size() : IndexOf(after, *next), sequence);
  sequence->seat = seat;
}

bool MicroBatches::IsSmallest(int m, int first) const {
  for (int other = first; other < count(); ++other) {
    if (batches_[other].members.size() < batches_[m].members.size()) return false;
  }
  return true;
}

}  // namespace fastdecode
