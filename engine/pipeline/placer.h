// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_PLACER_H_
#define FASTDECODE_ENGINE_PIPELINE_PLACER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/pipeline/batch_limits.h"
#include "engine/pipeline/fixed_vector.h"
#include "engine/pipeline/home_ledger.h"
#include "engine/pipeline/micro_batches.h"
#include "engine/pipeline/prefix_cache.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/step_cost_tracker.h"
#include "rdma/link.h"

namespace fastdecode {

// What a home has to do with pushed prompts.
enum class PushRole : uint8_t { kNothing, kComputes, kStores };

// Where a sequence that joins a micro-batch goes.
struct Seats {
  int home = -1;       // computes its rows; -1: nowhere now
  int push_home = -1;  // stores its prompt meanwhile, and is its home afterwards; -1: `home` is
  PrefixHit hit{};     // what is stored at `home` already
};

// Decides which home and which micro-batch sequences go to (decision 0020, placement.h). Where the S-Part attends to a
// home itself, a near one, and all homes say how fast they read, a plan says which micro-batches near and far ones go
// to. A GPU's memory is filled first, and others get sequences only if more tokens come of it; where the near home is a
// CPU's, each sequence goes where it gives more tokens. Without a near home all homes are used, and micro-batches grow
// evenly. If their number was left to the engine (BatchLimits::adapts), as many are used as are fastest.
//
// Where homes have more or less of a sequence's tokens already, it goes where that saves most, less what its home then
// keeps all steps longer than the others do (CostOfHome).
//
// Owns: what it knows of homes, and of what steps cost. It reads the ledger, the members and the queue, and changes
// nothing there.
// Thread: the pipeline thread. Never allocates after construction.
class Placer {
 public:
  // All of these outlive it. `ready`: sequences that wait, oldest first.
  Placer(const BatchLimits& limits, const HomeLedger* ledger, const PrefixCache* cache,
         const MicroBatches* micro_batches, const FixedVector<Sequence*>* ready);

  // read_rate: how fast it reads its KV, in MB/s; 0: not known. near: it attends within the S-Part's stages, and its
  // memory is what weights are read from.
  void AddHome(int home, uint32_t read_rate, PushRole push, bool near);
  // It takes no new sequence; it may come back.
  void LoseHome(int home);
  // It takes no new sequence from now on, and those that it has stay: it will be lost soon.
  void CloseHome(int home);
  // Whether one that is not there may come: it then counts as one that was lost.
  void ExpectHome(int home, bool may_come);
  int homes_alive() const;
  // Whether there is none, or one that was lost or is expected has not come, or one was closed.
  bool HomesMissing() const;

  // Whether some home that lives could hold this sequence at its full length, were it alone there.
  bool FitsSomewhere(const Sequence& sequence) const;

  // Where the head of the queue goes if it joins micro-batch m now: *head is its index. now_ns: of any clock.
  // changes: grows with all that the answer depends on but the time.
  Seats PlaceHead(int m, uint64_t now_ns, uint64_t changes, size_t* head);

  // Chooses the plan again, for those who are at homes. False: there is none to go by.
  bool Replan();
  // The micro-batch that the plan wants a member in, or the one where it is.
  int MicroBatchFor(const Sequence& sequence) const;
  // Whether it counts as a near one. A prompt that is pushed counts where it goes to.
  bool IsNear(const Sequence& sequence) const {
    return homes_[sequence.push.seat.home >= 0 ? sequence.push.seat.home : sequence.seat.home].near;
  }

  // What steps cost, and how they come to be known.
  StepCostTracker& costs() { return costs_; }

  uint64_t looks() const { return looks_; }      // for a place of the queue's head
  uint64_t changes() const { return changes_; }  // of homes and of the plan

 private:
  struct HomeFacts {
    bool takes_new() const { return alive && !closed; }

    bool alive = false;
    bool lost = false;  // or it has not come yet
    bool closed = false;
    uint64_t number = 0;  // of all homes that have come: a smaller one has been there for longer
    uint32_t read_rate = 0;
    PushRole push = PushRole::kNothing;
    bool near = false;
  };
  struct Refusal {
    uint64_t changes = UINT64_MAX;  // `changes` when the queue's head was last refused...
    uint64_t at_ns = 0;             // ...and the time
  };
  enum class Kind : uint8_t { kAny, kNear, kFar };

  size_t FindHead() const;
  int PlaceByPlan(Sequence& head, int m, uint64_t now_ns);
  int PlaceSequence(const Sequence& sequence, Kind kind) const;
  int PlaceAtLongestLived(const Sequence& sequence, int m) const;
  Seats SeatsAt(const Sequence& sequence, int home) const;
  bool MustGoFar(const Sequence& head, uint64_t now_ns) const;
  void LookAtHomes();  // for planned_
  void ChooseCount();
  PlanInputs InputsOfPlan() const;
  void AddWaiting(const Sequence& head, PlanInputs* inputs) const;
  bool IsFor(int m, bool near) const;
  bool Takes(int m, bool near) const;
  int EvenUp(int m, bool near) const;
  bool RatesDiffer() const;
  double Spare(int home, uint32_t pages, bool by_rate) const;
  bool HasRoom(int home, uint32_t pages) const;
  uint32_t PagesBeside(const Sequence& sequence, const PrefixHit& hit) const;
  bool IsFoundAt(const Sequence& sequence, int home) const;
  uint32_t GrowthOf(int home) const;
  int ChoosePrefillHome(const Sequence& sequence, int home) const;

  const BatchLimits limits_;
  const HomeLedger& ledger_;
  const PrefixCache& cache_;
  const MicroBatches& micro_batches_;
  const FixedVector<Sequence*>& ready_;
  const PageCounts counts_;
  StepCostTracker costs_;
  std::array<uint32_t, 2 * kPageTokens> pages_counted_;  // [tokens] of one that decodes, in the step of the last one
  std::array<HomeFacts, kMaxHomes> homes_;
  std::array<Refusal, kMaxSlots> refusals_;  // [micro-batch]
  uint64_t arrivals_ = 0;                    // of homes
  uint64_t looks_ = 0;
  uint64_t changes_ = 0;
  // Where micro-batches are filled by a plan: a home is near, and all that a plan is made of is known.
  bool planned_ = false;
  // Where none is near: the plan says only whether one micro-batch is used or all.
  bool counts_only_ = false;
  StepPlan plan_ = StepPlan::kNear;  // that holds
  int other_count_better_ = 0;       // so many times in a row, as ChooseCount found
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_PLACER_H_
