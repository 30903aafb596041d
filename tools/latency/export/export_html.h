#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HTML_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HTML_H_

#include <ostream>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/result.h"

namespace fastdecode {

// One HTML document that needs nothing else and asks nobody for anything: tables and drawings (inline SVG), light and
// dark, below 2 MB however much was recorded. What is drawn over time comes from the timeline, all else from the
// result. Errors are the stream's.
void WriteHtml(const Timeline& timeline, const LatencyResult& result, std::ostream& out);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HTML_H_
