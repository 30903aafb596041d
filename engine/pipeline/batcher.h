// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_BATCHER_H_
#define FASTDECODE_ENGINE_PIPELINE_BATCHER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/pipeline/fixed_vector.h"
#include "engine/schedule/placement.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"
#include "engine/rpart/page_counts.h"
#include "rdma/link.h"

namespace fastdecode {

// Limits of a pipeline, fixed when it is made.
struct BatchLimits {
  int micro_batches = 2;            // K
  uint32_t rows_max = 512;          // rows of one step of one micro-batch (decode rows + chunks)
  uint32_t sequences_max = 256;     // sequences of one micro-batch, <= rows_max
  uint32_t chunk_tokens_max = 256;  // prompt tokens of one step of one micro-batch
  uint32_t ready_max = 4096;        // sequences taken over and waiting
  bool open_pages = false;          // whether the KV type has them: HasOpenPages
  uint32_t active_max = 0;          // sequences of all micro-batches; 0: as many as they have room for
  // What steps read, to know how long they take where read rates are known; 0: not known.
  uint64_t weight_bytes = 0;  // of the S-Part, in one decode step
  uint64_t page_bytes = 0;    // of KV, all layers

  uint32_t active() const { return active_max > 0 ? active_max : sequences_max * micro_batches; }
};

// Who sits in which micro-batch, with which rows, on which home's pages: continuous batching at token granularity.
// Every sequence in a micro-batch takes part in each of its steps with one row (decode) or several (its next prompt
// chunk); "decode" is just the case of one token left to compute. A sequence that finds no free page at its home makes
// the home's youngest sequence give back its pages; that one is computed again later from its tokens. Pages are counted
// here and granted by the homes; the homes only check.
//
// The prompt of a sequence may be computed at another home than its own, a GPU's that pushes K and V (decision 0018):
// then the sequence holds pages at both until it settles at its own.
//
// Micro-batches advance independently of each other, and a step waits for the slowest of its homes. Where the S-Part's
// device is a home, a near one, and all homes say how fast they read, new sequences go there while it has room, and to
// others, far ones, only if more tokens come of it; and a plan says which micro-batches they go to (decision 0020,
// placement.h). Else micro-batches grow evenly, and all homes are used.
//
// Owns: membership and page counts; sequences stay the desk's.
// Thread: the pipeline thread. Never allocates after construction. Bounded: by the limits.
class Batcher {
 public:
  explicit Batcher(const BatchLimits& limits);

  // --- homes
  // What a home has to do with pushed prompts.
  enum class Push : uint8_t { kNothing, kComputes, kStores };
  // read_rate: how fast it reads its KV, in MB/s; 0: not known. near: it attends within the S-Part's stages, and its
  // memory is what weights are read from.
  void AddHome(int home, uint32_t pages, uint32_t read_rate = 0, Push push = Push::kNothing, bool near = false);
  // The home takes no new sequence; those it has are marked as failed and leave at their step boundaries.
  void LoseHome(int home);
  // A lost home is not expected back any more.
  void GiveUpHome(int home) { homes_[home].expected = false; }
  bool HomeExpected(int home) const { return homes_[home].expected; }
  bool HomeAlive(int home) const { return homes_[home].alive; }

  // --- sequences
  // Preempted sequences come back to the queue, so that the active ones keep their places in it.
  bool CanEnqueue() const { return ready_.size() + active_count_ < ready_.capacity(); }
  void Enqueue(Sequence* sequence);

  // --- a step boundary of micro-batch m, in this order
  // 1. Pages that members have returned in the step before are free now. Sequences that leave: cancelled, failed,
  //    preempted (back to the ready queue). Calls ended(sequence) for the first two kinds. Pages of those that leave
  //    are released: released(home, sequence).
  template <class Ended, class Released>
  void DropLeavers(int m, Ended&& ended, Released&& released);
  // One sequence that ended with its last token.
  template <class Released>
  void Remove(Sequence* sequence, Released&& released);
  // One whose prompt, all but the last token at most, is computed at another home, but not known to be stored at its
  // own.
  static bool AwaitsPush(const Sequence& sequence) {
    return sequence.push_home >= 0 && sequence.length - sequence.computed == 1;
  }
  // Such a one is stored: it lives at its own home from now on. Before TakeIn, which may need the pages that come free.
  template <class Released>
  void Settle(Sequence* sequence, Released&& released);
  // Members that the plan wants in another micro-batch go there, moved(sequence) each. A step of that one may be under
  // way: they sit it out.
  template <class Moved>
  void Rearrange(int m, Moved&& moved);
  // 2. New sequences, while there is room and pages; joined(sequence) each. now_ns: of any clock.
  template <class Joined>
  void TakeIn(int m, Joined&& joined, uint64_t now_ns = 0);
  // 3. Sets `rows` of every member and takes the pages for them. Returns the total. released() as above, for members
  //    that are preempted on the spot. hold_pushes: prompts that are pushed do not go on in this step.
  template <class Released>
  uint32_t ComposeRows(int m, Released&& released, bool hold_pushes = false);

