#include "tools/latency/export/export_html.h"

#include <string>

#include "tools/latency/html/page.h"
#include "tools/latency/html/sections.h"

namespace fastdecode {

void WriteHtml(const Timeline& timeline, const LatencyResult& result, std::ostream& out) {
  const std::string body = HeaderSection(result) + FindingsSection(result) + SloSection(result) +
                           CriticalPathSection(result) + RequestsSection(result) + StepsSection(timeline) +
                           HomesSection(result, timeline) + BusySection(result) + AchievedSection(result) +
                           WorstSection(result, timeline) + PhasesSection(result) + ProvenanceSection(result);
  WritePage("fastdecode latency " + result.command, body, "docs/GLOSSARY.md says what the words mean.", out);
}

}  // namespace fastdecode
