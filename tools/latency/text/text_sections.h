#ifndef FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_SECTIONS_H_
#define FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_SECTIONS_H_

#include <cstddef>
#include <string>

#include "tools/latency/result.h"

namespace fastdecode {

// The sections of the report, each with its heading and an empty line behind it, or "" if there is nothing to say.
// Thread: any. All lines have at most `width` columns.

inline constexpr size_t kTextIndent = 2;

// "PHASES, us\n"
std::string Heading(const std::string& text);
// Words in lines, the first one after `begin`, the others as far in.
std::string Paragraph(const std::string& begin, const std::string& text, size_t width);
// "home 1", or what stands for the engine.
std::string HomeOrEngine(int home, const char* engine);

std::string PhasesSection(const LatencyResult& result, size_t width);
std::string CriticalPathSection(const LatencyResult& result, size_t width);
std::string OverlapSection(const LatencyResult& result, size_t width);
std::string HomesSection(const LatencyResult& result, size_t width);
std::string AchievedSection(const LatencyResult& result, size_t width);
std::string WorstTokensSection(const LatencyResult& result, size_t width);
std::string RequestsSection(const LatencyResult& result, size_t width);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_TEXT_TEXT_SECTIONS_H_
