// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_BATCHER_H_
#define FASTDECODE_ENGINE_PIPELINE_BATCHER_H_

#include <cstdint>

#include "engine/pipeline/batch_limits.h"
#include "engine/pipeline/boundary_changes.h"
#include "engine/pipeline/fixed_vector.h"
#include "engine/pipeline/home_ledger.h"
#include "engine/pipeline/micro_batches.h"
#include "engine/pipeline/placer.h"
#include "engine/pipeline/prefix_cache.h"
#include "engine/pipeline/row_composer.h"
#include "engine/pipeline/sequence.h"

namespace fastdecode {

// Continuous batching at token granularity: who sits in which micro-batch, with which rows, on which home's pages.
// Every sequence in a micro-batch takes part in each of its steps with one row (decode) or several (its next prompt
// chunk); "decode" is just the case of one token left to compute. A sequence that finds no free page at its home makes
// the home's youngest sequence give back its pages; that one is computed again later from its tokens.
//
// The prompt of a sequence may be computed at another home than its own, a GPU's that pushes K and V (decision 0018):
// then the sequence holds pages at both until it settles at its own.
//
// Five parts do the work: HomeLedger counts pages, PrefixCache finds what is stored already, MicroBatches has the
// members, Placer says where those that wait go, RowComposer gives rows. This class has the queue and the order of
// things at a step boundary, and tells the pipeline what has changed. Micro-batches advance independently of each
// other, and a step waits for the slowest of its homes.
//
// Owns: the five parts; sequences stay the desk's.
// Thread: the pipeline thread. Never allocates after construction. Bounded: by the limits.
class Batcher {
 public:
  explicit Batcher(const BatchLimits& limits);

  // --- homes
  // See Placer::AddHome. `pages`: granted to this engine.
  void AddHome(int home, uint32_t pages, uint32_t read_rate = 0, PushRole push = PushRole::kNothing, bool near = false);
  // The home takes no new sequence; those that it has recover: they leave at their step boundaries, and wait again.
  // now_ns: of the clock that TakeIn is given. Returns how many recover by this loss.
  uint32_t LoseHome(int home, uint64_t now_ns);
  // The home takes no new sequence; those that it has stay.
  void CloseHome(int home) {
    placer_.CloseHome(home);
    cache_.CloseHome(home);
  }
  // Gives up cached prefixes of a closed home, at most so many. Returns whether nothing of ours is there any more.
  bool LeaveHome(int home, uint32_t cached, BoundaryChanges* changes) {
    return cache_.Clear(home, cached, changes) && ledger_.holders(home) == 0;
  }
  int homes_alive() const { return placer_.homes_alive(); }
  void ExpectHome(int home, bool may_come) { placer_.ExpectHome(home, may_come); }
  bool HomesMissing() const { return placer_.HomesMissing(); }

  // --- sequences
  // Preempted sequences come back to the queue, and followers may have to wait in it: all keep their places there.
  bool CanEnqueue(size_t followers = 0) const {
    return ready_.size() + active_count() + following_ + followers < ready_.capacity();
  }
  // With those that follow it. REQUIRES: CanEnqueue; at most kFollowersMax followers, and fewer than rows_max.
  void Enqueue(Sequence* sequence);
  // The next one that followed `leader`, and does so no more; null: there is none. It is in no list.
  Sequence* TakeFollower(Sequence* leader);
  // Makes it a member beside its leader, at the same home, with whose pages of the prompt it begins. False: there is no
  // room for that, and it waits. REQUIRES: TakeFollower gave it; all of the leader's prompt is computed, and no step of
  // the leader is under way.
  bool SeatFollower(Sequence* follower, const Sequence& leader, BoundaryChanges* changes);
  // A step has computed rows of a sequence, which are stored at its home. Only full pages can be found.
  void NoteStored(Sequence* sequence) {
    const uint32_t before = sequence->computed - sequence->rows;
    if (cache_.on() && sequence->computed / kPageTokens > before / kPageTokens) cache_.NoteStored(sequence);
  }

