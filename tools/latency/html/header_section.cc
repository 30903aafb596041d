// The top of the report: what was measured, the verdicts, and at its end how it was measured.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"
#include "tools/latency/machine/provenance.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

std::string Tile(const std::string& value, const std::string& name) {
  return "<div class=\"tile\"><b>" + Escaped(value) + "</b><span>" + Escaped(name) + "</span></div>\n";
}

std::string PercentileText(const Distribution& ns, double share) {
  const std::optional<uint64_t> value = ns.Percentile(share);
  return value ? HtmlNs(static_cast<double>(*value)) : "\u2013";
}

// The provenance's line of that name.
std::string Described(const LatencyResult& result, const std::string& name) {
  for (const auto& [what, text] : DescribeProvenance(result.provenance)) {
    if (what == name) return text;
  }
  return "";
}

// A JSON object that nobody here knows, as lines "a.b: value".
void Flatten(const nlohmann::json& value, const std::string& path, Table* table) {
  if (value.is_structured() && !value.empty()) {
    for (const auto& [key, member] : value.items()) Flatten(member, path.empty() ? key : path + "." + key, table);
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>()
                                             : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  table->Row({Escaped(path), Escaped(text)});
}

std::string Details(const std::string& summary, const nlohmann::json& value) {
  if (!value.is_structured() || value.empty()) return "";
  Table table({"what", "value"});
  Flatten(value, "", &table);
  return "<details><summary>" + Escaped(summary) + "</summary>\n" + table.Take() + "</details>\n";
}

std::string Recorded(const LatencyResult& result) {
  return absl::StrCat(FormatCount(result.tokens), " tokens in ", FormatCount(result.steps), " steps, recorded for ",
                      HtmlNs(static_cast<double>(result.end_ns - result.start_ns)), ". ");
}

std::string Tiles(const LatencyResult& result) {
  std::string out = "<div class=\"tiles\">\n";
  if (result.critical_path.tokens > 0) out += Tile(HtmlNs(result.critical_path.token_ns), "mean token");
  const auto token = std::find_if(result.phases.begin(), result.phases.end(),
                                  [](const Phase& phase) { return phase.name == "token"; });
  if (token != result.phases.end()) {
    absl::StrAppend(&out, Tile(PercentileText(token->ns, 0.5), "p50"), Tile(PercentileText(token->ns, 0.99), "p99"),
                    Tile(PercentileText(token->ns, 0.999), "p99.9"));
  }
  absl::StrAppend(&out, Tile(FormatShare(result.s_busy), "S-Part busy"),
                  Tile(FormatShare(result.r_busy), "busiest home busy"), "</div>\n");
  return out;
}

}  // namespace

std::string HeaderSection(const LatencyResult& result) {
  const bool recorded = result.end_ns > result.start_ns;
  std::string out =
      absl::StrCat("<header>\n<p class=\"kind\">fastdecode latency ", Escaped(result.command), "</p>\n<h1>",
                   recorded ? "Where the time of a token went" : "How long it took", "</h1>\n<p class=\"lead\">");
  if (recorded) absl::StrAppend(&out, Recorded(result));
  if (!result.provenance.is_null()) {
    absl::StrAppend(&out, Escaped(Described(result, "machine")), ". ", Escaped(Described(result, "time")), ".");
  }
  absl::StrAppend(&out, "</p>\n", recorded ? Tiles(result) : "", "</header>\n");
  return out;
}

std::string FindingsSection(const LatencyResult& result) {
  std::string body;
  if (result.interrupted) {
    body +=
        "<p class=\"verdict warning\">The machine took so much time from the engine's threads that the figures show "
        "it: what is found here may be its doing.</p>\n";
  }
  for (const Finding& finding : result.findings) {
    body += "<p class=\"verdict bad\">" + Escaped(finding.line) + "</p>\n";
  }
  if (result.findings.empty() && result.critical_path.tokens > 0) {
    body += "<p class=\"verdict good\">Nothing stands out from its like.</p>\n";
  }
  for (const std::string& warning : result.warnings) {
    body += "<p class=\"verdict warning\">" + Escaped(warning) + "</p>\n";
  }
  return body.empty() ? "" : Section("findings", "Findings", body);
}

std::string SloSection(const LatencyResult& result) {
  if (result.slo.empty()) return "";
  Table table({"limit", "#at most", "#was", "verdict"});
  for (const SloVerdict& slo : result.slo) {
    std::string got = slo.got_ns ? absl::StrCat(slo.at_least ? "&ge; " : "", HtmlNs(*slo.got_ns)) : "too few samples";
    if (slo.silent_ns > 0) absl::StrAppend(&got, ", then nothing for ", HtmlNs(slo.silent_ns));
    table.Row({Escaped(slo.text), HtmlNs(slo.limit_ns), got,
               slo.met ? "<b class=\"good\">met</b>" : "<b class=\"bad\">not met</b>"});
  }
  return Section("slo", "Limits", table.Take());
}

std::string ProvenanceSection(const LatencyResult& result) {
  Table table({"what", "found"});
  for (const auto& [what, text] : DescribeProvenance(result.provenance)) table.Row({Escaped(what), Escaped(text)});
  return Section("provenance", "How it was measured",
                 table.Take() + Details("The engine", result.engine) +
                     Details("What recording cost", result.recording_cost) +
                     Details("All that was noted down of the machine", result.provenance));
}

}  // namespace fastdecode
