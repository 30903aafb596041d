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
// TPOT the mean of a request after its first token, over requests; e2e from start to the last token: of requests that
// joined and ended well within the recording, with all of their tokens. ITL the gaps between tokens, of all requests.
// `failed` counts those that ended in an error. Where intended starts are known there are two entries: by them, so that
// a stall is charged to every request that it delayed, and by submission.
std::vector<RequestFigures> MeasureRequests(const Recording& recording);

// By the first of `figures`. A request that failed counts as one that waited for ever, but for its gaps.
std::vector<SloVerdict> JudgeSlos(const std::vector<Slo>& slos, const std::vector<RequestFigures>& figures);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUESTS_H_
