#ifndef FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_H_
#define FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_H_

#include <cstddef>
#include <string>

#include "tools/latency/result.h"

namespace fastdecode {

// Terminals narrower than this get lines of this.
inline constexpr size_t kTextWidthMin = 60;

// The report for people, in lines of at most `width` columns: what is wrong first, then where the time went. Narrow
// terminals lose columns of tables, not lines. Names out of the result are shown as OneLine() has them.
std::string FormatResult(const LatencyResult& result, size_t width);

// Its header alone: what was measured (engine "" for none), by whom, where.
std::string FormatProvenance(const nlohmann::json& provenance, const std::string& engine, size_t width);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_H_
