#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_LOAD_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_LOAD_H_

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "tests/tools/latency/simulated_machine.h"
#include "tools/latency/recording.h"

namespace fastdecode {

struct SimulatedRequests {
  int sequences = 24;         // at most at once, in all micro-batches together
  double arrivals_per_s = 0;  // open loop; 0: closed, each that leaves is followed by another
  int prompt_min = 150, prompt_max = 900;
  int output_min = 60, output_max = 300;
  int prefill_chunk = 0;  // rows of a prompt that a step takes at most; 0: prompts are filled in, not computed
};

struct SimulatedSequence {
  uint64_t id = 0;
  uint32_t prompt = 0, output = 0;
  uint32_t computed = 0, generated = 0;
  uint32_t rows = 0;  // in this step
  int home = -1;
  double submitted = 0;
  double left = 0;  // its home was lost; 0: it was not, or is where it was again
};

// Callers, and who is placed where.
class SimulatedLoad {
 public:
  // home_weights: what share of all KV is meant for each.
  SimulatedLoad(const SimulatedRequests& requests, int micro_batches, std::vector<double> home_weights, uint64_t seed);

  // As many sequences as there may be, somewhere on their way.
  void WarmUp(double now);
  // Takes in who has come until `now`, and gives every member its rows.
  std::vector<SimulatedSequence>& Compose(int micro_batch, double now);
  // The home takes nobody, and who is there leaves in the next Compose; or it takes some again.
  void SetAway(int home, bool away) { away_[static_cast<size_t>(home)] = away; }
  bool IsAway(int home) const { return away_[static_cast<size_t>(home)]; }
  // Who left in the last Compose, since its home is away. `home`: which.
  const std::vector<SimulatedSequence>& left() const { return left_; }
  // Who joined in the last Compose.
  const std::vector<SimulatedSequence>& joined() const { return joined_; }
  // The sequence that has left had its last token delivered at `delivered`.
  void Leave(int micro_batch, size_t member, double delivered);
  std::vector<SimulatedSequence>& members(int micro_batch) { return members_[static_cast<size_t>(micro_batch)]; }
  // When the next one comes that is not here yet; never, while one waits for a place.
  double NextArrival(double now) const;
  bool Empty() const;
  // Of all that were submitted until `now`, by id; their callers meant them to start then.
  std::vector<IntendedStart> StartsUntil(double now) const;

 private:
  void Submit(double at);
  void DropLost(int micro_batch, double now);
  void FillOpenLoop(double now);
  bool MayJoin(int micro_batch) const;
  void Place(SimulatedSequence sequence, int micro_batch);

  const SimulatedRequests requests_;
  const std::vector<double> home_weights_;
  std::mt19937_64 random_;
  std::vector<std::vector<SimulatedSequence>> members_;  // [micro-batches]
  std::deque<SimulatedSequence> ready_;                  // by submission
  std::vector<SimulatedSequence> joined_, left_;
  std::vector<bool> away_;             // [homes]
  std::vector<IntendedStart> starts_;  // by id, from 1
  uint64_t next_id_ = 1;
  double next_open_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_LOAD_H_
