#ifndef FASTDECODE_TOOLS_SERVE_METRICS_H_
#define FASTDECODE_TOOLS_SERVE_METRICS_H_

#include <fastdecode/fastdecode.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/admission.h"
#include "tools/serve/prometheus_text.h"

namespace fastdecode::serve {

// How a request for a completion ended: it counts once, however many prompts and choices it has.
struct RequestOutcome {
  enum class Finish { kStop, kLength, kAbort, kError };  // vLLM's finished_reason
  Finish finish = Finish::kStop;
  uint64_t prompt_tokens = 0, generated_tokens = 0;  // of all its prompts and choices
  uint64_t longest_choice_tokens = 0;                // generated ones; may be left 0 where there is one choice
  uint32_t max_tokens = 0;                           // 0: the request said nothing, and nothing is counted
  uint32_t choices = 1;                              // n
  // Seconds; below 0: it did not get so far, and nothing is counted.
  double queue_s = -1, prefill_s = -1, decode_s = -1, total_s = -1, per_output_token_s = -1;
};

// How long the engine has taken for something, since it was created. Null: for nothing.
Histogram ReadDurations(const fd_engine* engine, fd_duration what);

// What GET /metrics says, under vLLM's names with their meanings, and under `fastdecode_` what only this engine has:
// requests by status, refusals, connections, homes, and where the time of the tokens went.
//
// A series that was there once stays until the process ends. There from the start, with 0 where nothing has happened,
// are all but those of fastdecode_http_*, which begin with the first response of their route and code. All vllm: series
// have the label model_name, and the series of their other labels are there from the start, too.
// Owns: its counters. Thread: the I/O thread. Bounded: routes.
class Metrics {
 public:
  explicit Metrics(std::string model_name, std::string version = fd_version());

  void OnFirstToken(double seconds);            // since the request's head was read
  void OnTokens(uint64_t count, double gap_s);  // each of `count` tokens came `gap_s` after the one before it
  void OnOutcome(const RequestOutcome& outcome);
  void OnStepTimes(const fd_request_times& times);  // of a sequence that has finished
  // `seconds`: from its head's being read to the last byte of its answer. REQUIRES: `route` is one of the server's
  // routes, such as "/v1/models/{id}", or "other", and no path that a client made up; from the 64th on, all are
  // "other".
  void OnResponse(std::string_view route, int status, double seconds);
  void OnSlowClient() { ++slow_clients_; }
  void OnClientGone() { ++clients_gone_; }

  // What is read when the page is asked for.
  struct Gauges {
    fd_stats stats = {};
    std::vector<fd_home_stats> homes;
    Histogram recovery = ReadDurations(nullptr, FD_DURATION_RECOVERY);
    Histogram recovery_queue = ReadDurations(nullptr, FD_DURATION_RECOVERY_QUEUE);
    Histogram loss_detection = ReadDurations(nullptr, FD_DURATION_LOSS_DETECTION);
    Admission::Counts admission;
    uint64_t connections = 0, streams = 0;
    uint64_t refused_connections = 0;  // since there were as many as the limit allows
    uint64_t access_log_dropped = 0;
    bool ready = false;
    double front_cpu_s = 0;  // CPU time of the server's own threads
  };
  // The page, in Prometheus' text format. What it costs does not depend on how many requests there are or were.
  std::string Text(const Gauges& gauges) const;

 private:
  struct Route {
    std::map<int, uint64_t> responses;  // by status
    uint64_t count = 0;
    double seconds = 0;
  };

  void AppendVllmEngine(const Gauges& gauges, PrometheusText* text) const;
  void AppendVllmRequests(PrometheusText* text) const;
  void AppendServer(const Gauges& gauges, PrometheusText* text) const;
  void AppendPlaces(const Gauges& gauges, PrometheusText* text) const;

  const std::string model_;       // label model_name
  const std::string build_info_;  // label version
  Histogram ttft_, itl_, per_output_token_;
  Histogram e2e_, queue_, prefill_, decode_, inference_;
  Histogram prompt_tokens_, generation_tokens_, longest_choice_, max_tokens_, choices_;
  std::array<uint64_t, 4> finished_{};         // by RequestOutcome::Finish
  std::array<fd_step_times, 2> step_times_{};  // sums: prefill, decode
  uint64_t queue_ns_ = 0;                      // as fd_request_times has it
  std::map<std::string, Route, std::less<>> routes_;
  uint64_t slow_clients_ = 0, clients_gone_ = 0;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_METRICS_H_
