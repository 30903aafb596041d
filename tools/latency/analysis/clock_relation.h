#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_CLOCK_RELATION_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_CLOCK_RELATION_H_

#include <cstdint>
#include <vector>

namespace fastdecode {

// How a home's clock relates to the engine's: home = engine + offset + drift * (engine - middle), modulo 2^32 ns, right
// within bound at every moment from the first hop to the last.
struct ClockRelation {
  bool known = false;
  double offset_ns = 0;  // within +-2^31
  double drift_ppm = 0;  // 0 where the hops are too few or too slow to tell it from 0
  double bound_ns = 0;
  uint64_t middle_ns = 0;  // engine's clock
  double bent_ns = 0;      // by how much the clocks do not follow a line, at least; part of bound_ns
  // The line that leaves most room on both sides. Right if the link's least is the same all along, which nobody knows:
  // for what needs to be right in most cases and no bound.
  double likely_offset_ns = 0;
  double likely_drift_ppm = 0;

  // home - engine at that moment, modulo 2^32 ns.
  double At(uint64_t engine_ns) const { return offset_ns + drift_ppm * 1e-6 * FromMiddle(engine_ns); }
  double LikelyAt(uint64_t engine_ns) const {
    return likely_offset_ns + likely_drift_ppm * 1e-6 * FromMiddle(engine_ns);
  }

 private:
  double FromMiddle(uint64_t engine_ns) const {
    return static_cast<double>(static_cast<int64_t>(engine_ns - middle_ns));
  }
};

// What one hop says of the two clocks. It was begun after it was posted, and seen after it was ready: two limits to
// their difference, whatever the link's two directions take.
struct ClockReading {
  uint64_t posted_ns = 0, seen_ns = 0;  // engine's clock
  uint64_t work_ns = 0;
  int64_t difference_ns = 0;  // home's clock when the reply was ready - seen_ns, modulo 2^32
};

// Takes the line in the middle of all that the readings allow, if clocks do not drift by more than 1000 ppm. Not known:
// no readings. `readings` in any order.
ClockRelation RelateClocks(const std::vector<ClockReading>& readings);

// `ns` modulo 2^32, within [-2^31, 2^31).
inline int64_t WrapClock(int64_t ns) { return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(ns))); }

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_CLOCK_RELATION_H_