  // Members in roster order. Those with rows == 0 sit this step out.
  const FixedVector<Sequence*>& Members(int m) const { return micro_batches_[m].members; }
  // Whether the home's roster of this micro-batch must be sent before the step; true until RosterSent.
  bool RosterChanged(int m, int home) const { return micro_batches_[m].roster_changed[home]; }
  void RosterSent(int m, int home) {
    micro_batches_[m].roster_changed[home] = false;
    micro_batches_[m].returns_at_roster[home] = homes_[home].returns;
  }

  // Everything inside ends as cancelled at its step boundary, or at the next sweep.
  void CancelAll();

  // Whether some home that lives, or is expected back, could hold this sequence at its full length, were it alone
  // there.
  bool FitsSomewhere(const Sequence& sequence) const { return Fits(sequence, /*expected_too=*/true); }
  int homes_alive() const;

  // Takes waiting sequences for which condition(sequence) holds out of the queue: ended(sequence) each.
  template <class Condition, class Ended>
  void EndReadyIf(Condition&& condition, Ended&& ended);

  size_t ready_count() const { return ready_.size(); }
  size_t active_count() const { return active_count_; }
  uint64_t preemptions() const { return preemptions_; }
  uint64_t moves() const { return moves_; }  // of members from one micro-batch to another
  uint64_t looks() const { return looks_; }  // for a place of the queue's head
  uint32_t pages_free(int home) const { return homes_[home].pages_free; }
  uint32_t pages_used(int home) const { return homes_[home].pages_total - homes_[home].pages_free; }
  uint32_t sequences_at(int home) const { return homes_[home].sequences; }

 private:
  struct HomeState {
    bool alive = false;
    bool expected = false;  // lost, but it may come back
    uint32_t pages_total = 0;
    uint32_t pages_free = 0;
    uint32_t sequences = 0;
    uint64_t returns = 0;  // times that a sequence's pages came back
    uint32_t read_rate = 0;
    Push push = Push::kNothing;
    bool near = false;
  };
  enum class Kind : uint8_t { kAny, kNear, kFar };
  struct MicroBatchState {
    explicit MicroBatchState(size_t members_max) : members(members_max) {}
    FixedVector<Sequence*> members;
    size_t near_members = 0;  // that live near
    std::array<bool, kMaxHomes> roster_changed{};
    std::array<uint64_t, kMaxHomes> returns_at_roster{};  // the home's `returns` when it was last sent
    uint64_t refused_at = UINT64_MAX;                     // `changes_` when the queue's head was last refused...
    uint64_t refused_ns = 0;                              // ...and the time
  };

