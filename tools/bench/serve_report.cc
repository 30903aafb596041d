#include "tools/bench/serve_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace fastdecode::serve_bench {

using load::LoadRun;
using load::RequestResult;

namespace {

constexpr double kSecondsPerNs = 1e-9;
constexpr int kTableColumns = 50;

double Seconds(int64_t ns) { return static_cast<double>(ns) * kSecondsPerNs; }

// How long a request waited here: for its turn in an open loop, where it may be late, and in a closed loop, where all
// requests arrive at once, for others to end.
int64_t QueueNs(const RequestResult& result, const LoadRun& run, bool open) {
  return result.start_ns == 0 ? 0 : result.start_ns - (open ? result.intended_ns : run.start_ns);
}

// Each request's part of one metric, in seconds.
std::vector<double> Collect(const std::string& name, const LoadRun& run, bool open) {
  std::vector<double> values;
  for (const RequestResult& result : run.results) {
    if (!result.succeeded()) continue;
    if (name == "ttft") values.push_back(Seconds(result.ttft_ns));
    if (name == "tpot" && result.output_tokens > 1) values.push_back(result.ns_per_token() * kSecondsPerNs);
    if (name == "e2el") values.push_back(Seconds(result.latency_ns));
    if (name == "client_queue_time") values.push_back(Seconds(QueueNs(result, run, open)));
    if (name != "itl") continue;
    for (const int64_t ns : result.itl_ns) values.push_back(Seconds(ns));
  }
  return values;
}

void FindPeaks(const LoadRun& run, bool has_chunks, Report* report) {
  int64_t start_ns = INT64_MAX, end_ns = 0;
  for (const RequestResult& result : run.results) {
    if (!result.succeeded()) continue;
    start_ns = std::min(start_ns, result.start_ns);
    end_ns = std::max(end_ns, result.last_token_ns());
  }
  if (end_ns == 0) return;
  constexpr int64_t kSecondNs = 1'000'000'000;
  std::vector<int64_t> chunks((end_ns - start_ns) / kSecondNs + 1), requests(chunks.size());
  for (const RequestResult& result : run.results) {
    if (!result.succeeded()) continue;
    const int64_t since_ns = result.start_ns - start_ns;
    int64_t chunk_ns = result.intended_ns + result.ttft_ns - start_ns;
    if (has_chunks) ++chunks[chunk_ns / kSecondNs];
    for (const int64_t ns : result.itl_ns) ++chunks[(chunk_ns += ns) / kSecondNs];
    for (int64_t s = since_ns / kSecondNs; s <= (result.last_token_ns() - start_ns) / kSecondNs; ++s) ++requests[s];
  }
  report->chunks_per_s_max = static_cast<double>(*std::max_element(chunks.begin(), chunks.end()));
  report->requests_max = *std::max_element(requests.begin(), requests.end());
}

void CountFailures(const LoadRun& run, Report* report) {
  std::map<std::string, int64_t> counts;
  for (const RequestResult& result : run.results) {
    if (result.ended() && !result.error.empty()) ++counts[result.error];
  }
  report->failure_reasons.assign(counts.begin(), counts.end());
  std::stable_sort(report->failure_reasons.begin(), report->failure_reasons.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
}

// 99 or 99.9.
std::string PercentileText(double percentile) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", percentile);
  return text;
}

struct MetricNames {
  const char *name, *shown, *title;
};
constexpr MetricNames kShownNames[] = {{"ttft", "TTFT", "Time to First Token"},
                                       {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
                                       {"itl", "ITL", "Inter-token Latency"},
                                       {"e2el", "E2EL", "End-to-end Latency"},
                                       {"client_queue_time", "Client Queue Time", "Client-side Queueing"}};

// "=== Title ===", over the table's width.
std::string Rule(const std::string& title, char c) {
  const size_t free = kTableColumns - std::min<size_t>(title.size(), kTableColumns);
  return std::string(free / 2, c) + title + std::string(free - free / 2, c) + "\n";
}

std::string Row(const std::string& name, int64_t value) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-40s %-10lld\n", name.c_str(), static_cast<long long>(value));
  return line;
}

std::string Row(const std::string& name, double value) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-40s %-10.2f\n", name.c_str(), value);
  return line;
}

template <class Value, class Get>
nlohmann::ordered_json PerRequest(const LoadRun& run, Get get) {
  std::vector<Value> values;
  for (const RequestResult& result : run.results) {
    if (result.ended()) values.push_back(get(result));
  }
  return values;
}

