#include "tools/latency/export/export_json.h"

#include <cmath>

#include "numa/check.h"

namespace fastdecode {

namespace {

using nlohmann::json;

json Figure(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

// A home or a layer: -1 is none.
json Index(int index) { return index < 0 ? json(nullptr) : json(index); }

json PercentileJson(const Distribution& ns, double share) {
  const std::optional<uint64_t> value = ns.Percentile(share);
  return value ? json(*value) : json(nullptr);
}

json AtLeastJson(const Distribution& ns) {
  const auto at_least = [&ns](double share) {
    const std::optional<uint64_t> value = ns.AtLeast(share);
    return value ? json(*value) : json(nullptr);
  };
  return {{"p50", at_least(0.5)}, {"p90", at_least(0.9)}, {"p99", at_least(0.99)}, {"p999", at_least(0.999)}};
}

json UncertaintiesJson(const Uncertainties& all) {
  const auto of = [](const Uncertainty& one) -> json {
    return {{"error_ns", Figure(one.error_ns)}, {"freedom", Figure(one.freedom)}};
  };
  return {{"mean", of(all.mean)}, {"p50", of(all.p50)}, {"p90", of(all.p90)}, {"p99", of(all.p99)}};
}

json DistributionJson(const Distribution& ns) {
  const bool some = !ns.empty();
  return {{"count", ns.count()},
          {"unfinished", ns.unfinished()},
          {"min_ns", some ? json(ns.min_ns()) : json(nullptr)},
          {"max_ns", some ? json(ns.max_ns()) : json(nullptr)},
          {"mean_ns", ns.mean_known() ? Figure(ns.mean_ns()) : json(nullptr)},
          {"stdev_ns", some ? Figure(ns.stdev_ns()) : json(nullptr)},
          {"p50_ns", PercentileJson(ns, 0.5)},
          {"p90_ns", PercentileJson(ns, 0.9)},
          {"p99_ns", PercentileJson(ns, 0.99)},
          {"p999_ns", PercentileJson(ns, 0.999)},
          {"at_least_ns", AtLeastJson(ns)},
          {"uncertainty", UncertaintiesJson(ns.uncertainties())},
          {"samples_ns", ThinSamples(ns.sorted_ns(), kSavedSamplesMax)},
          {"unfinished_ns", ThinSamples(ns.unfinished_ns(), kSavedSamplesMax)}};
}

json PhaseJson(const Phase& phase) {
  return {{"name", phase.name},
          {"where", phase.where},
          {"distribution", DistributionJson(phase.ns)},
          {"share", Figure(phase.share)},
          {"note", phase.note}};
}

json CriticalPathJson(const CriticalPath& path) {
  json parts = json::array();
  for (const CriticalPath::Part& part : path.parts) {
    parts.push_back({{"place", PlaceName(part.place)},
                     {"mean_ns", Figure(part.mean_ns)},
                     {"share", Figure(part.share)},
                     {"home", Index(part.home)}});
  }
  return {{"tokens", path.tokens},
          {"token_ns", Figure(path.token_ns)},
          {"parts", parts},
          {"residual_ns", Figure(path.residual_ns)},
          {"wire_uncertain_ns", Figure(path.wire_uncertain_ns)}};
}

json BubbleJson(const Bubble& bubble) {
  return {{"where", bubble.where},
          {"cause", bubble.cause},
          {"total_ns", Figure(bubble.ns)},
          {"share", Figure(bubble.share)}};
}

json HomeJson(const HomeFigures& home) {
  return {{"home", Index(home.home)},
          {"name", home.name},
          {"hops", home.hops},
          {"last_share", Figure(home.last_share)},
          {"waited_for_ns", Figure(home.waited_for_ns)},
          {"busy_share", Figure(home.busy_share)},
          {"kv_share", Figure(home.kv_share)},
          {"gb_per_s", Figure(home.gb_per_s)},
          {"min_round_trip_ns", Figure(home.min_round_trip_ns)},
          {"clock_offset_ns", Figure(home.clock_offset_ns)},
          {"clock_drift_ppm", Figure(home.clock_drift_ppm)},
          {"clock_bound_ns", Figure(home.clock_bound_ns)}};
}

json AchievedJson(const Achieved& achieved) {
  return {{"what", achieved.what},
          {"achieved", Figure(achieved.achieved)},
          {"possible", achieved.possible == 0 ? json(nullptr) : Figure(achieved.possible)},
          {"unit", achieved.unit},
          {"possible_by", achieved.possible_by},
          {"note", achieved.note}};
}

json StoryJson(const TokenStory& story) {
  json places = json::object();
  for (int place = 0; place < kPlaces; ++place) {
    places[PlaceName(static_cast<Place>(place))] = story.place_ns[static_cast<size_t>(place)];
  }
  json longest = json::array();
  for (const TokenStory::Longest& span : story.longest) {
    longest.push_back({{"place", PlaceName(span.place)},
                       {"layer", Index(span.layer)},
                       {"home", Index(span.home)},
                       {"start_ns", span.start_ns},
                       {"ns", span.ns}});
  }
  return {{"id", story.id},
          {"index", story.index},
          {"step", story.step},
          {"micro_batch", story.micro_batch},
          {"start_ns", story.start_ns},
          {"end_ns", story.end_ns},
          {"place_ns", places},
          {"longest", longest}};
}

json FindingJson(const Finding& finding) {
  return {{"phase", finding.phase},
          {"home", Index(finding.home)},
          {"layer", Index(finding.layer)},
          {"kind", finding.kind},
          {"amount", Figure(finding.amount)},
          {"unit", finding.unit},
          {"share", Figure(finding.share)},
          {"period_ns", Figure(finding.period_ns)},
          {"cost_ns", Figure(finding.cost_ns)},
          {"line", finding.line}};
}

json RequestsJson(const RequestFigures& figures) {
  return {{"start", figures.start},
          {"requests", figures.requests},
          {"failed", figures.failed},
          {"unfinished", figures.unfinished},
          {"ttft", DistributionJson(figures.ttft_ns)},
          {"tpot", DistributionJson(figures.tpot_ns)},
          {"itl", DistributionJson(figures.itl_ns)},
          {"e2e", DistributionJson(figures.e2e_ns)}};
}

json SloJson(const SloVerdict& verdict) {
  return {{"text", verdict.text},
          {"limit_ns", Figure(verdict.limit_ns)},
          {"share", Figure(verdict.share)},
          {"got_ns", verdict.got_ns ? Figure(*verdict.got_ns) : json(nullptr)},
          {"met", verdict.met},
          {"at_least", verdict.at_least}};
}

template <typename T>
json Each(const std::vector<T>& values, json (*to_json)(const T&)) {
  json out = json::array();
  for (const T& value : values) out.push_back(to_json(value));
  return out;
}

}  // namespace

std::vector<uint64_t> ThinSamples(const std::vector<uint64_t>& sorted, size_t most) {
  FD_CHECK(most > 0, "no sample is no thinning");
  if (sorted.size() <= most) return sorted;
  std::vector<uint64_t> kept(most);
  for (size_t i = 0; i < most; ++i) kept[i] = sorted[(2 * i + 1) * sorted.size() / (2 * most)];
  return kept;
}

nlohmann::json ToJson(const LatencyResult& result) {
  return {{"schema_version", LatencyResult::kSchemaVersion},
          {"command", result.command},
          {"provenance", result.provenance},
          {"engine", result.engine},
          {"recording_cost", result.recording_cost},
          {"recording",
           {{"start_ns", result.start_ns},
            {"end_ns", result.end_ns},
            {"events", result.events},
            {"lost_events", result.lost_events},
            {"steps", result.steps},
            {"tokens", result.tokens}}},
          {"phases", Each(result.phases, PhaseJson)},
          {"critical_path", CriticalPathJson(result.critical_path)},
          {"busy",
           {{"s_busy", Figure(result.s_busy)}, {"r_busy", Figure(result.r_busy)}, {"overlap", Figure(result.overlap)}}},
          {"bubbles", Each(result.bubbles, BubbleJson)},
          {"homes", Each(result.homes, HomeJson)},
          {"achieved", Each(result.achieved, AchievedJson)},
          {"worst", Each(result.worst, StoryJson)},
          {"requests", Each(result.requests, RequestsJson)},
          {"slo", Each(result.slo, SloJson)},
          {"findings", Each(result.findings, FindingJson)},
          {"interrupted", result.interrupted},
          {"warnings", result.warnings}};
}

std::string JsonText(const LatencyResult& result) {
  return ToJson(result).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace fastdecode