  template <class Released>
  void ReleaseAndLeave(Sequence* sequence, Released&& released);
  bool Fits(const Sequence& sequence, bool expected_too) const;
  bool IsSmallest(int m, size_t first = 0) const;  // of those from `first` on
  // The home that the head of the queue goes to, if it joins micro-batch m now; -1: it does not.
  int PlaceHead(int m, uint64_t now_ns, size_t* head);
  int PlaceByPlan(Sequence& head, int m, uint64_t now_ns);
  // The oldest that waits, but for those that can only wait for a lost home; ready_.size(): there is none.
  size_t FindHead() const;
  // Of the homes that can hold its tokens and a page's more of each sequence they have: the one with the most to spare;
  // -1: none now.
  int PlaceSequence(const Sequence& sequence, Kind kind) const;
  bool MustGoFar(const Sequence& head, uint64_t now_ns) const;
  void LookAtHomes();  // for planned_
  void LookAtPlan();   // for plan_
  PlanInputs InputsOfPlan() const;
  void AddWaiting(const Sequence& head, PlanInputs* inputs) const;
  // Tokens left to compute, of a prompt's rows or of others: no chunk has both (RosterEntry).
  static uint32_t RemainingAlike(const Sequence& sequence) {
    const bool in_prompt = sequence.computed < sequence.prompt_tokens;
    return (in_prompt ? sequence.prompt_tokens : sequence.length) - sequence.computed;
  }
  bool HasPlace(int m) const { return !micro_batches_[m].members.full(); }
  // A prompt that is pushed counts where it goes to.
  bool LivesNear(const Sequence& sequence) const {
    return homes_[sequence.push_home >= 0 ? sequence.push_home : sequence.home].near;
  }
  size_t Count(int m, bool near) const {
    const MicroBatchState& batch = micro_batches_[m];
    return near ? batch.near_members : batch.members.size() - batch.near_members;
  }
  bool IsFor(int m, bool near) const;
  bool Takes(int m, bool near) const;
  int EvenUp(int m, bool near) const;
  int MicroBatchFor(const Sequence& sequence) const;
  void Move(Sequence* sequence, int m);
  bool RatesDiffer() const;
  static double Spare(const HomeState& home, uint32_t pages, bool by_rate);
  bool HasRoom(int h, uint32_t pages) const;
  uint32_t GrowthOf(int h) const;
  int ChoosePrefillHome(const Sequence& sequence, int home) const;
  void Join(Sequence* sequence, int m, int home);  // takes the pages of all its tokens at once
  void ReturnPages(int home, uint32_t pages);
  void AddMember(Sequence* sequence, int m);
  void EraseMember(const Sequence& sequence);
  void Leave(Sequence* sequence);          // frees pages, leaves its micro-batch
  void ReturnToReady(Sequence* sequence);  // in order of age
  Sequence* Youngest(int home) const;
  bool TakePagesOfStep(Sequence* sequence, uint32_t rows);
  bool TakePages(Sequence* sequence, uint32_t pages);
  void ReturnClosedPieces(Sequence* sequence);

