#include "tools/latency/report_flags.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <sstream>
#include <utility>

#include "absl/strings/str_join.h"
#include <fastdecode/fastdecode.hpp>
#include "tools/exit_code.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/silence.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/export/export_csv.h"
#include "tools/latency/export/export_html.h"
#include "tools/latency/export/export_json.h"
#include "tools/latency/export/export_prometheus.h"
#include "tools/latency/export/export_trace.h"
#include "tools/latency/findings/findings.h"
#include "tools/latency/text/text.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

// What there is to write.
struct ReportMaterial {
  const Recording& recording;
  const Timeline& timeline;
  const LatencyResult& result;
};

namespace {

// A kind of file, by the end of its name; the longest that fits.
struct FileKind {
  const char* suffix;
  bool of_recordings;  // alone
  std::function<void(const ReportMaterial&, std::ostream&)> write;
};

const std::vector<FileKind>& FileKinds() {
  static const std::vector<FileKind> kinds = {
      {".trace.json", true,
       [](const ReportMaterial& m, std::ostream& out) { WriteTrace(m.recording, m.timeline, out); }},
      {".tokens.csv", true, [](const ReportMaterial& m, std::ostream& out) { WriteTokensCsv(m.timeline, out); }},
      {".json", false, [](const ReportMaterial& m, std::ostream& out) { out << JsonText(m.result) << '\n'; }},
      {".csv", false, [](const ReportMaterial& m, std::ostream& out) { WritePhasesCsv(m.result, out); }},
      {".html", false, [](const ReportMaterial& m, std::ostream& out) { WriteHtml(m.timeline, m.result, out); }},
      {".prom", false, [](const ReportMaterial& m, std::ostream& out) { out << PrometheusText(m.result); }},
  };
  return kinds;
}

const FileKind& KindOf(const std::string& path) {
  for (const FileKind& kind : FileKinds()) {
    const std::string suffix = kind.suffix;
    if (path.size() > suffix.size() && path.ends_with(suffix)) return kind;
  }
  std::string known;
  for (const FileKind& kind : FileKinds()) known += std::string(known.empty() ? "" : ", ") + kind.suffix;
  throw Error(FD_INVALID_ARGUMENT, "--save: '" + path + "' ends with none of " + known);
}

std::string Shown(const std::string& format, const LatencyResult& result, int columns) {
  std::ostringstream out;
  if (format == "json") out << JsonText(result) << '\n';
  if (format == "csv") WritePhasesCsv(result, out);
  if (format == "prometheus") out << PrometheusText(result);
  if (format == "text") out << FormatResult(result, static_cast<size_t>(columns));
  return out.str();
}

}  // namespace

void ReportFlags::AddTo(CLI::App* command) {
  AddToWithoutRecording(command);
  recorded_ = true;
  command
      ->add_option("--slo", slo_texts_,
                   "a limit, such as ttft:400ms,p90 (also tpot, itl, e2e); exit code 2 if it is not met; may be given "
                   "again")
      ->type_name("LIMIT")
      ->allow_extra_args(false);
  command->add_option("--worst", worst_, "tokens shown one by one, the slowest")
      ->transform(Number(0, 1000))
      ->type_name("N")
      ->capture_default_str();
}

void ReportFlags::AddToWithoutRecording(CLI::App* command) {
  recorded_ = false;
  CLI::Option* format = command->add_option("--format", format_, "on stdout: text, json, csv or prometheus")
                            ->check(CLI::IsMember({"text", "json", "csv", "prometheus"}))
                            ->type_name("HOW")
                            ->capture_default_str();
  command->add_flag("--json", json_, "the same as --format json")->excludes(format);
  command
      ->add_option("--save", save_,
                   "write a file; its name's end says what: .json, .csv, .tokens.csv, .prom, .html, .trace.json "
                   "(for ui.perfetto.dev); may be given again")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--columns", columns_, "width of the text (0: the terminal's)")
      ->transform(Number(0, 1000))
      ->type_name("N")
      ->capture_default_str();
}

void ReportFlags::Check() {
  if (json_) format_ = "json";
  for (const std::string& path : save_) {
    if (KindOf(path).of_recordings && !recorded_) {
      throw Error(FD_INVALID_ARGUMENT, "--save: '" + path + "': there is no recording here, which such a file shows");
    }
    CheckWritable("--save", path);
  }
  slos_.clear();
  for (const std::string& text : slo_texts_) {
    const absl::StatusOr<Slo> slo = ParseSlo("--slo", text);
    if (!slo.ok()) throw Error(FD_INVALID_ARGUMENT, std::string(slo.status().message()));
    const bool again =
        std::any_of(slos_.begin(), slos_.end(), [&](const Slo& other) { return other.text == slo->text; });
    if (again) throw Error(FD_INVALID_ARGUMENT, "--slo: '" + text + "' is there twice");
    slos_.push_back(*slo);
  }
}

void ReportFlags::Report(Recording recording, LatencyResult base) const {
  const Timeline timeline = BuildTimeline(&recording);
  LatencyResult result = Analyze(recording, timeline, worst_);
  result.command = std::move(base.command);
  result.provenance = recording.provenance;
  result.engine = recording.engine;
  result.recording_cost = std::move(base.recording_cost);
  result.interrupted = base.interrupted;
  result.achieved.insert(result.achieved.end(), base.achieved.begin(), base.achieved.end());
  result.warnings.insert(result.warnings.end(), base.warnings.begin(), base.warnings.end());
  result.requests = MeasureRequests(recording);
  result.slo = JudgeSlos(slos_, result.requests, SilentAtEndNs(FindSilences(recording, timeline)));
  result.findings = FindFaults(recording, timeline);
  Deliver({recording, timeline, result});
  const bool met = std::all_of(result.slo.begin(), result.slo.end(), [](const SloVerdict& slo) { return slo.met; });
  if (!met) throw ExitCode(ExitCode::kVerdictNo);
}

void ReportFlags::ReportFigures(const LatencyResult& result) const { Deliver({Recording(), Timeline(), result}); }

// What was measured must not go with a full disk or a reader that has left: files come before stdout, whose end may be
// the process's, and none of them keeps the others from being tried.
void ReportFlags::Deliver(const ReportMaterial& material) const {
  std::vector<std::string> failures;
  const auto attempt = [&failures](const std::function<void()>& deliver) {
    try {
      deliver();
    } catch (const std::exception& error) {
      failures.push_back(error.what());
    }
  };
  for (const std::string& path : save_) {
    attempt([&] { WriteFile("--save", path, [&](std::ostream& out) { KindOf(path).write(material, out); }); });
  }
  attempt([&] { WriteOut(Shown(format_, material.result, columns_ > 0 ? columns_ : TerminalColumns())); });
  if (!failures.empty()) throw Error(FD_UNAVAILABLE, absl::StrJoin(failures, "; "));
}

}  // namespace fastdecode