  // --- a step boundary of micro-batch m, in this order. What they change is appended to *changes.
  // 1. Pages that members have returned in the step before are free now. Sequences that leave: cancelled, failed,
  //    preempted or without a home any more (back to the queue).
  void DropLeavers(int m, BoundaryChanges* changes);
  // One sequence that ended with its last token.
  void Remove(Sequence* sequence, BoundaryChanges* changes) { Leave(sequence, LeaveReason::kEnds, changes); }
  static bool AwaitsPush(const Sequence& sequence) { return RowComposer::AwaitsPush(sequence); }
  // One that awaited its push is stored: it lives at its own home from now on. Before TakeIn, which may need the pages
  // that come free.
  void Settle(Sequence* sequence, BoundaryChanges* changes);
  // 2. Members that the plan wants in another micro-batch go there. A step of that one may be under way: they sit it
  //    out.
  void Rearrange(int m, BoundaryChanges* changes);
  // 3. New sequences, while there is room and pages. now_ns: of any clock.
  void TakeIn(int m, BoundaryChanges* changes, uint64_t now_ns = 0);
  // 4. Sets `rows` of every member and takes the pages for them. Members that must give way leave on the spot. Returns
  //    the total. hold_pushes: prompts that are pushed do not go on in this step.
  uint32_t ComposeRows(int m, BoundaryChanges* changes, bool hold_pushes = false);

  // Members in roster order. Those with rows == 0 sit this step out.
  const MemberList& Members(int m) const { return micro_batches_.Members(m); }
  // Those whose rows `home` computes, in the same order.
  const MemberList& MembersAt(int m, int home) const { return micro_batches_.MembersAt(m, home); }
  // Whether the home's roster of this micro-batch must be sent before the step; true until RosterSent.
  bool RosterChanged(int m, int home) const { return micro_batches_.RosterChanged(m, home); }
  void RosterSent(int m, int home) { micro_batches_.RosterSent(m, home, ledger_.returns(home)); }

  // Everything inside ends as cancelled at its step boundary, or at the next sweep.
  void CancelAll();

  bool FitsSomewhere(const Sequence& sequence) const { return placer_.FitsSomewhere(sequence); }

  // Takes waiting sequences for which condition(sequence) holds out of the queue: ended(sequence) each. Both are given
  // a Sequence*.
  template <class Condition, class Ended>
  void EndReadyIf(Condition&& condition, Ended&& ended);

  StepCostTracker& costs() { return placer_.costs(); }
  const HomeLedger& ledger() const { return ledger_; }
  uint32_t pages_free(int home) const { return ledger_.pages_free(home); }
  uint32_t pages_used(int home) const { return ledger_.pages_used(home); }
  uint32_t sequences_at(int home) const { return ledger_.holders(home); }
  uint32_t pages_cached(int home) const { return ledger_.pages_idle(home); }
  const PrefixCache& cache() const { return cache_; }
  size_t ready_count() const { return ready_.size(); }
  size_t active_count() const { return micro_batches_.active(); }
  size_t following_count() const { return following_; }
  uint64_t preemptions() const { return preemptions_; }
  uint64_t moves() const { return moves_; }  // of members from one micro-batch to another
  uint64_t looks() const { return placer_.looks(); }

  // Ends the process if members, pages and rosters contradict each other. O(members + holders).
  void CheckInvariants() const;

 private:
  void Join(Sequence* sequence, int m, const Seats& seats, BoundaryChanges* changes);
  Seat TakeSeat(Sequence* sequence, int home, const PrefixHit& hit);
  void TakePages(const Sequence& sequence, const Seat& seat, BoundaryChanges* changes);  // of all its tokens
  void Leave(Sequence* sequence, LeaveReason reason, BoundaryChanges* changes);
  void ReturnToReady(Sequence* sequence);  // in order of age
  static uint64_t NumberOf(const Sequence& sequence) { return sequence.number > 0 ? sequence.number : sequence.id; }
  // Grows with all that the place of the queue's head depends on but the time.
  uint64_t Changes() const { return ledger_.changes() + micro_batches_.changes() + placer_.changes() + queue_changes_; }

  const BatchLimits limits_;
  HomeLedger ledger_;
  PrefixCache cache_;
  MicroBatches micro_batches_;
  FixedVector<Sequence*> ready_;  // oldest first
  size_t following_ = 0;          // sequences that follow others
  Placer placer_;
  RowComposer composer_;
  uint64_t preemptions_ = 0;
  uint64_t moves_ = 0;
  uint64_t queue_changes_ = 0;
  uint64_t numbers_ = 0;  // of sequences that come to a home again
};

template <class Condition, class Ended>
void Batcher::EndReadyIf(Condition&& condition, Ended&& ended) {
  for (size_t i = 0; i < ready_.size();) {
    Sequence* sequence = ready_[i];
    if (!condition(sequence)) {
      ++i;
      continue;
    }
    ++queue_changes_;
    ready_.Erase(i);
    sequence->Enter(SequenceState::kIdle);
    ended(sequence);
  }
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_BATCHER_H_