  const BatchLimits limits_;
  const PageCounts counts_;
  std::array<uint32_t, 2 * kPageTokens> pages_counted_;  // [tokens] of one that decodes, in the step of the last one
  std::array<HomeState, kMaxHomes> homes_;
  std::vector<MicroBatchState> micro_batches_;  // [K]
  FixedVector<Sequence*> ready_;                // oldest first
  size_t active_count_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t moves_ = 0;
  uint64_t looks_ = 0;
  uint64_t changes_ = 0;  // of all that the head's place depends on but the time: homes, pages, members, queue, plan
  // Where micro-batches are filled by a plan: a home is near, and all that a plan is made of is known.
  bool planned_ = false;
  StepPlan plan_ = StepPlan::kNear;  // that holds
};

// ---------------------------------------------------------------------------------------------------------------------

template <class Condition, class Ended>
void Batcher::EndReadyIf(Condition&& condition, Ended&& ended) {
  for (size_t i = 0; i < ready_.size();) {
    Sequence* sequence = ready_[i];
    if (!condition(*sequence)) {
      ++i;
      continue;
    }
    ++changes_;
    ready_.Erase(i);
    ended(sequence);
  }
}

template <class Ended, class Released>
void Batcher::DropLeavers(int m, Ended&& ended, Released&& released) {
  FixedVector<Sequence*>& members = micro_batches_[m].members;
  for (Sequence* sequence : members) ReturnClosedPieces(sequence);
  for (size_t i = 0; i < members.size();) {
    Sequence* sequence = members[i];
    const bool cancelled = sequence->cancelled.load(std::memory_order_relaxed);
    if (!cancelled && !sequence->failed && !sequence->preempt) {
      ++i;
      continue;
    }
    ReleaseAndLeave(sequence, released);  // members[i] is now the next one
    if (!cancelled && !sequence->failed) ++preemptions_;
    if (cancelled || sequence->failed) {
      ended(sequence);
    } else {
      ReturnToReady(sequence);
    }
  }
}

template <class Released>
void Batcher::Remove(Sequence* sequence, Released&& released) {
  ReleaseAndLeave(sequence, released);
}

template <class Released>
void Batcher::ReleaseAndLeave(Sequence* sequence, Released&& released) {
  released(sequence->home, sequence);
  if (sequence->push_home >= 0) released(sequence->push_home, sequence);
  Leave(sequence);
}

template <class Released>
void Batcher::Settle(Sequence* sequence, Released&& released) {
  MicroBatchState& batch = micro_batches_[sequence->micro_batch];
  batch.roster_changed[sequence->home] = true;
  batch.roster_changed[sequence->push_home] = true;
  released(sequence->home, sequence);
  ReturnPages(sequence->home, sequence->pages);
  sequence->home = sequence->push_home;
  sequence->pages = sequence->pages_after = sequence->push_pages;
  sequence->push_home = -1;
  sequence->push_pages = 0;
}

template <class Moved>
void Batcher::Rearrange(int m, Moved&& moved) {
  const FixedVector<Sequence*>& members = micro_batches_[m].members;
  if (!planned_ || members.empty()) return;
  LookAtPlan();
  for (size_t i = 0; i < members.size();) {
    Sequence* const sequence = members[i];
    const int to = MicroBatchFor(*sequence);
    if (to == m) {
      ++i;
      continue;
    }
    Move(sequence, to);  // members[i] is now the next one
    moved(sequence);
  }
}

template <class Joined>
void Batcher::TakeIn(int m, Joined&& joined, uint64_t now_ns) {
  while (!ready_.empty() && active_count_ < limits_.active() && HasPlace(m)) {
    size_t head = 0;
    const int home = PlaceHead(m, now_ns, &head);
    if (home < 0) return;  // in order of age: nobody overtakes the head
    Sequence* sequence = ready_[head];
    ready_.Erase(head);
    Join(sequence, m, home);
    joined(sequence);
  }
}

template <class Released>
uint32_t Batcher::ComposeRows(int m, Released&& released, bool hold_pushes) {
  MicroBatchState& batch = micro_batches_[m];
  uint32_t rows_left = limits_.rows_max;
  uint32_t chunk_left = limits_.chunk_tokens_max;
  for (Sequence* sequence : batch.members) {
    sequence->previous_rows = sequence->rows;
    sequence->rows = 0;
  }
  uint32_t total = 0;
  // Decode rows first: a prompt must not delay those who are already talking.
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < batch.members.size();) {
      Sequence* sequence = batch.members[i];
      const uint32_t remaining = sequence->length - sequence->computed;
      const bool held = AwaitsPush(*sequence) || (hold_pushes && sequence->push_home >= 0);
      if ((remaining == 1) != decoding || rows_left == 0 || held) {
        ++i;
        continue;
      }
      uint32_t rows = 1;
      if (!decoding) rows = std::min(RemainingAlike(*sequence), chunk_left);
      if (rows > rows_left) rows = rows_left;
      if (rows == 0) {
        ++i;
        continue;
      }
      // A page short: the youngest sequence of the home makes room; if it is this one, it goes itself.
      bool preempted_itself = false;
      while (!TakePagesOfStep(sequence, rows)) {
        Sequence* victim = Youngest(sequence->home);
        if (victim->micro_batch != m) {
          victim->preempt = true;  // in flight: at its own boundary; we sit this step out
          rows = 0;
          break;
        }
        if (victim->rows != 0) {  // was given rows earlier in this loop
          rows_left += victim->rows;
          total -= victim->rows;
          victim->rows = 0;
        }
        ++preemptions_;
        const bool before = [&] {
          for (size_t j = 0; j < i; ++j) {
            if (batch.members[j] == victim) return true;
          }
          return false;
        }();
        ReleaseAndLeave(victim, released);
        ReturnToReady(victim);
        if (before) --i;
        if (victim == sequence) {
          preempted_itself = true;
          break;
        }
      }
      if (preempted_itself) continue;  // members[i] is the next one
      sequence->rows = rows;
      total += rows;
      rows_left -= rows;
      if (!decoding) chunk_left -= rows;
      ++i;
    }
  }
  for (const Sequence* sequence : batch.members) {
    // An entry of one row that had one row in the step before goes on by itself; so does one that sits out again.
    const bool continues = sequence->rows == sequence->previous_rows && sequence->rows <= 1;
    if (!continues) batch.roster_changed[sequence->home] = true;
  }
  return total;
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_BATCHER_H_
