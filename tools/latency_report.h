#ifndef FASTDECODE_TOOLS_LATENCY_REPORT_H_
#define FASTDECODE_TOOLS_LATENCY_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fastdecode {

// When one request was submitted and when each of its tokens' steps ended, ns of the engine's clock.
struct RequestTimes {
  uint64_t submit_ns = 0;
  std::vector<uint64_t> token_ns;
};

// TTFT from submit with queueing; TPOT the mean of a request after its first token, percentiles over requests; ITL the
// gaps (docs/GLOSSARY.md). A table for people, with the engine's statistics (its JSON) below.
std::string LatencyReport(const std::vector<RequestTimes>& requests, const std::string& statistics_json);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_REPORT_H_
