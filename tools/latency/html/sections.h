#ifndef FASTDECODE_TOOLS_LATENCY_HTML_SECTIONS_H_
#define FASTDECODE_TOOLS_LATENCY_HTML_SECTIONS_H_

#include <string>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/result.h"

namespace fastdecode {

// The sections of the report, in their order. Each is HTML, and empty where there is nothing to show.

std::string HeaderSection(const LatencyResult& result);    // what was measured, where and how
std::string FindingsSection(const LatencyResult& result);  // what is wrong, and what spoils figures
std::string SloSection(const LatencyResult& result);
std::string CriticalPathSection(const LatencyResult& result);
std::string RequestsSection(const LatencyResult& result);  // figures and percentile curves
std::string PhasesSection(const LatencyResult& result);    // the same of phases
std::string StepsSection(const Timeline& timeline);        // steps over time
std::string HomesSection(const LatencyResult& result, const Timeline& timeline);
std::string BusySection(const LatencyResult& result);      // shares and bubbles
std::string AchievedSection(const LatencyResult& result);  // against what is possible
std::string WorstSection(const LatencyResult& result, const Timeline& timeline);
std::string ProvenanceSection(const LatencyResult& result);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_HTML_SECTIONS_H_
