#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_DELAYS_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_DELAYS_H_

#include <cstdint>
#include <vector>

#include "tools/latency/findings/finders.h"

namespace fastdecode {

// A span that took a good deal longer than its like.
struct Delay {
  uint64_t end_ns = 0;
  double ns = 0;         // that much longer...
  double usual_ns = 0;   // ...than this
  bool at_work = false;  // amid work of the core in question, or known to be its own; else it may be another's
  double before_ns = 0;  // at most so much of it was over before there was anything to do, and is not in `ns`

  double LikelyNs() const { return ns + before_ns / 2; }
};

// Parts of stages against the same step's other layers, other spans of the pipeline thread against their like, and the
// time in which it saw no reply although it had nothing else to do.
std::vector<Delay> PipelineDelays(const Evidence& evidence);
// A leader's work against the same step's other layers; and hops that came late although it believes that it looked for
// them all the time. These may as well be the link's, if it is no memory.
std::vector<Delay> LeaderDelays(const Evidence& evidence, int home);
// The leader's wait for its team.
std::vector<Delay> TeamDelays(const Evidence& evidence, int home);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_DELAYS_H_
