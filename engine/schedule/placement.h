// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_
#define FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_

#include <cstdint>

#include "engine/schedule/step_model.h"

namespace fastdecode {

// Who steps together where the S-Part's device is itself a home, a near one, beside slower ones, far ones.
enum class StepPlan : uint8_t {
  kNear,      // nobody is at a far home
  kTogether,  // all in micro-batch 0: weights are read once, and all homes at the same time
  kMixed,     // each micro-batch has sequences of all homes: the S-Part works for one while far homes do for another
  kApart,     // near ones in micro-batch 0, far ones in the others: near ones wait for no far home
};

// What a plan is made of.
struct PlanInputs {
  const StepCosts* costs = nullptr;  // lent; never null
  int micro_batches = 1;
  MicroBatchLoad held;  // all that are at homes, as if one micro-batch had them; `rows` is not read
  double waiting = 0;   // sequences, for which there is no room near...
  double room = 0;      // ...and far for so many of them
  // What each of them would bring to far homes, were they spread evenly by how fast these are.
  MicroBatchLoad each;
  double growth = 1;  // of a sequence's KV from now to the mean of its time
};

struct Placement {
  bool far = false;                 // the next of those that wait goes to a far home; else it waits
  StepPlan plan = StepPlan::kNear;  // with `far`, the best; else the one that held
};

// Whether somebody is at a far home.
bool HasFar(const PlanInputs& inputs);

// Tokens a microsecond of those who are at homes, by the step model. It has no kApart, whose micro-batches do not keep
// pace: that follows from how long the near ones' steps take, and the far ones'.
double TokenRate(StepPlan plan, const PlanInputs& inputs);

// How many of those that wait would be done at far homes before all others that wait were done near: for sequences of
// one length, which cancels out. More would go on there alone in the end, at a rate far below what near homes had given
// them.
double FarShare(const PlanInputs& inputs);

// The best for those who are at homes. The one that held is left only for one that is a tenth better.
StepPlan ChoosePlan(StepPlan held, const PlanInputs& inputs);

// Whether one more sequence, which brings `more`, gives more tokens at far home `far` than at near home `near`, each
// time with the best plan for it. Ties go near.
bool IsBetterFar(const PlanInputs& inputs, const HomeLoad& more, int near, int far);

// What it costs, in microseconds, that a sequence which brings `more` comes to a home and takes so many steps there:
// how much longer the slowest home takes in each of them, less the time of its `found` tokens, which are stored there
// and need not be computed in chunks of so many rows.
double CostOfHome(const PlanInputs& inputs, int home, const HomeLoad& more, double steps, double found,
                  double chunk_rows);

// How much faster the S-Part and the homes are, for those who are there, with all in one micro-batch than evenly over
// all of them (2: twice as fast). REQUIRES: somebody is there, and costs are known.
double GainTogether(const PlanInputs& inputs);

// Whether FarShare more at far homes give more tokens than nobody more there, and by which plan: with nobody there yet,
// by more than the model may be wrong. must_go: one at least goes there.
Placement ChoosePlacement(StepPlan held, const PlanInputs& inputs, bool must_go);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_
