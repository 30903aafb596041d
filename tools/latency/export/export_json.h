#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_JSON_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/latency/result.h"

namespace fastdecode {

// So many samples of a distribution go into a file at most.
inline constexpr size_t kSavedSamplesMax = 2000;

// `sorted` itself if it has at most `most`; else `most` of them, each from the middle of an equal share of all: the
// i-th is the one at index floor((i + 0.5) * count / most). So they keep the distribution's shape and mean, and not its
// extremes. REQUIRES: ascending, most > 0.
std::vector<uint64_t> ThinSamples(const std::vector<uint64_t>& sorted, size_t most);

// All that was found out, as docs/latency.schema.json says. Never fails: a figure that is no number becomes null.
// saved_result.h reads it back.
nlohmann::json ToJson(const LatencyResult& result);
// The same as text without line ends, bytes that are no UTF-8 replaced.
std::string JsonText(const LatencyResult& result);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_JSON_H_
