#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_MACHINE_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_MACHINE_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace fastdecode {

// The parts that a simulated engine is made of: cores, homes, links, and their noise. Moments and durations are ns of
// the engine's clock, in doubles: what is below a nanosecond is lost only when an event is written.

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// How much durations vary.
struct SimulatedNoise {
  double spread = 0.03;        // of a span: the standard deviation of its logarithm
  double drift = 0.01;         // of a core over tenths of a second
  double tail_share = 0.001;   // of spans that take longer, evenly
  double tail_factor_max = 3;  // up to this
  double wire_spread = 0.15;   // of a wire time's logarithm
};

// A stretch in which something else has a core.
struct SimulatedTheft {
  double start = 0, end = 0;
};

// A core, from which something may take time. What it does takes as long as `noise` says.
class SimulatedCore {
 public:
  SimulatedCore(const SimulatedNoise& noise, uint64_t seed) : noise_(noise), random_(seed) {}

  // REQUIRES: ascending, none overlaps another.
  void Steal(std::vector<SimulatedTheft> thefts) { thefts_ = std::move(thefts); }

  // The first moment from `at` on at which it runs.
  double Awake(double at) const;
  // Work of `ns` that begins at `from`: when it ends, with no noise and with noise.
  double Run(double from, double ns) const;
  double RunNoisy(double from, double ns) { return Run(from, ns * Factor(from)); }

  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double Normal() { return normal_(random_); }

 private:
  // What noise makes of a span that begins at `at`.
  double Factor(double at);
  // The first theft that begins after `at`.
  std::vector<SimulatedTheft>::const_iterator NextTheft(double at) const;

  const SimulatedNoise noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double drift_ = 0, drift_until_ = 0;
  std::vector<SimulatedTheft> thefts_;
};

struct SimulatedLink {
  double one_way_ns = 4000;
  double bytes_per_ns = 12.5;
  bool in_memory = false;       // of one host: the home's clock is the engine's
  double extra_one_way_ns = 0;  // planted: of each way of each hop
  double late_share = 0;        // planted: so many hops...
  double late_ns = 0;           // ...come that much later
};

// What a hop costs at a home.
struct SimulatedAttention {
  double prepare_ns = 600;  // of the step's first hop ten times as much, and more by rows
  double append_ns = 400;   // and as much again for ten rows
  double attend_ns = 15e3;
  double bytes_per_ns = 8;  // KV read
  double merge_ns = 1500;
  double post_ns = 300;
  double chunk_row_share = 0.05;  // each further row of a sequence takes so much of the first one's time
  double prepare_extra_ns = 0, attend_extra_ns = 0;  // planted
};

struct SimulatedHop {
  double posted = 0;
  double polled = 0;   // set by the pipeline: it looked in vain
  double arrival = 0;  // at the home
  double reply = 0;    // back at the engine
  double home_end = 0;
  double back_ns = 0;  // wire
  uint32_t step = 0, rows = 0, sequences = 0;
  int layer = 0, micro_batch = 0;
  double kv_bytes = 0;
  uint64_t payload_bytes = 0;
  double idle = 0, prepare = 0, append = 0, attend = 0, merge = 0, wait = 0, post = 0;
};

// One home with its leader, one helper and its link. Hops are served in order of arrival.
class SimulatedHome {
 public:
  SimulatedHome(int index, const SimulatedNoise& noise, const SimulatedLink& link, const SimulatedAttention& attention,
                uint64_t seed);

  SimulatedCore& leader() { return leader_; }
  SimulatedCore& helper() { return helper_; }

  // It answers nothing that was not served by now, until it begins anew.
  void Die();
  void BeginAnew() { dead_ = false; }
  // REQUIRES: hops are posted in order of time, and ServeNext has not gone beyond that moment.
  void Post(const SimulatedHop& hop);
  // When the next hop begins to be served: never, if there is none.
  double NextStart() const;
  void ServeNext();
  // When the next reply is at the engine.
  double NextReply() const;
  // Replies that are there at `now`, one after the other. False: no more.
  bool TakeReply(double now, SimulatedHop* hop);

  // The event of a hop whose reply was seen at `seen`.
  fd_record_event Describe(const SimulatedHop& hop, double seen) const;

 private:
  double WireNs();
  size_t NextIndex() const;
  // Attend's duration with no noise.
  double AttendNs(const SimulatedHop& hop) const;

  const int index_;
  const SimulatedNoise noise_;
  const SimulatedLink link_;
  const SimulatedAttention attention_;
  SimulatedCore leader_, helper_;
  uint64_t clock_offset_ns_;
  double clock_drift_;  // as a share
  double free_at_ = 0;
  double posted_ns_ = 0;  // of the reply before
  bool dead_ = false;
  std::vector<SimulatedHop> waiting_, replies_;  // few
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_MACHINE_H_
