#include "engine/start/statistics_snapshot.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "nlohmann/json.hpp"
#include "numa/clock.h"

namespace fastdecode {

namespace {

using Counts = DurationHistogram::Counts;

Counts Minus(const Counts& later, const Counts& earlier) {
  Counts counts;
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = later[i] - earlier[i];
  return counts;
}

// Microseconds. A percentile that fewer than ten observations lie beyond is left out.
nlohmann::json Percentiles(const Counts& counts) {
  uint64_t total = 0;
  double sum = 0, max = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    total += counts[i];
    max = DurationHistogram::ValueOf(i);
    sum += static_cast<double>(counts[i]) * max;
  }
  nlohmann::json out;
  out["count"] = total;
  if (total == 0) return out;
  out["mean_us"] = sum / static_cast<double>(total) * 1e-3;
  out["max_us"] = max * 1e-3;
  const auto at = [&](const char* name, double share) {
    const uint64_t rank = static_cast<uint64_t>(share * static_cast<double>(total - 1));
    if (share > 0.5 && total - 1 - rank < 10) return;
    uint64_t seen = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      seen += counts[i];
      if (seen > rank) {
        out[name] = DurationHistogram::ValueOf(i) * 1e-3;
        return;
      }
    }
  };
  at("p50_us", 0.5);
  at("p90_us", 0.9);
  at("p99_us", 0.99);
  at("p999_us", 0.999);
  return out;
}

}  // namespace

StatisticsSnapshot TakeSnapshot(const PipelineStatistics& statistics) {
  StatisticsSnapshot s;
  s.time_ns = NowNs();
  s.steps = statistics.steps.value();
  s.rows = statistics.rows.value();
  s.sampled_tokens = statistics.sampled_tokens.value();
  s.hops = statistics.hops.value();
  s.preemptions = statistics.preemptions.value();
  s.pushed_bytes = statistics.pushed_bytes.value();
  s.parks = statistics.parks.value();
  s.recoveries = statistics.recoveries.value();
  s.recovered = statistics.recovered.value();
  s.prefix_tokens = statistics.prefix_tokens.value();
  s.layer_stages = statistics.layer_stages.value();
  s.rounds = statistics.rounds.value();
  s.rounds_ns = statistics.rounds_ns.value();
  s.rounds_foretold_ns = statistics.rounds_foretold_ns.value();
  s.layer_stage_ns = statistics.layer_stage_ns.value();
  s.stage_attend_ns = statistics.stage_attend_ns.value();
  s.hop_overhead_ns = statistics.hop_overhead_ns.value();
  s.s_busy_ns = statistics.s_busy_ns.value();
  s.kv_bytes_attended = statistics.kv_bytes_attended.value();
  s.kv_bytes_hopped = statistics.kv_bytes_hopped.value();
  s.stage_ns = statistics.stage_ns.Read();
  s.hop_ns = statistics.hop_ns.Read();
  s.step_ns = statistics.step_ns.Read();
  s.recovery_ns = statistics.recovery_ns.Read();
  s.recovery_queue_ns = statistics.recovery_queue_ns.Read();
  s.loss_detection_ns = statistics.loss_detection_ns.Read();
  for (int h = 0; h < kMaxHomes; ++h) {
    s.r_busy_ns[h] = statistics.r_busy_ns[h].value();
    s.home_hops[h] = statistics.home_hops[h].value();
    s.home_cached_tokens[h] = statistics.home_cached_tokens[h].value();
    s.home_work_ns.push_back(statistics.home_work_ns[h].Read());
  }
  return s;
}

