#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUESTS_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUESTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// A limit on a percentile: "ttft:400ms,p90". Metrics: ttft, tpot, itl, e2e; durations in ns, us, ms, s; p50 to p99.99.
struct Slo {
  enum class Metric { kTtft, kTpot, kItl, kE2e };
  std::string text;
  Metric metric = Metric::kTtft;
  double limit_ns = 0;
  double share = 0;
};
// InvalidArgument naming option, value and what was expected.
absl::StatusOr<Slo> ParseSlo(const std::string& option, const std::string& text);

// TTFT from the start with queueing to the first token delivered (its step's end, where deliveries were not recorded);
// e2e from the start to the last token of the answer; TPOT the mean of a request after its first token, over requests;
// ITL the gaps between tokens, of all requests.
//
// Whoever waited for a first token within the recording counts in TTFT, however its answer went on; in e2e and TPOT who
// did and was answered by a rule of the engine, a stop string too. Who still waited when the recording ended, or when
// its caller gave up, has taken at least so long (Distribution's unfinished ones); in an open loop also those of which
// nothing was recorded since they waited all along, and those that the engine had not taken yet. (Without intended
// starts requests that were submitted before the recording and still wait behind it are not known.) `failed` counts
// those that ended in an error, which are in no other figure but ITL.
//
// Where intended starts are known there are two entries: by them, so that a stall is charged to every request that it
// delayed, and by submission.
std::vector<RequestFigures> MeasureRequests(const Recording& recording);

// By the first of `figures`: a request that has not ended counts as missed once it is over the limit, and before that
// it is not counted. One that failed counts as one that waited for ever, but for its gaps. `silent_ns`: so long an
// engine with requests had done nothing in the end; if that is more than the limit, this is missed whatever was before.
std::vector<SloVerdict> JudgeSlos(const std::vector<Slo>& slos, const std::vector<RequestFigures>& figures,
                                  double silent_ns = 0);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUESTS_H_
