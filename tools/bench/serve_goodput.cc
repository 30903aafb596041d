// What a load says of limits, as text and JSON.
#include <algorithm>
#include <cstdio>

#include "engine/bench/median.h"
#include "tools/bench/serve_outcome.h"

namespace fastdecode::serve_bench {

namespace {

using load::Attainment;
using load::LimitKind;
using load::RatePoint;

template <class... Values>
std::string Format(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

std::string LimitsText(const load::Limits& limits) {
  std::string text;
  for (const LimitKind kind : load::kLimitKinds) {
    if (limits[kind].has_value()) text += Format("%s%s:%g", text.empty() ? "" : " ", LimitName(kind), *limits[kind]);
  }
  return text;
}

// Shares of requests: all limits together, then each that there is.
std::string Shares(const Attainment& attainment, const load::Limits& limits) {
  std::string text = Format(" %8.4f", attainment.joint);
  for (const LimitKind kind : load::kLimitKinds) {
    if (limits[kind].has_value()) text += Format(" %8.4f", attainment.alone[static_cast<size_t>(kind)]);
  }
  return text;
}

std::string ShareHeadings(const load::Limits& limits) {
  std::string text = Format(" %8s", "all");
  for (const LimitKind kind : load::kLimitKinds) {
    if (limits[kind].has_value()) text += Format(" %8s", LimitName(kind));
  }
  return text;
}

const char* Verdict(const RatePoint& point) {
  if (point.interrupted) return "cut short";
  if (point.cut) return "missed, cut short";
  if (!point.reached) return "missed";
  return point.attainment.drained.value_or(true) ? "reached" : "reached, not steady";
}

std::string PointsText(const ServeOutcome& outcome) {
  const load::Limits& limits = outcome.options.limits;
  const std::string what = limits.empty() ? "succeeded" : "kept their limits (" + LimitsText(limits) + ")";
  std::string text = "\nShare of requests that " + what + ", by rate\n";
  text += Format("%10s %8s", "requests/s", "requests") + ShareHeadings(limits) +
          Format(" %8s %8s %8s\n", "2nd half", "good/s", "drain s");
  for (const RatePoint& point : outcome.points) {
    const Attainment& attainment = point.attainment;
    text += Format("%10.3f %8zu", point.rate, point.requests) + Shares(attainment, limits) +
            Format(" %8.4f %8.3f %8.2f  %s\n", attainment.second_half, attainment.good_per_s, attainment.drain_s,
                   Verdict(point));
  }
  if (const auto crossing = load::FindCrossing(AttainmentCurve(outcome.points), outcome.target)) {
    text += Format("The curve crosses %g %% at %.3f requests/s.\n", 100 * outcome.target, *crossing);
  }
  return text;
}

std::string ScaledText(const ServeOutcome& outcome) {
  const load::Limits& limits = outcome.options.limits;
  std::string text = "\nThe same run by how strict the limits are\n" + Format("%10s", "limits x") +
                     ShareHeadings(limits) + Format(" %8s\n", "good/s");
  for (const auto& [scale, attainment] : load::JudgeScaled(outcome.run, limits)) {
    text += Format("%10.2f", scale) + Shares(attainment, limits) + Format(" %8.3f\n", attainment.good_per_s);
  }
  return text;
}

std::string SearchText(const ServeOutcome& outcome) {
  std::string text;
  if (const std::optional<double> rate = outcome.MaxRate(); !rate.has_value()) {
    text = "\nThe search was interrupted before it had found a rate";
  } else if (*rate == 0) {
    text = "\nNo rate reached the target";
  } else {
    text = Format("\nHighest rate at which %g %% of the requests keep all limits: %.3f requests/s",
                  100 * outcome.target, *rate);
  }
  text += " (searches:";
  for (const load::RateSearchResult& search : outcome.searches) {
    text += Format(" %.3f%s", search.rate, search.complete ? "" : " so far");
  }
  return text + ")\n";
}

std::string InterferenceText(const ServeOutcome& outcome) {
  std::string text = "\nGaps between the tokens of running answers (ms), alone and with arriving prompts\n" +
                     Format("%8s %10s %10s %10s %10s %8s %12s\n", "chunk", "p50 alone", "p99 alone", "p50 with",
                            "p99 with", "prompts", "their TTFT");
  for (const InterferencePoint& point : outcome.interference) {
    text += Format("%8s %10.2f %10.2f %10.2f %10.2f %8zu %12.2f\n",
                   point.chunk.has_value() ? std::to_string(*point.chunk).c_str() : "as it is",
                   point.alone.percentiles_ms[0], point.alone.percentiles_ms[1], point.with_prompts.percentiles_ms[0],
                   point.with_prompts.percentiles_ms[1], point.prompts, point.prompt_ttft_ms);
  }
  return text;
}

nlohmann::ordered_json ToJson(const Attainment& attainment, const load::Limits& limits) {
  nlohmann::ordered_json json = {{"requests", attainment.requests}, {"attained", attainment.attained}};
  json["attainment"]["all"] = attainment.joint;
  for (const LimitKind kind : load::kLimitKinds) {
    if (limits[kind].has_value()) json["attainment"][LimitName(kind)] = attainment.alone[static_cast<size_t>(kind)];
  }
  json["second_half"] = attainment.second_half;
  json["good_rps"] = attainment.good_per_s;
  json["drain_s"] = attainment.drain_s;
  json["drained"] = nullptr;
  if (attainment.drained.has_value()) json["drained"] = *attainment.drained;
  return json;
}

nlohmann::ordered_json ToJson(const RatePoint& point, const load::Limits& limits) {
  nlohmann::ordered_json json = {
      {"request_rate", point.rate}, {"planned", point.requests}, {"cut", point.cut}, {"reached", point.reached}};
  json["interrupted"] = point.interrupted;
  json.update(ToJson(point.attainment, limits));
  return json;
}

nlohmann::ordered_json ToJson(const InterferencePoint& point) {
  nlohmann::ordered_json json;
  json["prefill_chunk"] = nullptr;
  if (point.chunk.has_value()) json["prefill_chunk"] = *point.chunk;
  for (const auto& [name, gaps, count] :
       {std::tuple<const char*, const Distribution*, size_t>("alone", &point.alone, point.gaps_alone),
        {"with_prompts", &point.with_prompts, point.gaps_with_prompts}}) {
    json[name] = {{"gaps", count},
                  {"mean_itl_ms", gaps->mean_ms},
                  {"median_itl_ms", gaps->percentiles_ms[0]},
                  {"p99_itl_ms", gaps->percentiles_ms[1]}};
  }
  json["prompts"] = point.prompts;
  json["median_prompt_ttft_ms"] = point.prompt_ttft_ms;
  return json;
}

}  // namespace

std::optional<double> ServeOutcome::MaxRate() const {
  std::vector<double> rates;
  for (const load::RateSearchResult& search : searches) {
    if (search.complete) rates.push_back(search.rate);
  }
  if (rates.empty()) return std::nullopt;
  return MedianOf(std::move(rates));
}

std::vector<std::pair<double, double>> AttainmentCurve(const std::vector<RatePoint>& points) {
  std::vector<std::pair<double, double>> curve;
  for (const RatePoint& point : points) {
    if (!point.cut) curve.emplace_back(point.rate, point.attainment.joint);
  }
  std::sort(curve.begin(), curve.end());
  return curve;
}

std::string GoodputText(const ServeOutcome& outcome) {
  std::string text;
  if (!outcome.options.limits.empty() && !outcome.run.results.empty()) {
    if (outcome.points.size() <= 1) {
      const Attainment attainment = load::Judge(outcome.run, outcome.options.limits);
      text += Format(
          "\n%zu of %zu requests kept their limits (%s): %.3f good requests/s until the last token; of the second half "
          "%.2f %%.\n",
          attainment.attained, attainment.requests, LimitsText(outcome.options.limits).c_str(), attainment.good_per_s,
          100 * attainment.second_half);
    }
    text += ScaledText(outcome);
  }
  if (outcome.points.size() > 1) text += PointsText(outcome);
  if (!outcome.searches.empty()) text += SearchText(outcome);
  if (!outcome.interference.empty()) text += InterferenceText(outcome);
  for (const std::string& note : outcome.notes) text += note + "\n";
  return text;
}

nlohmann::ordered_json GoodputJson(const ServeOutcome& outcome) {
  const load::Limits& limits = outcome.options.limits;
  nlohmann::ordered_json json;
  if (!limits.empty() && !outcome.run.results.empty()) {
    for (const LimitKind kind : load::kLimitKinds) {
      if (limits[kind].has_value()) json["limits_ms"][LimitName(kind)] = *limits[kind];
    }
    json["run"] = ToJson(load::Judge(outcome.run, limits), limits);
    json["slo_scale"] = nlohmann::ordered_json::array();
    for (const auto& [scale, attainment] : load::JudgeScaled(outcome.run, limits)) {
      nlohmann::ordered_json scaled = {{"scale", scale}};
      scaled.update(ToJson(attainment, limits));
      json["slo_scale"].push_back(scaled);
    }
  }
  if (outcome.points.size() > 1 || !outcome.searches.empty()) {
    for (const RatePoint& point : outcome.points) json["rates"].push_back(ToJson(point, limits));
  }
  if (!outcome.searches.empty()) {
    json["max_rate"]["target"] = outcome.target;
    json["max_rate"]["request_rate"] = nullptr;
    if (const std::optional<double> rate = outcome.MaxRate()) json["max_rate"]["request_rate"] = *rate;
    for (const load::RateSearchResult& search : outcome.searches) {
      json["max_rate"]["searches"].push_back({{"request_rate", search.rate}, {"complete", search.complete}});
    }
  }
  for (const InterferencePoint& point : outcome.interference) json["interference"].push_back(ToJson(point));
  if (!json.is_null() && !outcome.notes.empty()) json["notes"] = outcome.notes;
  return json;
}

}  // namespace fastdecode::serve_bench