StatisticsSnapshot Difference(const StatisticsSnapshot& later, const StatisticsSnapshot& earlier) {
  StatisticsSnapshot d = later;
  d.time_ns -= earlier.time_ns;
  d.steps -= earlier.steps;
  d.rows -= earlier.rows;
  d.sampled_tokens -= earlier.sampled_tokens;
  d.hops -= earlier.hops;
  d.preemptions -= earlier.preemptions;
  d.pushed_bytes -= earlier.pushed_bytes;
  d.parks -= earlier.parks;
  d.recoveries -= earlier.recoveries;
  d.recovered -= earlier.recovered;
  d.prefix_tokens -= earlier.prefix_tokens;
  d.layer_stages -= earlier.layer_stages;
  d.rounds -= earlier.rounds;
  d.rounds_ns -= earlier.rounds_ns;
  d.rounds_foretold_ns -= earlier.rounds_foretold_ns;
  d.layer_stage_ns -= earlier.layer_stage_ns;
  d.stage_attend_ns -= earlier.stage_attend_ns;
  d.hop_overhead_ns -= earlier.hop_overhead_ns;
  d.s_busy_ns -= earlier.s_busy_ns;
  d.kv_bytes_attended -= earlier.kv_bytes_attended;
  d.kv_bytes_hopped -= earlier.kv_bytes_hopped;
  d.stage_ns = Minus(later.stage_ns, earlier.stage_ns);
  d.hop_ns = Minus(later.hop_ns, earlier.hop_ns);
  d.step_ns = Minus(later.step_ns, earlier.step_ns);
  d.recovery_ns = Minus(later.recovery_ns, earlier.recovery_ns);
  d.recovery_queue_ns = Minus(later.recovery_queue_ns, earlier.recovery_queue_ns);
  d.loss_detection_ns = Minus(later.loss_detection_ns, earlier.loss_detection_ns);
  for (int h = 0; h < kMaxHomes; ++h) {
    d.r_busy_ns[h] -= earlier.r_busy_ns[h];
    d.home_hops[h] -= earlier.home_hops[h];
    d.home_cached_tokens[h] -= earlier.home_cached_tokens[h];
    if (!earlier.home_work_ns.empty()) d.home_work_ns[h] = Minus(later.home_work_ns[h], earlier.home_work_ns[h]);
  }
  return d;
}

std::string ToJson(const StatisticsSnapshot& window, const std::vector<Homes::Info>& homes,
                   const StatisticsGauges& gauges) {
  const double wall_s = static_cast<double>(window.time_ns) * 1e-9;
  const auto share = [&](uint64_t ns) { return wall_s > 0 ? static_cast<double>(ns) * 1e-9 / wall_s : 0.0; };
  nlohmann::json out;
  out["wall_ns"] = window.time_ns;
  out["steps"] = window.steps;
  out["rows"] = window.rows;
  out["sampled_tokens"] = window.sampled_tokens;
  out["tokens_per_s"] = wall_s > 0 ? static_cast<double>(window.sampled_tokens) / wall_s : 0.0;
  out["hops"] = window.hops;
  out["preemptions"] = window.preemptions;
  out["pushed_bytes"] = window.pushed_bytes;
  out["parks"] = window.parks;
  out["recoveries"] = window.recoveries;
  out["recovered"] = window.recovered;
  out["prefix_tokens"] = window.prefix_tokens;
  out["cached_tokens"] =
      std::accumulate(window.home_cached_tokens.begin(), window.home_cached_tokens.end(), uint64_t{0});
  out["active_sequences"] = gauges.active_sequences;
  out["ready_sequences"] = gauges.ready_sequences;
  out["weight_bytes"] = gauges.weight_bytes;
  out["micro_batches"] = gauges.micro_batches;
  out["s_cores"] = gauges.s_cores;
  out["s_busy_ns"] = window.s_busy_ns;
  out["s_busy"] = share(window.s_busy_ns);
  out["layer_stages"] = window.layer_stages;
  out["layer_stage_ns"] = window.layer_stage_ns;
  out["stage_attend_ns"] = window.stage_attend_ns;
  out["hop_overhead_ns"] = window.hop_overhead_ns;
  uint64_t r_busy_max_ns = 0;
  uint64_t r_busy_sum_ns = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Homes::Info& info : homes) {
    const uint64_t busy_ns = window.r_busy_ns[info.index];
    r_busy_max_ns = std::max(r_busy_max_ns, busy_ns);
    r_busy_sum_ns += busy_ns;
    nlohmann::json home;
    home["index"] = info.index;
    home["name"] = info.name;
    home["up"] = info.up;
    home["draining"] = info.draining;
    if (!info.up) home["absence"] = info.absence;
    home["threads"] = info.description.threads;
    if (!info.cores.empty()) home["cores"] = info.cores;
    home["isa"] = info.description.isa;
    home["memory"] = info.description.memory;
    home["pages"] = info.description.pages;
    home["page_bytes"] = info.description.page_bytes;
    const bool known = info.up && !gauges.home_pages_cached.empty();
    home["pages_cached"] = known ? gauges.home_pages_cached[info.index] : 0;
    home["cached_tokens"] = window.home_cached_tokens[info.index];
    home["hops"] = window.home_hops[info.index];
    home["r_busy_ns"] = busy_ns;
    home["r_busy"] = share(busy_ns);
    if (gauges.calibrated && info.index < static_cast<int>(gauges.home_factors.size())) {
      home["cost_factor"] = gauges.home_factors[info.index];
    }
    if (!window.home_work_ns.empty()) home["work"] = Percentiles(window.home_work_ns[info.index]);
    list.push_back(std::move(home));
  }
  out["homes"] = std::move(list);
  nlohmann::json& model = out["step_model"];
  model["calibrated"] = gauges.calibrated;
  model["rounds"] = window.rounds;
  model["rounds_ns"] = window.rounds_ns;
  model["rounds_foretold_ns"] = window.rounds_foretold_ns;
  if (gauges.calibrated) model["s_factor"] = gauges.s_factor;
  out["r_busy_ns"] = r_busy_max_ns;
  out["r_busy"] = share(r_busy_max_ns);
  out["overlap"] = share(std::max(window.s_busy_ns, r_busy_max_ns));
  out["kv_bytes"] = window.kv_bytes_attended;
  // A home that attends within stages is never busy.
  out["kv_gb_per_s"] =
      r_busy_sum_ns > 0 ? static_cast<double>(window.kv_bytes_hopped) / static_cast<double>(r_busy_sum_ns) : 0.0;
  const uint64_t near_kv_bytes = window.kv_bytes_attended - window.kv_bytes_hopped;
  out["stage_attend"] = share(window.stage_attend_ns);
  out["stage_attend_gb_per_s"] = window.stage_attend_ns > 0
                                     ? static_cast<double>(near_kv_bytes) / static_cast<double>(window.stage_attend_ns)
                                     : 0.0;
  out["stage"] = Percentiles(window.stage_ns);
  out["hop"] = Percentiles(window.hop_ns);
  out["step"] = Percentiles(window.step_ns);
  out["recovery"] = Percentiles(window.recovery_ns);
  out["recovery_queue"] = Percentiles(window.recovery_queue_ns);
  out["loss_detection"] = Percentiles(window.loss_detection_ns);
  // Homes' names and memory texts come from other processes.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

