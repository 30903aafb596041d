// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_
#define FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_

#include <cstdint>

namespace fastdecode {

// Who steps together where the S-Part's device is itself a home, a near one, beside slower ones, far ones.
enum class StepPlan : uint8_t {
  kNear,      // nobody is at a far home
  kTogether,  // all in micro-batch 0: weights are read once, and all homes at the same time
  kMixed,     // each micro-batch has sequences of all homes: the S-Part works for one while far homes do for another
  kApart,     // near ones in micro-batch 0, far ones in the others: near ones wait for no far home
};

// What a plan is made of. Times are in microseconds.
struct PlanInputs {
  int micro_batches = 1;
  double weights_us = 0;  // a step's weights read
  double near_us = 0;     // all KV near read
  double far_us = 0;      // all KV of a far home read, of the slowest
  double near_sequences = 0;
  double far_sequences = 0;
  double waiting = 0;     // sequences, for which there is no room near...
  double room = 0;        // ...and far for so many of them
  double waiting_us = 0;  // what each would add to far_us, were they spread evenly
  double growth = 1;      // of a sequence's KV from now to the mean of its time
};

struct Placement {
  bool far = false;                 // the next of those that wait goes to a far home; else it waits
  StepPlan plan = StepPlan::kNear;  // with `far`, the best; else the one that held
};

// Tokens a microsecond of those who are at homes. A step takes what it reads, weights and then KV near, and KV far
// meanwhile; nothing else is counted.
double TokenRate(StepPlan plan, const PlanInputs& inputs);

// How many of those that wait would be done at far homes before all others that wait were done near: for sequences of
// one length, which cancels out. More would go on there alone in the end, at a rate far below what near homes had given
// them.
double FarShare(const PlanInputs& inputs);

// The best for those who are at homes. The one that held is left only for one that is a tenth better.
StepPlan ChoosePlan(StepPlan held, const PlanInputs& inputs);

// Whether FarShare more at far homes give more tokens than nobody more there, and by which plan: with nobody there yet,
// by more than the model may be wrong. must_go: one at least goes there.
Placement ChoosePlacement(StepPlan held, const PlanInputs& inputs, bool must_go);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_PLACEMENT_H_