void AddDetails(const LoadRun& run, nlohmann::ordered_json& json) {
  json["input_lens"] = PerRequest<int64_t>(run, [](const RequestResult& r) { return r.prompt_tokens; });
  json["output_lens"] =
      PerRequest<int64_t>(run, [](const RequestResult& r) { return r.succeeded() ? r.output_tokens : 0; });
  json["ttfts"] = PerRequest<double>(run, [](const RequestResult& r) { return Seconds(r.ttft_ns); });
  json["itls"] = PerRequest<std::vector<double>>(run, [](const RequestResult& r) {
    std::vector<double> seconds;
    for (const int64_t ns : r.itl_ns) seconds.push_back(Seconds(ns));
    return seconds;
  });
  json["start_times"] = PerRequest<double>(run, [](const RequestResult& r) { return Seconds(r.start_ns); });
  json["generated_texts"] = PerRequest<std::string>(run, [](const RequestResult& r) { return r.text; });
  json["errors"] = PerRequest<std::string>(run, [](const RequestResult& r) { return r.error; });
}

double PerSecond(double count, const Report& report) { return report.duration_s > 0 ? count / report.duration_s : 0; }

}  // namespace

Distribution Describe(std::vector<double> seconds, const std::vector<double>& percentiles) {
  Distribution out;
  out.percentiles_ms.resize(percentiles.size());
  if (seconds.empty()) return out;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double percentile) {
    const double rank = percentile / 100 * static_cast<double>(seconds.size() - 1);
    const auto below = static_cast<size_t>(rank);
    const size_t above = std::min(below + 1, seconds.size() - 1);
    return (seconds[below] + (seconds[above] - seconds[below]) * (rank - static_cast<double>(below))) * 1e3;
  };
  double sum = 0, squares = 0;
  for (const double value : seconds) sum += value;
  const double mean = sum / static_cast<double>(seconds.size());
  for (const double value : seconds) squares += (value - mean) * (value - mean);
  out.mean_ms = mean * 1e3;
  out.deviation_ms = std::sqrt(squares / static_cast<double>(seconds.size())) * 1e3;
  out.median_ms = at(50);
  std::transform(percentiles.begin(), percentiles.end(), out.percentiles_ms.begin(), at);
  return out;
}

Report MakeReport(const LoadRun& run, const ReportOptions& options) {
  Report report;
  int64_t good = 0;
  for (const RequestResult& result : run.results) {
    if (!result.ended()) continue;
    if (!result.succeeded()) {
      ++report.failed;
      continue;
    }
    ++report.completed;
    report.input_tokens += result.prompt_tokens;
    report.output_tokens += result.output_tokens;
    if (load::MeetsAll(result, options.limits)) ++good;
  }
  report.duration_s = Seconds(run.end_ns - run.start_ns);
  report.good_per_s = PerSecond(static_cast<double>(good), report);
  FindPeaks(run, options.stream, &report);
  CountFailures(run, &report);
  for (const std::string& name : kMetricNames) {
    if (std::find(options.metrics.begin(), options.metrics.end(), name) == options.metrics.end()) continue;
    report.metrics.emplace_back(name, Describe(Collect(name, run, options.rate.has_value()), options.percentiles));
  }
  return report;
}

