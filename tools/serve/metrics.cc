#include "tools/serve/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

namespace fastdecode::serve {

namespace {

constexpr size_t kRoutesMax = 64;
constexpr std::string_view kOtherRoute = "other";

// Bounds in seconds. They have those that vLLM's users ask for, and finer ones below.
constexpr double kFirstTokenBounds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                        0.75,   1,     2.5,   5,     7.5,  10,   20,   40,   80,   160, 640,  2560};
constexpr double kTokenGapBounds[] = {0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015,
                                      0.025,  0.05,  0.075,  0.1,   0.15,  0.2,   0.3,    0.4,  0.5,
                                      0.75,   1,     2.5,    5,     7.5,   10,    20,     40,   80};
constexpr double kRequestBounds[] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5,  5,
                                     10,    15,    20,   30,   40,  50,  60,  120, 240, 480, 960, 1920, 7680};
constexpr double kTokenCountBounds[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                        2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
constexpr double kChoiceBounds[] = {1, 2, 5, 10, 20, 50, 100};

// By RequestOutcome::Finish.
constexpr std::string_view kFinishNames[] = {"stop", "length", "abort", "error"};
constexpr std::string_view kPhaseNames[] = {"prefill", "decode"};

struct Place {
  std::string_view name;
  uint64_t fd_step_times::*ns;
};
constexpr Place kPlaces[] = {{"s_part", &fd_step_times::s_ns},          {"wait", &fd_step_times::wait_ns},
                             {"home", &fd_step_times::home_ns},         {"wire", &fd_step_times::wire_ns},
                             {"boundary", &fd_step_times::boundary_ns}, {"sampling", &fd_step_times::sampling_ns}};

double InSeconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Since `then_ns`, or since the engine was ready where that has never been: no age exceeds the engine's.
double AgeSeconds(const fd_stats& stats, uint64_t then_ns) {
  const uint64_t since_ns = std::max(then_ns, stats.created_ns);
  return stats.now_ns > since_ns ? InSeconds(stats.now_ns - since_ns) : 0;
}

// Labels that are not empty, joined.
std::string Joined(const std::string& labels, std::string_view name, std::string_view value) {
  return (labels.empty() ? "" : labels + ",") + PrometheusLabel(name, value);
}

void AddKnown(double seconds, Histogram* histogram) {
  if (seconds >= 0) histogram->Add(seconds);
}

void AddTimes(const fd_step_times& times, fd_step_times* sum) {
  sum->steps += times.steps;
  sum->total_ns += times.total_ns;
  for (const Place& place : kPlaces) sum->*place.ns += times.*place.ns;
}

// One sample a home.
template <class Value>
void AppendByHome(const std::vector<fd_home_stats>& homes, Value value, PrometheusText* text) {
  for (const fd_home_stats& home : homes) {
    text->Add(PrometheusLabel("home", home.name == nullptr ? "" : home.name), value(home));
  }
}

void AppendHomes(const Metrics::Gauges& gauges, PrometheusText* text) {
  const std::vector<fd_home_stats>& homes = gauges.homes;
  text->Family("fastdecode_home_up", "gauge", "1 while the engine is connected to the home, else 0.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return uint64_t{home.up != 0 ? 1u : 0u}; }, text);
  text->Family("fastdecode_home_hops_total", "counter", "Hops that the home has answered.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return home.hops; }, text);
  text->Family("fastdecode_home_work_seconds_total", "counter",
               "Time that the home was at work on its hops, by its own clock.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return InSeconds(home.work_ns); }, text);
  text->Family("fastdecode_home_last_reply_age_seconds", "gauge",
               "Time since the engine saw the home's last reply, or since the engine was ready where there was none; "
               "it grows while there is nothing to do.");
  AppendByHome(
      homes, [&](const fd_home_stats& home) { return AgeSeconds(gauges.stats, home.last_reply_ns); }, text);
  text->Family("fastdecode_home_losses_total", "counter",
               "How often the home was lost, but for workers that were told to end and had no request left.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return home.losses; }, text);
  text->Family("fastdecode_home_kv_pages", "gauge", "KV pages of the home; 0 while it is not up.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return home.kv_pages; }, text);
  text->Family("fastdecode_home_kv_pages_used", "gauge", "KV pages of the home that sequences of this engine have.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return home.kv_pages_used; }, text);
  text->Family("fastdecode_home_kv_pages_cached", "gauge",
               "KV pages besides that only sequences have left which have ended; they go where pages are needed.");
  AppendByHome(
      homes, [](const fd_home_stats& home) { return home.kv_pages_cached; }, text);
}

void AppendPrefixCache(const Metrics::Gauges& gauges, PrometheusText* text) {
  text->Family("fastdecode_prefix_cache_queries_total", "counter",
               "Tokens of prompts that were looked up among what is kept of others.");
  text->Add("", gauges.stats.prefix_tokens);
  text->Family("fastdecode_prefix_cache_hits_total", "counter",
               "Those of them whose KV was found, by the home that had it.");
  AppendByHome(
      gauges.homes, [](const fd_home_stats& home) { return home.cached_tokens; }, text);
}

void AppendRecoveries(const Metrics::Gauges& gauges, PrometheusText* text) {
  text->Family("fastdecode_recoveries_total", "counter",
               "How often a sequence's home was lost, so that it is computed again elsewhere.");
  text->Add("", gauges.stats.recoveries);
  text->Family("fastdecode_recovered_total", "counter", "How often such a sequence was again where it had been.");
  text->Add("", gauges.stats.recovered);
  text->Family("fastdecode_recovery_seconds", "histogram",
               "From the loss of a sequence's home until all that was stored there is stored again.");
  text->Add("", gauges.recovery);
  text->Family("fastdecode_recovery_queue_seconds", "histogram", "The part of it until the sequence had a home again.");
  text->Add("", gauges.recovery_queue);
  text->Family("fastdecode_loss_detection_seconds", "histogram",
               "From a home's last sign of life, with something to do, until it was known to be lost.");
  text->Add("", gauges.loss_detection);
}

}  // namespace

Histogram ReadDurations(const fd_engine* engine, fd_duration what) {
  if (engine == nullptr) return Histogram(kRequestBounds);
  constexpr size_t kCount = std::size(kRequestBounds);
  std::array<uint64_t, kCount> bounds_ns, at_most;
  for (size_t i = 0; i < kCount; ++i) bounds_ns[i] = static_cast<uint64_t>(std::llround(kRequestBounds[i] * 1e9));
  uint64_t sum_ns = 0;
  const uint64_t count = fd_engine_durations(engine, what, bounds_ns.data(), kCount, at_most.data(), &sum_ns);
  return Histogram(kRequestBounds, at_most, count, InSeconds(sum_ns));
}

Metrics::Metrics(std::string model_name, std::string version)
    : model_(PrometheusLabel("model_name", model_name)),
      build_info_(PrometheusLabel("version", version)),
      ttft_(kFirstTokenBounds),
      itl_(kTokenGapBounds),
      per_output_token_(kTokenGapBounds),
      e2e_(kRequestBounds),
      queue_(kRequestBounds),
      prefill_(kRequestBounds),
      decode_(kRequestBounds),
      inference_(kRequestBounds),
      prompt_tokens_(kTokenCountBounds),
      generation_tokens_(kTokenCountBounds),
      longest_choice_(kTokenCountBounds),
      max_tokens_(kTokenCountBounds),
      choices_(kChoiceBounds) {}

void Metrics::OnFirstToken(double seconds) { AddKnown(seconds, &ttft_); }

void Metrics::OnTokens(uint64_t count, double gap_s) {
  if (gap_s >= 0) itl_.Add(gap_s, count);
}

void Metrics::OnOutcome(const RequestOutcome& outcome) {
  ++finished_[static_cast<size_t>(outcome.finish)];
  AddKnown(outcome.total_s, &e2e_);
  AddKnown(outcome.queue_s, &queue_);
  AddKnown(outcome.prefill_s, &prefill_);
  AddKnown(outcome.decode_s, &decode_);
  if (outcome.prefill_s >= 0) inference_.Add(outcome.prefill_s + std::max(outcome.decode_s, 0.0));
  AddKnown(outcome.per_output_token_s, &per_output_token_);
  prompt_tokens_.Add(static_cast<double>(outcome.prompt_tokens));
  generation_tokens_.Add(static_cast<double>(outcome.generated_tokens));
  const uint64_t longest = outcome.choices == 1 ? std::max(outcome.longest_choice_tokens, outcome.generated_tokens)
                                                : outcome.longest_choice_tokens;
  longest_choice_.Add(static_cast<double>(longest));
  if (outcome.max_tokens != 0) max_tokens_.Add(outcome.max_tokens);
  choices_.Add(outcome.choices);
}

void Metrics::OnStepTimes(const fd_request_times& times) {
  fd_request_times known = {};  // what the library has not filled in is 0
  std::memcpy(&known, &times, std::min<size_t>(times.struct_size, sizeof(known)));
  queue_ns_ += known.queue_ns;
  AddTimes(known.prefill, &step_times_[0]);
  AddTimes(known.decode, &step_times_[1]);
}

void Metrics::OnResponse(std::string_view route, int status, double seconds) {
  auto at = routes_.find(route);
  if (at == routes_.end()) {
    if (routes_.size() + 1 >= kRoutesMax) route = kOtherRoute;
    at = routes_.emplace(std::string(route), Route{}).first;
  }
  ++at->second.responses[status];
  ++at->second.count;
  at->second.seconds += std::max(seconds, 0.0);
}

std::string Metrics::Text(const Gauges& gauges) const {
  PrometheusText text;
  AppendVllmEngine(gauges, &text);
  AppendVllmRequests(&text);
  AppendServer(gauges, &text);
  AppendHomes(gauges, &text);
  AppendPrefixCache(gauges, &text);
  AppendRecoveries(gauges, &text);
  AppendPlaces(gauges, &text);
  return text.Take();
}

void Metrics::AppendVllmEngine(const Gauges& gauges, PrometheusText* text) const {
  const fd_stats& stats = gauges.stats;
  text->Family("vllm:num_requests_running", "gauge", "Sequences that the engine computes now.");
  text->Add(model_, stats.choices_running);
  text->Family("vllm:num_requests_waiting", "gauge", "Sequences that the engine has and that are in no step yet.");
  text->Add(model_, stats.choices_waiting);
  text->Family("vllm:num_requests_waiting_by_reason", "gauge",
               "The same by reason: capacity is the only one here, because nothing is deferred.");
  text->Add(Joined(model_, "reason", "capacity"), stats.choices_waiting);
  text->Add(Joined(model_, "reason", "deferred"), uint64_t{0});
  text->Family(
      "vllm:kv_cache_usage_perc", "gauge",
      "Share of the KV pages that are used: 1 is all of them. What is kept of sequences which have ended is not "
      "counted, as it goes where pages are needed.");
  text->Add(model_, stats.kv_pages == 0 ? 0.0
                                        : static_cast<double>(std::min(stats.kv_pages_used, stats.kv_pages)) /
                                              static_cast<double>(stats.kv_pages));
  text->Family("vllm:prefix_cache_queries_total", "counter",
               "Tokens of prompts that were looked up among what is kept of others.");
  text->Add(model_, stats.prefix_tokens);
  text->Family("vllm:prefix_cache_hits_total", "counter", "Those of them whose KV was found.");
  text->Add(model_, stats.cached_tokens);
  text->Family("vllm:num_preemptions_total", "counter", "Sequences whose KV went to make room for others.");
  text->Add(model_, stats.preemptions);
  text->Family("vllm:prompt_tokens_total", "counter",
               "Prompt tokens of the requests that the engine has accepted, once for all answers to a prompt.");
  text->Add(model_, stats.prompt_tokens);
  text->Family("vllm:generation_tokens_total", "counter", "Generated tokens.");
  text->Add(model_, stats.generated_tokens);
  text->Family("vllm:iteration_tokens_total", "histogram",
               "Tokens that the engine's steps computed. Their sum and the number of steps are known, and not how they "
               "are distributed: +Inf is the only bucket.");
  text->Add(Joined(model_, "le", "+Inf"), stats.steps, "_bucket");
  text->Add(model_, stats.rows, "_sum");
  text->Add(model_, stats.steps, "_count");
  text->Family("vllm:admission_rejections_total", "counter", "Requests that were refused, by the limit of the queue.");
  text->Add(Joined(model_, "reason", "max_num_queued_reqs"), gauges.admission.refused_requests);
  text->Add(Joined(model_, "reason", "max_num_queued_tokens"), gauges.admission.refused_tokens);
}

void Metrics::AppendVllmRequests(PrometheusText* text) const {
  text->Family("vllm:request_success_total", "counter",
               "Requests by how they ended, each counted once however many answers it asks for.");
  for (size_t i = 0; i < finished_.size(); ++i)
    text->Add(Joined(model_, "finished_reason", kFinishNames[i]), finished_[i]);
  const struct {
    std::string_view name;
    const Histogram& histogram;
    std::string_view help;
  } histograms[] = {
      {"time_to_first_token_seconds", ttft_, "From a request's arrival to its first token."},
      {"inter_token_latency_seconds", itl_, "From one token of an answer to the next."},
      {"request_time_per_output_token_seconds", per_output_token_, "Mean time between the tokens of a request."},
      {"e2e_request_latency_seconds", e2e_, "From a request's arrival to its end."},
      {"request_queue_time_seconds", queue_, "Time until a request was in its first step."},
      {"request_prefill_time_seconds", prefill_, "From a request's first step to its first token."},
      {"request_decode_time_seconds", decode_, "From a request's first token to its last one."},
      {"request_inference_time_seconds", inference_, "From a request's first step to its last token."},
      {"request_prompt_tokens", prompt_tokens_, "Prompt tokens of a request."},
      {"request_generation_tokens", generation_tokens_, "Generated tokens of a request."},
      {"request_max_num_generation_tokens", longest_choice_, "Generated tokens of a request's longest answer."},
      {"request_params_max_tokens", max_tokens_, "What requests ask for as max_tokens."},
      {"request_params_n", choices_, "What requests ask for as n."},
  };
  for (const auto& [name, histogram, help] : histograms) {
    text->Family("vllm:" + std::string(name), "histogram", help);
    text->Add(model_, histogram);
  }
}

void Metrics::AppendServer(const Gauges& gauges, PrometheusText* text) const {
  text->Family("fastdecode_build_info", "gauge", "1; the label says which version this is.");
  text->Add(build_info_, uint64_t{1});
  text->Family("fastdecode_ready", "gauge", "1 while a request would be taken, else 0.");
  text->Add("", uint64_t{gauges.ready ? 1u : 0u});
  text->Family("fastdecode_http_responses_total", "counter", "Responses by route and status.");
  for (const auto& [name, route] : routes_) {
    for (const auto& [status, count] : route.responses) {
      text->Add(Joined(PrometheusLabel("route", name), "code", std::to_string(status)), count);
    }
  }
  text->Family("fastdecode_http_request_duration_seconds", "summary",
               "From a request's head to the last byte of its answer, by route.");
  for (const auto& [name, route] : routes_) {
    text->Add(PrometheusLabel("route", name), route.seconds, "_sum");
    text->Add(PrometheusLabel("route", name), route.count, "_count");
  }
  text->Family("fastdecode_connections", "gauge", "Open connections.");
  text->Add("", gauges.connections);
  text->Family("fastdecode_streams", "gauge", "Streams that are being answered.");
  text->Add("", gauges.streams);
  text->Family("fastdecode_waiting_requests", "gauge", "Requests that wait for a first token.");
  text->Add("", gauges.admission.requests);
  text->Family("fastdecode_waiting_prompt_tokens", "gauge",
               "Prompt tokens of the requests that wait for a first token.");
  text->Add("", gauges.admission.tokens);
  text->Family("fastdecode_refused_connections_total", "counter",
               "Connections that were refused, since there were as many as the limit allows.");
  text->Add("", gauges.refused_connections);
  text->Family("fastdecode_refused_requests_total", "counter",
               "Requests that were refused, by the limit of the queue.");
  text->Add(PrometheusLabel("limit", "requests"), gauges.admission.refused_requests);
  text->Add(PrometheusLabel("limit", "tokens"), gauges.admission.refused_tokens);
  text->Family("fastdecode_slow_clients_total", "counter",
               "Requests that were ended because their client did not read.");
  text->Add("", slow_clients_);
  text->Family("fastdecode_clients_gone_total", "counter", "Requests whose client went away before their end.");
  text->Add("", clients_gone_);
  text->Family("fastdecode_access_log_dropped_total", "counter", "Lines that the access log could not write in time.");
  text->Add("", gauges.access_log_dropped);
  text->Family("fastdecode_front_cpu_seconds_total", "counter", "CPU time of the server's own threads.");
  text->Add("", gauges.front_cpu_s);
}

void Metrics::AppendPlaces(const Gauges& gauges, PrometheusText* text) const {
  const fd_stats& stats = gauges.stats;
  text->Family("fastdecode_steps_total", "counter", "Steps of the engine.");
  text->Add("", stats.steps);
  text->Family("fastdecode_last_step_age_seconds", "gauge",
               "Time since a step ended last, or since the engine was ready where none has; it grows while there is "
               "nothing to do.");
  text->Add("", AgeSeconds(stats, stats.last_step_ns));
  text->Family("fastdecode_spart_busy_seconds_total", "counter", "Time in stages of the S-Part.");
  text->Add("", InSeconds(stats.s_busy_ns));
  text->Family("fastdecode_queue_seconds_total", "counter",
               "Time that sequences which have ended were in no step: before their first one, preempted, or with their "
               "home lost.");
  text->Add("", InSeconds(queue_ns_));
  text->Family("fastdecode_place_seconds_total", "counter",
               "Where the time of the steps of sequences which have ended went; the places of a phase add up to it.");
  for (size_t phase = 0; phase < step_times_.size(); ++phase) {
    for (const Place& place : kPlaces) {
      text->Add(Joined(PrometheusLabel("phase", kPhaseNames[phase]), "place", place.name),
                InSeconds(step_times_[phase].*place.ns));
    }
  }
  text->Family("fastdecode_place_steps_total", "counter", "Steps that these times are of, counted for each sequence.");
  for (size_t phase = 0; phase < step_times_.size(); ++phase) {
    text->Add(PrometheusLabel("phase", kPhaseNames[phase]), step_times_[phase].steps);
  }
}

}  // namespace fastdecode::serve
