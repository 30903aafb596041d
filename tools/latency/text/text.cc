#include "tools/latency/text/text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/latency/machine/provenance.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr size_t kLabelWidth = 13;

std::string DescribeEngine(const nlohmann::json& engine) {
  if (!engine.is_object()) return "";
  std::vector<std::string> parts;
  const auto add = [&](const char* key, const char* before, const char* after) {
    const auto found = engine.find(key);
    if (found == engine.end()) return;
    if (found->is_string()) parts.push_back(absl::StrCat(before, found->get<std::string>(), after));
    if (found->is_number_integer()) parts.push_back(absl::StrCat(before, found->get<int64_t>(), after));
  };
  add("model", "", "");
  add("layers", "", " layers");
  add("kv_type", "KV ", "");
  add("micro_batches", "", " micro-batches");
  add("core_plan", "", " cores");
  const auto homes = engine.find("homes");
  if (homes != engine.end() && homes->is_array()) {
    parts.push_back(absl::StrCat(homes->size(), homes->size() == 1 ? " home" : " homes"));
  }
  add("version", "version ", "");
  add("pid", "process ", "");
  return absl::StrJoin(parts, ", ");
}

std::string Header(const LatencyResult& result, size_t width) {
  const bool recorded = result.command != "kernel";
  const double span_ns = static_cast<double>(result.end_ns - std::min(result.start_ns, result.end_ns));
  const std::string of_recording = absl::StrCat(": ", FormatCount(result.tokens), " tokens in ",
                                                FormatCount(result.steps), " steps, ", FormatNs(span_ns), " recorded");
  return Paragraph("", absl::StrCat("fastdecode latency ", result.command, recorded ? of_recording : ""), width) +
         FormatProvenance(result.provenance, DescribeEngine(result.engine), width) + "\n";
}

std::string Findings(const LatencyResult& result, size_t width) {
  if (result.command == "kernel") return "";
  std::string out = Heading("VERDICT");
  if (result.interrupted) out += Paragraph("  ! ", "the machine interrupted this run: see the warnings", width);
  if (result.tokens == 0 && result.findings.empty())
    return out + Paragraph("  ", "none: no token was made while it recorded", width) + "\n";
  for (const Finding& finding : result.findings) out += Paragraph("  * ", finding.line, width);
  return out + (result.findings.empty() ? "  no fault found\n" : "") + "\n";
}

std::string Slos(const LatencyResult& result, size_t width) {
  if (result.slo.empty()) return "";
  TextTable table({{"", true, TextTable::kAlways},
                   {"limit", true, TextTable::kAlways, 14},
                   {"measured", false, TextTable::kAlways}});
  const bool failures = std::any_of(result.requests.begin(), result.requests.end(),
                                    [](const RequestFigures& figures) { return figures.failed > 0; });
  for (const SloVerdict& slo : result.slo) {
    table.AddRow({slo.met ? "met" : "MISSED", slo.text,
                  absl::StrCat(slo.got_ns ? absl::StrCat(slo.at_least ? ">= " : "", FormatNs(*slo.got_ns))
                               : failures ? "too few, or too many failed"
                                          : "too few samples",
                               slo.silent_ns > 0 ? absl::StrCat(", then nothing for ", FormatNs(slo.silent_ns)) : "")});
  }
  return Heading("SLO") + table.Format(width, kTextIndent) + "\n";
}

std::string Warnings(const LatencyResult& result, size_t width) {
  if (result.warnings.empty()) return "";
  std::string out = Heading("WARNINGS, of what spoils these figures");
  for (const std::string& warning : result.warnings) out += Paragraph("  ! ", warning, width);
  return out + "\n";
}

// Its fields are named for what they hold: "share", "step_share", "ns_per_event".
std::string DescribeCost(const nlohmann::json& cost) {
  if (!cost.is_object()) return "";
  std::vector<std::string> parts;
  for (const auto& [key, value] : cost.items()) {
    const std::string words = absl::StrReplaceAll(key, {{"_", " "}});
    if (value.is_string()) parts.push_back(absl::StrCat(words, " ", value.get<std::string>()));
    if (!value.is_number()) continue;
    const double number = value.get<double>();
    const bool is_share = key.find("share") != std::string::npos;
    const bool is_time = key.rfind("ns_", 0) == 0 || (key.size() > 3 && key.rfind("_ns") == key.size() - 3);
    const std::string without_unit = absl::StrReplaceAll(absl::StrCat(" ", words, " "), {{" ns ", " "}});
    parts.push_back(is_share  ? absl::StrCat(words, " ", FormatShare(number))
                    : is_time ? absl::StrCat(without_unit.substr(1), FormatNs(number))
                              : absl::StrCat(words, " ", number));
  }
  return absl::StrJoin(parts, ", ");
}

std::string RecordingLine(const LatencyResult& result, size_t width) {
  std::string text = absl::StrCat(FormatCount(result.events), " events");
  if (result.lost_events > 0) {
    absl::StrAppend(&text, ", ", FormatCount(result.lost_events),
                    " lost before they were read: figures are of steps that were recorded whole");
  }
  const std::string cost = DescribeCost(result.recording_cost);
  if (!cost.empty()) absl::StrAppend(&text, "; cost of recording: ", cost);
  return Heading("RECORDING") + Paragraph("  ", text, width);
}

}  // namespace

std::string Heading(const std::string& text) { return text + "\n"; }

std::string Paragraph(const std::string& begin, const std::string& text, size_t width) {
  const size_t indent = Columns(begin);
  std::string out;
  for (const std::string& line : Wrap(OneLine(text), width - indent)) {
    absl::StrAppend(&out, out.empty() ? begin : std::string(indent, ' '), line, "\n");
  }
  return out;
}

std::string HomeOrEngine(int home, const char* engine) { return home < 0 ? engine : absl::StrCat("home ", home); }

std::string FormatProvenance(const nlohmann::json& provenance, const std::string& engine, size_t width) {
  std::vector<std::pair<std::string, std::string>> rows = DescribeProvenance(provenance);
  if (!engine.empty()) rows.insert(rows.begin() + 2, {"engine", engine});
  std::string out;
  for (const auto& [label, text] : rows) {
    out += Paragraph(absl::StrFormat("  %-*s", static_cast<int>(kLabelWidth), label), text,
                     std::max(width, kTextWidthMin));
  }
  return out;
}

std::string FormatResult(const LatencyResult& result, size_t width) {
  width = std::max(width, kTextWidthMin);
  return absl::StrCat(Header(result, width), Findings(result, width), Warnings(result, width), Slos(result, width)) +
         absl::StrCat(PhasesSection(result, width), CriticalPathSection(result, width), OverlapSection(result, width),
                      HomesSection(result, width), AchievedSection(result, width)) +
         absl::StrCat(WorstTokensSection(result, width), RequestsSection(result, width), RecordingLine(result, width));
}

}  // namespace fastdecode
