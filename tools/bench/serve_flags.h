#ifndef FASTDECODE_TOOLS_BENCH_SERVE_FLAGS_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_FLAGS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/bench/serve_prompts.h"
#include "tools/bench/serve_report.h"
#include "tools/engine_flags.h"

namespace fastdecode::serve_bench {

// What prompts do to answers that are being written: ITL of running decodes with and without arriving prompts.
struct InterferenceFlags {
  bool asked = false;
  int decodes = 8;
  int prompt_len = 1024;
  std::vector<int> chunks;  // of an engine in this process; empty: as it is
};

struct ServeFlags {
  explicit ServeFlags(CLI::App* command);

  std::string url = "http://127.0.0.1:8000";
  std::string engine_model;  // -m: an engine in this process instead of a server
  std::string model, api_key_file, vocab;
  double timeout_s = 600;

  PromptOptions prompts;
  int num_prompts = 1000, concurrency = 1, warmup = 0;
  std::vector<double> rates;  // requests a second, of an open loop each
  bool no_stream = false;

  bool find_max_rate = false;
  double rate_start = 0.25, precision = 0.05, attainment = 0.9;
  int seeds = 3;
  InterferenceFlags interference;

  bool json = false, save_result = false, save_detailed = false;
  std::string percentile_metrics;
  std::vector<double> percentiles = {99};
  std::vector<std::string> goodput;
  std::string result_filename, html_filename;

  // The engine's, for -m.
  EngineFlags engine;

  // What the options leave open, and whether they go together. Throws Error naming the option.
  void Check();
  bool is_open() const { return !rates.empty() || find_max_rate || !prompts.trace.empty(); }
  // How many requests to make up for a run; 0: as many as the file or the trace has.
  size_t RequestCount() const;
  // In flight at most; 0: no limit.
  int Concurrency() const;
  // What a report is to have, but for the target's and the run's own.
  ReportOptions MakeReportOptions() const;

 private:
  void AddServerOptions(CLI::App* command);
  void AddPromptOptions(CLI::App* command);
  void AddRequestOptions(CLI::App* command);
  void AddPaceOptions(CLI::App* command);
  void AddSearchOptions(CLI::App* command);
  void AddReportOptions(CLI::App* command);
  std::vector<std::string> Metrics() const;

  // An option that has no effect together with another, and what to do instead.
  struct Idle {
    CLI::Option* option;
    const char* advice;
  };
  void RefuseIdle(const std::vector<Idle>& options) const;
  std::vector<Idle> idle_in_process_, idle_in_interference_, idle_without_interference_, idle_without_search_;

  CLI::Option *num_prompts_option_ = nullptr, *concurrency_option_ = nullptr, *input_len_option_ = nullptr,
              *output_len_option_ = nullptr, *arrivals_option_ = nullptr, *burstiness_option_ = nullptr,
              *scale_option_ = nullptr;
};

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_FLAGS_H_
