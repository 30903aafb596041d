#ifndef FASTDECODE_TOOLS_BENCH_SERVE_REPORT_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/load/goodput.h"
#include "tools/load/result.h"

namespace fastdecode::serve_bench {

// What is asked of a report. Names and keys are those of `vllm bench serve`, so that what reads its files reads ours.
struct ReportOptions {
  std::string model;
  int64_t num_prompts = 0;
  std::optional<double> rate;        // open loop: requests a second
  std::optional<double> burstiness;  // the shape of its gamma-distributed gaps; nothing: they are of another kind
  int concurrency = 1;               // the most that are in flight; 0: no limit
  bool stream = true;                // else nothing is known of single tokens
  std::vector<std::string> metrics;  // of kMetricNames: those with mean, median, deviation and percentiles
  std::vector<double> percentiles;   // 0 to 100
  load::Limits limits;               // of a good request; empty: goodput is not asked for
};

inline const std::vector<std::string> kMetricNames = {"ttft", "tpot", "itl", "e2el", "client_queue_time"};

// What durations in milliseconds come to; all figures are 0 where there are none.
struct Distribution {
  double mean_ms = 0, median_ms = 0;
  double deviation_ms = 0;             // standard, of the whole population
  std::vector<double> percentiles_ms;  // in the order that they were asked for
};
// Between the two nearest ranks a percentile is interpolated linearly.
Distribution Describe(std::vector<double> seconds, const std::vector<double>& percentiles);

struct Report {
  int64_t completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;  // of those that completed
  double duration_s = 0;
  double good_per_s = 0;  // of requests, if goodput was asked for
  // The most chunks that came within one second, and the most requests that were in flight at some time of one second.
  // Seconds are counted from the start of the first request that completed.
  double chunks_per_s_max = 0;
  int64_t requests_max = 0;
  std::vector<std::pair<std::string, Distribution>> metrics;     // in the order of kMetricNames
  std::vector<std::pair<std::string, int64_t>> failure_reasons;  // with how often, the most frequent first
};
Report MakeReport(const load::LoadRun& run, const ReportOptions& options);

// The result as vllm writes it to a file; with `detailed`, also what it has of each request. Floats are seconds there.
nlohmann::ordered_json ToJson(const Report& report, const load::LoadRun& run, const ReportOptions& options,
                              bool detailed, const std::string& date);
std::string ToTable(const Report& report, const load::LoadRun& run, const ReportOptions& options);
// The most frequent reasons, a line each; empty if nothing failed.
std::string FailureText(const Report& report);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_REPORT_H_