nlohmann::ordered_json ToJson(const Report& report, const LoadRun& run, const ReportOptions& options, bool detailed,
                              const std::string& date) {
  nlohmann::ordered_json json;
  json["date"] = date;
  json["endpoint_type"] = json["backend"] = "openai";
  json["label"] = nullptr;
  json["model_id"] = options.model;
  json["tokenizer_id"] = nullptr;
  json["num_prompts"] = options.num_prompts;
  json["request_rate"] = "inf";
  if (options.rate.has_value()) json["request_rate"] = *options.rate;
  json["burstiness"] = options.burstiness.has_value() ? nlohmann::json(*options.burstiness) : nlohmann::json();
  json["max_concurrency"] = nullptr;
  if (options.concurrency > 0) json["max_concurrency"] = options.concurrency;
  json["duration"] = report.duration_s;
  json["completed"] = report.completed;
  json["failed"] = report.failed;
  json["total_input_tokens"] = report.input_tokens;
  json["total_output_tokens"] = report.output_tokens;
  json["request_throughput"] = PerSecond(static_cast<double>(report.completed), report);
  json["request_goodput"] = nullptr;
  if (!options.limits.empty()) json["request_goodput"] = report.good_per_s;
  json["output_throughput"] = PerSecond(static_cast<double>(report.output_tokens), report);
  json["total_token_throughput"] = PerSecond(static_cast<double>(report.input_tokens + report.output_tokens), report);
  if (detailed) AddDetails(run, json);
  json["latencies"] =
      PerRequest<double>(run, [](const RequestResult& r) { return r.succeeded() ? Seconds(r.latency_ns) : 0; });
  json["queue_times"] = PerRequest<double>(
      run, [&](const RequestResult& r) { return Seconds(QueueNs(r, run, options.rate.has_value())); });
  json["max_output_tokens_per_s"] = report.chunks_per_s_max;
  json["max_concurrent_requests"] = report.requests_max;
  json["rtfx"] = 0.0;  // of speech alone
  for (const auto& [name, distribution] : report.metrics) {
    json["mean_" + name + "_ms"] = distribution.mean_ms;
    json["median_" + name + "_ms"] = distribution.median_ms;
    json["std_" + name + "_ms"] = distribution.deviation_ms;
    for (size_t i = 0; i < options.percentiles.size(); ++i) {
      json["p" + PercentileText(options.percentiles[i]) + "_" + name + "_ms"] = distribution.percentiles_ms[i];
    }
  }
  return json;
}

std::string ToTable(const Report& report, const LoadRun& run, const ReportOptions& options) {
  std::string table = Rule(" Serving Benchmark Result ", '=');
  table += Row("Successful requests:", report.completed);
  table += Row("Failed requests:", report.failed);
  if (options.concurrency > 0) table += Row("Maximum request concurrency:", static_cast<int64_t>(options.concurrency));
  if (options.rate.has_value()) table += Row("Request rate configured (RPS):", *options.rate);
  table += Row("Benchmark duration (s):", report.duration_s);
  table += Row("Total input tokens:", report.input_tokens);
  table += Row("Total generated tokens:", report.output_tokens);
  table += Row("Request throughput (req/s):", PerSecond(static_cast<double>(report.completed), report));
  if (!options.limits.empty()) table += Row("Request goodput (req/s):", report.good_per_s);
  table += Row("Output token throughput (tok/s):", PerSecond(static_cast<double>(report.output_tokens), report));
  if (options.stream) table += Row("Peak output token throughput (tok/s):", report.chunks_per_s_max);
  table += Row("Peak concurrent requests:", static_cast<double>(report.requests_max));
  table += Row("Total token throughput (tok/s):",
               PerSecond(static_cast<double>(report.input_tokens + report.output_tokens), report));
  for (const auto& [name, distribution] : report.metrics) {
    const auto* shown = std::find_if(std::begin(kShownNames), std::end(kShownNames),
                                     [&, &metric = name](const MetricNames& names) { return names.name == metric; });
    table += Rule(shown->title, '-');
    const std::string unit = std::string(" ") + shown->shown + " (ms):";
    table += Row("Mean" + unit, distribution.mean_ms);
    table += Row("Median" + unit, distribution.median_ms);
    for (size_t i = 0; i < options.percentiles.size(); ++i) {
      table += Row("P" + PercentileText(options.percentiles[i]) + unit, distribution.percentiles_ms[i]);
    }
  }
  table += Rule("", '=');
  char line[160];
  std::snprintf(line, sizeof(line), "The client: %lld connections, %.2f CPU s on one thread",
                static_cast<long long>(run.connections), Seconds(run.cpu_ns));
  table += line;
  if (report.output_tokens > 0) {
    std::snprintf(line, sizeof(line), ", %.1f us a token",
                  static_cast<double>(run.cpu_ns) * 1e-3 / static_cast<double>(report.output_tokens));
    table += line;
  }
  return table + "\n";
}

std::string FailureText(const Report& report) {
  constexpr size_t kReasonsMax = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kReasonsMax, report.failure_reasons.size()); ++i) {
    const auto& [reason, count] = report.failure_reasons[i];
    text += "  " + std::to_string(count) + " x " + reason + "\n";
  }
  if (report.failure_reasons.size() > kReasonsMax) {
    text += "  and " + std::to_string(report.failure_reasons.size() - kReasonsMax) + " other reasons\n";
  }
  return text;
}

}  // namespace fastdecode::serve_bench
