#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOP_TIMES_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOP_TIMES_H_

#include <cstdint>
#include <vector>

#include <fastdecode/fastdecode.h>
#include "tools/latency/analysis/clock_relation.h"

namespace fastdecode {

// One hop. From posted to seen it is, in this order: wire (there), queue, prepare, append, attend, merge, team, wire
// (back), pickup; their sum is seen_ns - posted_ns.
struct HopTimes {
  uint64_t posted_ns = 0, seen_ns = 0;
  uint32_t step = 0;
  uint16_t layer = 0;
  uint8_t micro_batch = 0;
  int16_t home = -1;
  uint32_t rows = 0;
  uint64_t payload_bytes = 0;  // out and back
  uint64_t kv_bytes = 0;       // attended to
  // The home's own, exact.
  uint64_t prepare_ns = 0, append_ns = 0, attend_ns = 0, merge_ns = 0, team_ns = 0;
  uint64_t idle_ns = 0;  // 0: the home was busy when the hop came
  // The rest (seen - posted - the home's own) divided. The home's clock, by its rate alone, says how much of it was
  // before the home began and how much after it was ready, each more than the link's least. What is more before is
  // queue as far as the home had been busy, and wire beyond. What is more after is pickup as far as the pipeline had
  // not looked, and wire beyond. Where the clocks do not say, pickup comes before queue, and queue before wire.
  uint64_t wire_ns = 0, queue_ns = 0, pickup_ns = 0;
  uint64_t wire_there_ns = 0;  // of wire_ns: on its way there
  // Neither wire, queue nor pickup can be wrong by more than this, whatever the link did: a slow link while the home
  // was busy looks like a queue, and one while the pipeline did not look like a late pickup.
  uint64_t uncertain_ns = 0;
  uint64_t queue_uncertain_ns = 0;  // of it: between wire and queue. 0 where the home had been idle
  uint64_t wire_least_ns = 0;       // wire_ns cannot be less, whatever pickup, queue and the clocks are
  bool last = false;                // the last reply of its (micro-batch, step, layer): the one that was waited for
  int homes = 0;                    // hops of that layer
  // last: since all others were seen; 0 with one home, and if it was seen with or before them.
  uint64_t waited_for_ns = 0;

  uint64_t work_ns() const { return prepare_ns + append_ns + attend_ns + merge_ns + team_ns; }
};

struct HopsApart {
  std::vector<HopTimes> hops;           // of each event that IsHop, in their order
  std::vector<uint64_t> least_rest_ns;  // [homes] of (round trip - work - queue - pickup): the link's least
  std::vector<ClockRelation> clocks;    // [homes]
};

inline bool IsHop(const fd_record_event& event, int homes) {
  return event.kind == FD_RECORD_HOP && event.home >= 0 && event.home < homes;
}

// What needs no other events: kv_bytes, last, homes and waited_for_ns are left alone. `same_host`: homes whose clock is
// the engine's, and whose link is memory, which takes as long there as back.
HopsApart TakeHopsApart(const std::vector<fd_record_event>& events, int homes, const std::vector<bool>& same_host = {});

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOP_TIMES_H_
