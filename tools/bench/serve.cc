// fastdecode bench serve: a load on a server, or on an engine of this process, and what its users feel.
#include "tools/bench/serve.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/bench/serve_flags.h"
#include "tools/bench/serve_outcome.h"
#include "tools/bench/serve_runs.h"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace fastdecode {

namespace serve_bench {

namespace {

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm local;
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

// The file is called what `vllm bench serve` calls it.
std::string DefaultFileName(const ReportOptions& options, const std::string& date) {
  const std::string model = options.model.substr(options.model.find_last_of('/') + 1);
  char rate[32] = "inf";
  if (options.rate.has_value()) std::snprintf(rate, sizeof(rate), "%g", *options.rate);
  const std::string concurrency =
      options.concurrency > 0 ? "-concurrency" + std::to_string(options.concurrency) : std::string();
  return "openai-" + std::string(rate) + "qps" + concurrency + "-" + model + "-" + date + ".json";
}

void Warn(const Report& report, const load::LoadRun& run) {
  if (report.failed > 0) {
    std::fprintf(stderr, "fastdecode: warning: %lld of %lld requests failed:\n%s",
                 static_cast<long long>(report.failed), static_cast<long long>(report.completed + report.failed),
                 FailureText(report).c_str());
  }
  if (!WasInterrupted()) return;
  const size_t begun = std::count_if(run.results.begin(), run.results.end(),
                                     [](const load::RequestResult& result) { return result.start_ns > 0; });
  const auto ended = static_cast<size_t>(report.completed + report.failed);
  std::fprintf(stderr, "fastdecode: warning: interrupted: %zu of %zu requests had ended; %zu in flight do not count\n",
               ended, run.results.size(), begun - ended);
}

// The keys of `vllm bench serve`, and ours under one of its own.
std::string JsonLine(const ServeOutcome& outcome, const Report& report, bool detailed, const std::string& date) {
  nlohmann::ordered_json json = ToJson(report, outcome.run, outcome.options, detailed, date);
  const nlohmann::ordered_json goodput = GoodputJson(outcome);
  if (!goodput.is_null()) json["fastdecode"] = goodput;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Deliver(const ServeFlags& flags, const ServeOutcome& outcome, const Report& report) {
  const std::string date = Date();
  const std::string line = JsonLine(outcome, report, flags.save_detailed, date);
  const std::string table = outcome.run.results.empty() ? "" : ToTable(report, outcome.run, outcome.options);
  WriteOut(flags.json ? line : table + GoodputText(outcome));
  if (flags.save_result || !flags.result_filename.empty()) {
    const std::string path =
        flags.result_filename.empty() ? DefaultFileName(outcome.options, date) : flags.result_filename;
    WriteFile("--save-result", path, [&](std::ostream& out) { out << line; });
  }
  if (!flags.html_filename.empty()) {
    WriteFile("--html", flags.html_filename, [&](std::ostream& out) { WriteCurves(outcome, out); });
  }
}

void BenchServe(ServeFlags& flags) {
  flags.Check();
  ServeOutcome outcome;
  outcome.options = flags.MakeReportOptions();
  const InterruptGuard guard;
  if (flags.interference.asked) {
    MeasureInterference(flags, &outcome);
  } else {
    const std::unique_ptr<Target> target = MakeTarget(flags, 0);
    outcome.where = target->Where();
    outcome.options.model = target->model();
    RunLoad(flags, *target, &outcome);
  }
  const Report report = MakeReport(outcome.run, outcome.options);
  Deliver(flags, outcome, report);
  Warn(report, outcome.run);
  ThrowIfInterrupted();
  if (outcome.failure.has_value()) throw Error(*outcome.failure);
  if (report.completed == 0 && report.failed > 0) {
    throw Error(FD_UNAVAILABLE, "no request succeeded " + outcome.where);
  }
}

}  // namespace

}  // namespace serve_bench

void AddBenchServe(CLI::App* bench) {
  CLI::App* command = bench->add_subcommand(
      "serve", "Put load on a server of the OpenAI completions API, or on a model: what users feel");
  auto flags = std::make_shared<serve_bench::ServeFlags>(command);
  command->callback([flags] { serve_bench::BenchServe(*flags); });
}

}  // namespace fastdecode
