#ifndef FASTDECODE_ENGINE_START_STATISTICS_SNAPSHOT_H_
#define FASTDECODE_ENGINE_START_STATISTICS_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/homes/homes.h"
#include "engine/pipeline/statistics.h"

namespace fastdecode {

// The pipeline's counters at one moment. The difference of two is a window.
struct StatisticsSnapshot {
  uint64_t time_ns = 0;
  uint64_t steps = 0, rows = 0, sampled_tokens = 0, hops = 0, preemptions = 0, pushed_bytes = 0, parks = 0;
  uint64_t recoveries = 0, recovered = 0, prefix_tokens = 0;
  uint64_t layer_stages = 0, layer_stage_ns = 0, stage_attend_ns = 0, hop_overhead_ns = 0;
  uint64_t rounds = 0, rounds_ns = 0, rounds_foretold_ns = 0;
  uint64_t s_busy_ns = 0, kv_bytes_attended = 0, kv_bytes_hopped = 0;
  DurationHistogram::Counts stage_ns{}, hop_ns{}, step_ns{};
  DurationHistogram::Counts recovery_ns{}, recovery_queue_ns{}, loss_detection_ns{};
  std::array<uint64_t, kMaxHomes> r_busy_ns{}, home_hops{}, home_cached_tokens{};
  std::vector<DurationHistogram::Counts> home_work_ns;  // [kMaxHomes], or empty: all zero
};

StatisticsSnapshot TakeSnapshot(const PipelineStatistics& statistics);
StatisticsSnapshot Difference(const StatisticsSnapshot& later, const StatisticsSnapshot& earlier);

// Values of now that are no counters.
struct StatisticsGauges {
  uint32_t active_sequences = 0, ready_sequences = 0;
  uint64_t weight_bytes = 0;
  bool calibrated = false;
  float s_factor = 1;                       // by which the S-Part takes longer than its calibration says
  std::vector<float> home_factors;          // [kMaxHomes], likewise; 0: nothing is known of that home
  std::vector<uint64_t> home_pages_cached;  // [kMaxHomes], or empty: none
  int micro_batches = 0;
  std::vector<int> s_cores;
};

// One JSON object: wall_ns, s_busy, r_busy (of the busiest home), overlap = max(s_busy, r_busy), tokens_per_s, and the
// rest. docs/GLOSSARY.md says what each means.
std::string ToJson(const StatisticsSnapshot& window, const std::vector<Homes::Info>& homes,
                   const StatisticsGauges& gauges);

// Sets at_most[i] to how many of the durations took bounds_ns[i] at most, and *sum_ns to the sum of all (null: it is
// not wanted), each counted as the middle of its bucket. Returns how many there are. Null: none.
uint64_t CountDurations(const DurationHistogram* durations, std::span<const uint64_t> bounds_ns, uint64_t* at_most,
                        uint64_t* sum_ns);

// One JSON array: what each home said last of its pages, and how long ago. now_ns: NowNs.
std::string PagesToJson(const PipelineStatistics& statistics, const std::vector<Homes::Info>& homes, uint64_t now_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_STATISTICS_SNAPSHOT_H_
