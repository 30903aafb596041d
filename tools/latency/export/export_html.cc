#include "tools/latency/export/export_html.h"

#include "tools/latency/html/assets.h"
#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"

namespace fastdecode {

namespace {

// A browser that keeps to it loads nothing, whatever the texts in the document should contrive.
constexpr char kPolicy[] = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

}  // namespace

void WriteHtml(const Timeline& timeline, const LatencyResult& result, std::ostream& out) {
  out << "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta http-equiv=\"Content-Security-Policy\" content=\"" << kPolicy << "\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      << "<link rel=\"icon\" href=\"data:,\">\n<title>fastdecode latency " << Escaped(result.command) << "</title>\n"
      << "<style>\n"
      << kReportCss << "</style>\n</head>\n<body>\n";
  out << HeaderSection(result) << FindingsSection(result) << SloSection(result) << CriticalPathSection(result)
      << RequestsSection(result) << StepsSection(timeline) << HomesSection(result, timeline) << BusySection(result)
      << AchievedSection(result) << WorstSection(result, timeline) << PhasesSection(result)
      << ProvenanceSection(result);
  out << "<footer>docs/GLOSSARY.md says what the words mean.</footer>\n<script>\n"
      << kReportJs << "</script>\n"
      << "</body>\n</html>\n";
}

}  // namespace fastdecode
