// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_MICRO_BATCHES_H_
#define FASTDECODE_ENGINE_PIPELINE_MICRO_BATCHES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/pipeline/fixed_vector.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"

namespace fastdecode {

using MemberList = FixedVector<Sequence*>;

// Which sequences are in which micro-batch, and which of a micro-batch's rosters the homes have not seen. Members of
// one home come in the same order in its list as among all.
//
// Owns: the lists; sequences stay the desk's. Thread: the pipeline thread. Never allocates after construction.
// Bounded: by members_max of each micro-batch.
class MicroBatches {
 public:
  MicroBatches(int count, size_t members_max);

  // Adds it at the end; Sequence::seat is where its rows are computed. is_near: that it counts as a near one.
  void Add(Sequence* sequence, int m, bool is_near);
  void Remove(const Sequence& sequence, bool is_near);
  // Its rows are computed at another home from now on. Both rosters change.
  void ChangeSeat(Sequence* sequence, const Seat& seat);

  int count() const { return static_cast<int>(batches_.size()); }
  size_t active() const { return active_; }
  const MemberList& Members(int m) const { return batches_[m].members; }
  // Those of them whose rows are computed at `home`.
  const MemberList& MembersAt(int m, int home) const { return batches_[m].at_home[home]; }
  size_t Count(int m, bool near) const {
    return near ? batches_[m].near_members : batches_[m].members.size() - batches_[m].near_members;
  }
  bool HasPlace(int m) const { return !batches_[m].members.full(); }
  // Whether none of those from micro-batch `first` on has fewer members.
  bool IsSmallest(int m, int first = 0) const;

  bool RosterChanged(int m, int home) const { return batches_[m].roster_changed[home]; }
  void ChangeRoster(int m, int home) { batches_[m].roster_changed[home] = true; }
  // `returns`: the ledger's, as of now.
  void RosterSent(int m, int home, uint64_t returns) {
    batches_[m].roster_changed[home] = false;
    batches_[m].returns_at_roster[home] = returns;
  }
  // It has taken pages, with so many `returns` of its home. One of the pages may have come back since the last roster:
  // the home is certain to have applied that release only once it has taken over a later roster.
  void NoteTaken(const Sequence& sequence, uint64_t returns) {
    Batch& batch = batches_[sequence.micro_batch];
    if (returns != batch.returns_at_roster[sequence.seat.home]) batch.roster_changed[sequence.seat.home] = true;
  }
  // Grows with every change of members.
  uint64_t changes() const { return changes_; }

 private:
  struct Batch {
    explicit Batch(size_t members_max);

    MemberList members;
    std::vector<MemberList> at_home;  // [home]
    size_t near_members = 0;
    std::array<bool, kMaxHomes> roster_changed{};
    std::array<uint64_t, kMaxHomes> returns_at_roster{};  // the home's `returns` when it was last sent
  };

  std::vector<Batch> batches_;
  size_t active_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_MICRO_BATCHES_H_
