#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_TIMELINE_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_TIMELINE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "tools/latency/analysis/clock_relation.h"
#include "tools/latency/analysis/hop_times.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// A recording put in order: which step, stage and hop each event belongs to, and each hop taken apart (hop_times.h).
// All times are ns of the engine's clock.

struct PartTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint16_t part = 0;   // fd_stage_part
  uint16_t layer = 0;  // whose weights
  uint8_t micro_batch = 0;
};

struct StageTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint32_t step = 0;
  uint16_t stage = 0;  // 0 to layers
  uint8_t micro_batch = 0;
  uint32_t rows = 0;
  uint32_t first_part = 0, parts = 0;  // in Timeline::parts
};

// What a step was at, for one stretch of time. A hop's segments are those of the home that came back last.
struct Segment {
  uint64_t start_ns = 0, end_ns = 0;
  Place place = Place::kBoundary;
  int16_t home = -1;   // -1: the engine
  int32_t layer = -1;  // of a hop, or stage; -1: none
};

// One step of one micro-batch, from the end of the one before (or, if it had no row meanwhile, from when it began).
struct StepTimes {
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t composed_ns = 0;  // when composing began: before it the micro-batch waited at the boundary
  uint32_t step = 0;
  uint8_t micro_batch = 0;
  uint32_t rows = 0;  // query tokens
  uint32_t sequences = 0;
  uint32_t tokens = 0;                       // sampled
  bool follows = false;                      // start_ns is the end of the step before
  bool prefill = false;                      // some sequence had more than one row
  std::array<uint64_t, kPlaces> place_ns{};  // a partition of end - start, but for residual_ns
  int64_t residual_ns = 0;
  uint32_t first_segment = 0, segments = 0;  // in Timeline::segments: what place_ns sums, in order of time
  uint32_t first_stage = 0, stages = 0;      // in Timeline::stages
  uint32_t first_hop = 0, hops = 0;          // in Timeline::hops, by layer, then home
  std::vector<uint64_t> kv_bytes;            // [homes] attended to, a layer
  std::vector<uint32_t> home_rows;           // [homes]
};

struct TokenTimes {
  uint64_t id = 0;
  uint32_t index = 0;
  uint32_t step = 0;  // index in Timeline::steps
  uint64_t end_ns = 0;
};

// Spans in which the pipeline was held up by the scheduler, or had nothing to do.
struct Span {
  uint64_t start_ns = 0, end_ns = 0;
  int micro_batch = -1;
};

struct Timeline {
  uint64_t start_ns = 0, end_ns = 0;  // of what was recorded whole
  int homes = 0;                      // indices lie below
  int layers = 0;
  std::vector<StepTimes> steps;  // whole ones alone, by end
  std::vector<StageTimes> stages;
  std::vector<PartTimes>
      parts;  // by micro-batch, then end; those of steps that were not recorded whole belong to no stage
  std::vector<HopTimes> hops;
  std::vector<Segment> segments;   // without overlap; what lies between two of a step is its residual
  std::vector<TokenTimes> tokens;  // by end
  std::vector<Span> held, idle;
  std::vector<uint64_t> least_rest_ns;  // [homes] of (round trip - work - queue - pickup): the link's least
  std::vector<ClockRelation> clocks;    // [homes]
  uint64_t events = 0;                  // that it was made of
  uint64_t dropped_events = 0;          // of steps that were not recorded whole
};

// Never fails: events that fit nowhere are dropped and counted. Takes the events of stages' parts out of the recording,
// which are about half of all and nothing beside Timeline::parts: a recording of minutes has no memory to spare.
Timeline BuildTimeline(Recording* recording);
// Of a copy.
Timeline BuildTimeline(const Recording& recording);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_TIMELINE_H_
