#include "tools/latency/export/export_prometheus.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace fastdecode {

namespace {

using Labels = std::vector<std::pair<const char*, std::string>>;

constexpr std::pair<const char*, double> kQuantiles[] = {{"0.5", 0.5}, {"0.9", 0.9}, {"0.99", 0.99}, {"0.999", 0.999}};

double Seconds(double ns) { return ns * 1e-9; }

// Writes one metric after the other: its HELP and TYPE, then its samples.
class Exposition {
 public:
  // Begins a metric; `name` without the prefix that all have.
  void Begin(const std::string& name, const char* type, const std::string& help) {
    name_ = "fastdecode_latency_" + name;
    text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
  }

  void Sample(const Labels& labels, double value, const char* suffix = "") {
    char number[40];
    std::snprintf(number, sizeof(number), std::isfinite(value) ? "%.12g" : "NaN", value);
    text_ += name_ + suffix + Braces(labels) + " " + number + "\n";
  }

  void Summary(Labels labels, const Distribution& ns) {
    Sample(labels, Seconds(ns.sum_ns()), "_sum");
    Sample(labels, static_cast<double>(ns.count()), "_count");
    labels.emplace_back("quantile", "");
    for (const auto& [name, share] : kQuantiles) {
      const std::optional<uint64_t> value = ns.Percentile(share);
      if (!value) continue;
      labels.back().second = name;
      Sample(labels, Seconds(static_cast<double>(*value)));
    }
  }

  std::string Take() { return std::move(text_); }

 private:
  static std::string Braces(const Labels& labels) {
    std::string out;
    for (const auto& [name, value] : labels) {
      out += out.empty() ? '{' : ',';
      out += name;
      out += "=\"" + Escaped(value) + "\"";
    }
    return out.empty() ? out : out + "}";
  }

