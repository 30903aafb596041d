// write_export FORMAT [SECONDS]: writes a made-up result, or what is made of a simulated recording, to stdout,
// for programs that others wrote to read.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "tests/tools/latency/made_up_result.h"
#include "tests/tools/latency/simulated_run.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/requests.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/export/export_html.h"
#include "tools/latency/export/export_json.h"
#include "tools/latency/export/export_prometheus.h"
#include "tools/latency/export/export_trace.h"

namespace fastdecode {
namespace {

Recording Simulated(double seconds) {
  SimulatedRun run;
  run.seconds = seconds;
  run.layers = 6;
  run.homes = 3;
  return Simulate(run);
}

// One array an event, so that a test can tell by itself what a trace has to show.
void WriteEvents(double seconds) {
  std::cout << "[";
  const char* separator = "";
  for (const fd_record_event& event : Simulated(seconds).events) {
    const uint64_t members[] = {event.kind,        event.start_ns, event.end_ns,  event.step,       event.layer,
                                event.micro_batch, event.id,       event.count,   event.prepare_ns, event.append_ns,
                                event.attend_ns,   event.merge_ns, event.wait_ns, event.home_end_ns};
    std::cout << separator << "[" << event.home;
    for (const uint64_t member : members) std::cout << "," << member;
    std::cout << "]";
    separator = ",\n";
  }
  std::cout << "]\n";
}

void WriteSimulatedTrace(double seconds) {
  const Recording recording = Simulated(seconds);
  WriteTrace(recording, BuildTimeline(recording), std::cout);
}

// With awkward texts wherever they can get in from outside.
void WriteReport(double seconds) {
  Recording recording = Simulated(seconds);
  const LatencyResult made_up = MadeUpResult();
  recording.provenance = made_up.provenance;
  for (nlohmann::json& home : recording.engine["homes"]) home["name"] = kAwkward;
  const Timeline timeline = BuildTimeline(recording);
  LatencyResult result = Analyze(recording, timeline, 3);
  result.command = made_up.command;
  result.recording_cost = made_up.recording_cost;
  result.requests = MeasureRequests(recording);
  result.slo = made_up.slo;
  result.achieved = made_up.achieved;
  result.findings = made_up.findings;
  result.interrupted = made_up.interrupted;
  result.warnings = made_up.warnings;
  WriteHtml(timeline, result, std::cout);
}

// Of something that was measured without a recording.
void WriteFigures() {
  const LatencyResult made_up = MadeUpResult();
  LatencyResult result;
  result.command = "kernel";
  result.provenance = made_up.provenance;
  result.phases = made_up.phases;
  result.achieved = made_up.achieved;
  WriteHtml(Timeline(), result, std::cout);
}

int Main(int argc, char** argv) {
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.2;
  const std::map<std::string, std::function<void()>> formats = {
      {"json", [] { std::cout << JsonText(MadeUpResult()); }},
      {"json-empty", [] { std::cout << JsonText(LatencyResult()); }},
      {"prometheus", [] { std::cout << PrometheusText(MadeUpResult()); }},
      {"prometheus-empty", [] { std::cout << PrometheusText(LatencyResult()); }},
      {"event-count", [&] { std::cout << Simulated(seconds).events.size(); }},
      {"events", [&] { WriteEvents(seconds); }},
      {"trace", [&] { WriteSimulatedTrace(seconds); }},
      {"html", [&] { WriteReport(seconds); }},
      {"html-figures", [] { WriteFigures(); }},
      {"html-empty", [] { WriteHtml(Timeline(), LatencyResult(), std::cout); }},
      {"trace-empty", [] { WriteTrace(Recording(), Timeline(), std::cout); }},
  };
  const auto format = formats.find(argc > 1 ? argv[1] : "");
  if (format == formats.end()) {
    std::fprintf(stderr, "usage: write_export FORMAT [SECONDS]; formats:");
    for (const auto& [name, write] : formats) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  format->second();
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Main(argc, argv); }
