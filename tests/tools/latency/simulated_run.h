#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_RUN_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_RUN_H_

#include <cstdint>
#include <vector>

#include "tests/tools/latency/simulated_load.h"
#include "tests/tools/latency/simulated_machine.h"
#include "tools/latency/recording.h"

namespace fastdecode {

// When a recording begins, and for how long the run has gone on by then: it begins in the midst of steps.
inline constexpr double kSimulatedStartNs = 5e12;
inline constexpr double kSimulatedLeadNs = 60e6;

// What may be wrong. Nothing is, unless it is set.
struct SimulatedFaults {
  // +ns in each hop at one home.
  int slow_home = -1;
  double prepare_extra_ns = 0, attend_extra_ns = 0;
  // A home that reads its KV at this ratio of the others' speed.
  int narrow_home = -1;
  double bandwidth_ratio = 1;
  // The GEMMs of one layer take so much longer.
  int slow_layer = -1;
  double gemm_ratio = 1;
  // Something takes a core for so long in each period; or at random moments, on average as often.
  enum class Core { kNone, kPipeline, kLeader, kHelper };
  Core stolen = Core::kNone;
  int stolen_home = -1;
  double stolen_ns = 5e6, stolen_period_ns = 1e9;
  double stolen_ns_max = 0;  // if above stolen_ns: each time for another length between the two
  bool stolen_at_random = false;
  // So many hops come so much later, on one link or (-1) on all. Memory is late only if something holds replies back.
  double late_share = 0, late_ns = 0;
  int late_home = -1;
  bool late_in_memory = false;
  // One home has so much of the mean KV.
  int heavy_home = -1;
  double heavy_ratio = 1;
  // The scheduler takes no events for so long; it begins so far into the recording.
  double pause_ns = 0, pause_at_s = 0;
  // A home that answers nothing any more, so far into the recording; that is known so much later, and for so long it
  // stays away. 0: until the end.
  int lost_home = -1;
  double lost_at_s = 0, known_after_ns = 200e6, away_ns = 0;
  // Links whose round trips take so much longer: of the first homes, one after the other.
  std::vector<double> far_ns;
};

struct SimulatedRun {
  uint64_t seed = 1;
  double seconds = 10;
  int layers = 16, micro_batches = 2, homes = 2;
  int local_homes = 0;  // of these, the first ones: on the engine's host, by local_link
  SimulatedRequests requests;
  double kv_bytes_per_token = 1024;  // of one layer
  double row_bytes_out = 5120, row_bytes_back = 4096;
  // S-Part, of one layer and a few rows. Further rows take 1 % more each.
  double qkv_ns = 90e3, o_ns = 60e3, gate_up_ns = 260e3, down_ns = 130e3, rest_ns = 6e3;
  double logits_ns = 700e3;
  // Stages run beside the pipeline thread, one after the other; there and back takes signal_ns each way.
  bool gpu = false;
  double signal_ns = 1500;
  // The pipeline looks for replies this often when it has nothing else to do.
  double look_ns = 200;
  // Tokens that the scheduler may be behind with before steps are held: so many steps of all micro-batches.
  double events_room_steps = 1;
  SimulatedNoise noise;
  SimulatedLink link;
  SimulatedLink local_link = {.one_way_ns = 150, .bytes_per_ns = 50, .in_memory = true};
  SimulatedAttention attention;
  SimulatedFaults faults;
};

// What the engine would have recorded: an event-driven simulation of one pipeline thread, which computes stages between
// two looks for replies (or has a GPU compute them), homes that serve hops in order, links and a scheduler. Equal runs
// give equal recordings.
Recording Simulate(const SimulatedRun& run);

// When `faults.stolen` is away from its work, from before the recording begins until after its end.
std::vector<SimulatedTheft> PlanThefts(const SimulatedRun& run);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_RUN_H_
