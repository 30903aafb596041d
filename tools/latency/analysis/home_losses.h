#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_LOSSES_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_LOSSES_H_

#include <cstdint>
#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"

namespace fastdecode {

// A sequence whose home was lost, on its way to where it had been.
struct LostSequence {
  uint64_t id = 0;
  uint64_t waited_ns = 0;  // until the loss was known, in a hop that never came back
  uint64_t left_ns = 0;    // its place, at the step boundary behind the loss
  uint64_t joined_ns = 0;  // when it had a home again; 0: it had none until the recording's end, or its own
  uint64_t ended_ns = 0;   // when it ended before that; 0: it did not
  uint64_t again_ns = 0;   // when it had its next token; 0: it had none
  bool answers = false;    // it had a token before: the next one says that all is as it was
};

// A home that was lost, and what that was for its sequences.
struct HomeLoss {
  int home = -1;
  uint64_t lost_ns = 0;  // when it was known
  uint64_t back_ns = 0;  // when the first sequence joined there again; 0: none has
  std::vector<LostSequence> sequences;
  std::vector<Span> waits;      // of the micro-batches that had a hop open there: from its posting until lost_ns
  double waited_by_all_ns = 0;  // by all sequences of these micro-batches together
};

// By time.
std::vector<HomeLoss> FindHomeLosses(const Recording& recording);

// At that moment a home was lost and had no sequence again.
bool SomeHomeIsAway(const std::vector<HomeLoss>& losses, uint64_t at_ns);
// When sequences of lost homes had none.
std::vector<Span> SpansWithoutHome(const std::vector<HomeLoss>& losses, uint64_t end_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_LOSSES_H_