  static std::string Escaped(const std::string& value) {
    std::string out;
    for (const char c : value) {
      if (c == '\n') {
        out += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
    return out;
  }

  std::string name_, text_;
};

// A single figure without labels.
void Gauge(const char* name, const char* help, double value, Exposition* out) {
  out->Begin(name, "gauge", help);
  out->Sample({}, value);
}

void AppendRecording(const LatencyResult& result, Exposition* out) {
  out->Begin("info", "gauge", "What was measured; always 1.");
  out->Sample({{"command", result.command}}, 1);
  Gauge("recording_seconds", "Length of the recording.",
        Seconds(static_cast<double>(result.end_ns) - static_cast<double>(result.start_ns)), out);
  Gauge("recording_lost_events", "Events overwritten before they were read.", static_cast<double>(result.lost_events),
        out);
  Gauge("recording_steps", "Whole steps in the recording.", static_cast<double>(result.steps), out);
  Gauge("recording_tokens", "Tokens of these.", static_cast<double>(result.tokens), out);
}

void AppendPhases(const LatencyResult& result, Exposition* out) {
  out->Begin("phase_seconds", "summary", "Durations of one kind.");
  for (const Phase& phase : result.phases) out->Summary({{"phase", phase.name}, {"where", phase.where}}, phase.ns);
}

void AppendTokens(const LatencyResult& result, Exposition* out) {
  const CriticalPath& path = result.critical_path;
  Gauge("token_seconds", "The mean token.", Seconds(path.token_ns), out);
  out->Begin("token_part_seconds", "gauge", "The parts of the mean token; they add up to it.");
  for (const CriticalPath::Part& part : path.parts) {
    out->Sample({{"part", PlaceName(part.place)}}, Seconds(part.mean_ns));
  }
  out->Sample({{"part", "residual"}}, Seconds(path.residual_ns));
}

void AppendRequests(const LatencyResult& result, Exposition* out) {
  const struct {
    const char* name;
    const char* help;
    Distribution RequestFigures::*ns;
  } metrics[] = {{"ttft_seconds", "Time to first token.", &RequestFigures::ttft_ns},
                 {"tpot_seconds", "Time per output token of a request, after its first.", &RequestFigures::tpot_ns},
                 {"itl_seconds", "Gaps between tokens.", &RequestFigures::itl_ns},
                 {"e2e_seconds", "From a request's start to its last token.", &RequestFigures::e2e_ns}};
  for (const auto& metric : metrics) {
    out->Begin(metric.name, "summary", metric.help);
    for (const RequestFigures& figures : result.requests) out->Summary({{"start", figures.start}}, figures.*metric.ns);
  }
  out->Begin("requests", "gauge", "Requests within the recording.");
  for (const RequestFigures& figures : result.requests) {
    out->Sample({{"start", figures.start}, {"outcome", "well"}}, static_cast<double>(figures.requests));
    out->Sample({{"start", figures.start}, {"outcome", "failed"}}, static_cast<double>(figures.failed));
    out->Sample({{"start", figures.start}, {"outcome", "unfinished"}}, static_cast<double>(figures.unfinished));
  }
}

void AppendBusy(const LatencyResult& result, Exposition* out) {
  out->Begin("busy_ratio", "gauge", "Share of the recording in which the S-Part, and the busiest home, worked.");
  out->Sample({{"part", "S-Part"}}, result.s_busy);
  out->Sample({{"part", "R-Part"}}, result.r_busy);
  out->Begin("bubble_seconds", "gauge", "Idle time by cause.");
  for (const Bubble& bubble : result.bubbles) {
    out->Sample({{"where", bubble.where}, {"cause", bubble.cause}}, Seconds(bubble.ns));
  }
}

void AppendHomes(const LatencyResult& result, Exposition* out) {
  const struct {
    const char* name;
    const char* help;
    double HomeFigures::*figure;
    double factor;
  } gauges[] = {
      {"home_busy_ratio", "Share of the recording in which the home worked.", &HomeFigures::busy_share, 1},
      {"home_waited_for_seconds", "Mean wait of a hop for this home alone.", &HomeFigures::waited_for_ns, 1e-9},
      {"home_last_ratio", "Share of the hops in which it was the last to reply.", &HomeFigures::last_share, 1},
      {"home_kv_ratio", "Share of the KV bytes that it attended to.", &HomeFigures::kv_share, 1},
      {"home_kv_bytes_per_second", "KV bytes over the time of its work.", &HomeFigures::gb_per_s, 1e9},
      {"home_least_round_trip_seconds", "Least of a hop without the home's work.", &HomeFigures::min_round_trip_ns,
       1e-9},
      {"home_clock_bound_seconds", "How far its clock may be from what was found.", &HomeFigures::clock_bound_ns, 1e-9},
  };
  out->Begin("home_hops", "gauge", "Hops to the home.");
  for (const HomeFigures& home : result.homes) out->Sample({{"home", home.name}}, static_cast<double>(home.hops));
  for (const auto& gauge : gauges) {
    out->Begin(gauge.name, "gauge", gauge.help);
    for (const HomeFigures& home : result.homes) out->Sample({{"home", home.name}}, home.*gauge.figure * gauge.factor);
  }
}

void AppendVerdicts(const LatencyResult& result, Exposition* out) {
  out->Begin("achieved_ratio", "gauge", "What was reached of what is possible.");
  for (const Achieved& achieved : result.achieved) {
    if (achieved.possible > 0) out->Sample({{"what", achieved.what}}, achieved.achieved / achieved.possible);
  }
  out->Begin("slo_met", "gauge", "1: the limit was kept.");
  for (const SloVerdict& verdict : result.slo) out->Sample({{"slo", verdict.text}}, verdict.met ? 1 : 0);
  Gauge("interrupted", "1: the machine took so much from the engine's threads that the figures show it.",
        result.interrupted ? 1 : 0, out);
  Gauge("findings", "How many things were found to be wrong.", static_cast<double>(result.findings.size()), out);
  // Two findings may differ in nothing that is a label here.
  std::map<std::array<std::string, 4>, double> cost_ns;
  for (const Finding& finding : result.findings) {
    cost_ns[{finding.phase, finding.kind, finding.home < 0 ? "" : std::to_string(finding.home),
             finding.layer < 0 ? "" : std::to_string(finding.layer)}] += finding.cost_ns;
  }
  out->Begin("finding_cost_seconds", "gauge", "What is wrong, and what it costs the mean token.");
  for (const auto& [key, ns] : cost_ns) {
    out->Sample({{"phase", key[0]}, {"kind", key[1]}, {"home", key[2]}, {"layer", key[3]}}, Seconds(ns));
  }
}

}  // namespace

std::string PrometheusText(const LatencyResult& result) {
  Exposition out;
  AppendRecording(result, &out);
  AppendPhases(result, &out);
  AppendTokens(result, &out);
  AppendRequests(result, &out);
  AppendBusy(result, &out);
  AppendHomes(result, &out);
  AppendVerdicts(result, &out);
  return out.Take();
}

}  // namespace fastdecode
