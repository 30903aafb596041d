#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_MADE_UP_RESULT_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_MADE_UP_RESULT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/latency/result.h"

namespace fastdecode {

// `count` durations around `typical_ns` with a long tail, as latencies have it; equal seeds give equal ones.
std::vector<uint64_t> MadeUpSamples(size_t count, uint64_t typical_ns, uint64_t seed);

// A result with something in every field: two homes, three requests' worth of nothing in particular, names with
// characters that every format has to escape, a distribution without samples, and one with too few for percentiles.
LatencyResult MadeUpResult();

// What the names of a made-up result hold that JSON, CSV, HTML or Prometheus would trip over.
inline constexpr char kAwkward[] = "<b>&\"home\", 1\\2\n'é'";

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_MADE_UP_RESULT_H_
