#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_STEP_EVENTS_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_STEP_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <fastdecode/fastdecode.h>
#include "tools/latency/analysis/hop_times.h"
#include "tools/latency/analysis/timeline.h"

namespace fastdecode {

// The events of one step of one micro-batch, in the order in which they ended; those of stages' parts are in
// Timeline::parts already. Owns nothing: the events are the recording's, the hops the timeline's.
struct StepEvents {
  uint32_t step = 0;
  const fd_record_event* compose = nullptr;
  const fd_record_event* rosters = nullptr;  // may be missing
  const fd_record_event* finish = nullptr;
  std::vector<const fd_record_event*> stages, posts, shares;
  std::vector<HopTimes*> hops;
  size_t events = 0;

  // Keeps the vectors' memory.
  void Clear(uint32_t new_step);
  // False: no event of a step. Hops are added to `hops`, not here.
  bool Add(const fd_record_event& event);
  // Nothing is missing, and nothing is there twice.
  bool Whole(int layers) const;
};

// What lies before a step of the same micro-batch.
struct Boundary {
  bool known = false;  // the end of the step before was recorded, and somebody was in both steps
  uint64_t start_ns = 0;
  std::vector<Span> held;  // since, in order
};

// Appends the step, with all that is its own, to the timeline. Its hops stay where they are in Timeline::hops, and the
// order in which they are to be, once all steps are known, goes to `hop_order`. Returns how many of the timeline's
// parts are its stages'. REQUIRES: step.Whole(); Timeline::parts has all of its parts, ascending by end.
size_t AppendStep(const StepEvents& events, const Boundary& boundary, Timeline* timeline,
                  std::vector<uint32_t>* hop_order);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_STEP_EVENTS_H_