uint64_t CountDurations(const DurationHistogram* durations, std::span<const uint64_t> bounds_ns, uint64_t* at_most,
                        uint64_t* sum_ns) {
  const Counts counts = durations == nullptr ? Counts{} : durations->Read();
  uint64_t total = 0;
  double sum = 0;
  std::fill_n(at_most, bounds_ns.size(), 0);
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    if (counts[bucket] == 0) continue;
    const double ns = DurationHistogram::ValueOf(bucket);
    total += counts[bucket];
    sum += static_cast<double>(counts[bucket]) * ns;
    for (size_t i = 0; i < bounds_ns.size(); ++i) {
      if (ns <= static_cast<double>(bounds_ns[i])) at_most[i] += counts[bucket];
    }
  }
  if (sum_ns != nullptr) *sum_ns = static_cast<uint64_t>(sum);
  return total;
}

std::string PagesToJson(const PipelineStatistics& statistics, const std::vector<Homes::Info>& homes, uint64_t now_ns) {
  nlohmann::json list = nlohmann::json::array();
  for (const Homes::Info& info : homes) {
    const std::optional<HomePages::Counts> said = statistics.home_pages[info.index].Read();
    const uint64_t pages = info.description.pages;
    if (!info.up || !said.has_value() || said->used > pages) continue;
    nlohmann::json home;
    home["index"] = info.index;
    home["pages"] = pages;
    home["pages_used"] = said->used;
    home["pages_free"] = pages - said->used;
    home["pages_held"] = said->held;
    home["age_ns"] = now_ns - std::min(now_ns, said->said_ns);
    list.push_back(std::move(home));
  }
  return list.dump();
}

}  // namespace fastdecode
