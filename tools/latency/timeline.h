#ifndef FASTDECODE_TOOLS_LATENCY_TIMELINE_H_
#define FASTDECODE_TOOLS_LATENCY_TIMELINE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// A recording put in order: which step, stage and hop each event belongs to, and each hop taken apart. All times are ns
// of the engine's clock.

// One hop. From posted to seen it is, in this order: wire (there), queue, prepare, append, attend, merge, team, wire
// (back), pickup; their sum is seen_ns - posted_ns.
struct HopTimes {
  uint64_t posted_ns = 0, seen_ns = 0;
  uint32_t step = 0;
  uint16_t layer = 0;
  uint8_t micro_batch = 0;
  int16_t home = -1;
  uint32_t rows = 0;
  uint64_t payload_bytes = 0;   // out and back
  uint64_t kv_bytes = 0;        // attended to
  // The home's own, exact.
  uint64_t prepare_ns = 0, append_ns = 0, attend_ns = 0, merge_ns = 0, team_ns = 0;
  uint64_t idle_ns = 0;         // 0: the home was busy when the hop came
  // The rest (seen - posted - the home's own) divided. Pickup is at most the time since the pipeline last looked in
  // vain; queue is 0 where the home had been idle; where all three are possible, wire is the link's least, and what is
  // beyond it is queue as far as the home was busy, and pickup before that. `uncertain_ns` is by how much that may be
  // wrong.
  uint64_t wire_ns = 0, queue_ns = 0, pickup_ns = 0;
  uint64_t uncertain_ns = 0;
  bool last = false;            // the last reply of its (micro-batch, step, layer): the one that was waited for
  int homes = 0;                // hops of that layer
  uint64_t waited_for_ns = 0;   // last: since the reply before it was seen; 0 with one home

  uint64_t work_ns() const { return prepare_ns + append_ns + attend_ns + merge_ns + team_ns; }
};

struct PartTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint16_t part = 0;            // fd_stage_part
  uint16_t layer = 0;           // whose weights
};

struct StageTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint32_t step = 0;
  uint16_t stage = 0;           // 0 to layers
  uint8_t micro_batch = 0;
  uint32_t rows = 0;
  uint32_t first_part = 0, parts = 0;  // in Timeline::parts
};

// One step of one micro-batch, from the end of the one before (or, if it had no row meanwhile, from when it began).
struct StepTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t composed_ns = 0;     // when composing began: before it the micro-batch waited at the boundary
  uint32_t step = 0;
  uint8_t micro_batch = 0;
  uint32_t rows = 0;            // query tokens
  uint32_t sequences = 0;
  uint32_t tokens = 0;          // sampled
  bool follows = false;         // start_ns is the end of the step before
  bool prefill = false;         // some sequence had more than one row
  std::array<uint64_t, kPlaces> place_ns{};  // a partition of end - start, but for residual_ns
  int64_t residual_ns = 0;
  uint32_t first_stage = 0, stages = 0;      // in Timeline::stages
  uint32_t first_hop = 0, hops = 0;          // in Timeline::hops, by layer, then home
  std::vector<uint64_t> kv_bytes;            // [homes] attended to, a layer
  std::vector<uint32_t> home_rows;           // [homes]
};

struct TokenTimes {
  uint64_t id = 0;
  uint32_t index = 0;
  uint32_t step = 0;            // index in Timeline::steps
  uint64_t end_ns = 0;
};

// Spans in which the pipeline was held up by the scheduler, or had nothing to do.
struct Span {
  uint64_t start_ns = 0, end_ns = 0;
  int micro_batch = -1;
};

// How a home's clock relates to the engine's: home = engine + offset + drift * (engine - middle), modulo 2^32 ns, right
// within bound at every moment of the recording. By the hops of least round trip in each stretch of it.
struct ClockRelation {
  bool known = false;
  double offset_ns = 0;
  double drift_ppm = 0;
  double bound_ns = 0;
};

struct Timeline {
  uint64_t start_ns = 0, end_ns = 0;         // of what was recorded whole
  int homes = 0;                             // indices lie below
  int layers = 0;
  std::vector<StepTimes> steps;              // whole ones alone, by end
  std::vector<StageTimes> stages;
  std::vector<PartTimes> parts;
  std::vector<HopTimes> hops;
  std::vector<TokenTimes> tokens;            // by end
  std::vector<Span> held, idle;
  std::vector<uint64_t> least_rest_ns;       // [homes] of (round trip - work) where the home was idle; the link's least
  std::vector<ClockRelation> clocks;         // [homes]
  uint64_t dropped_events = 0;               // of steps that were not recorded whole
};

// Never fails: events that fit nowhere are dropped and counted.
Timeline BuildTimeline(const Recording& recording);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_TIMELINE_H_
