// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_SCHEDULE_STEP_MODEL_H_
#define FASTDECODE_ENGINE_SCHEDULE_STEP_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastdecode {

// How long a step takes: FastDecode's performance model (arXiv 2403.11421, section 5), with several micro-batches,
// homes that differ, what a hop costs, and memory that both sides read. All times are in microseconds.

// What something costs by its size: points, and straight lines between them. Below the first point it costs as much as
// there. Beyond the last one the line goes on from the last two, but costs neither fall nor grow faster than the size.
struct CostCurve {
  static constexpr size_t kPointsMax = 16;
  size_t count = 0;  // 0: nothing is known, and it costs nothing
  std::array<double, kPointsMax> size{};
  std::array<double, kPointsMax> us{};

  // A cost that does not depend on the size.
  static CostCurve Constant(double us) {
    CostCurve curve;
    curve.Add(0, us);
    return curve;
  }
  // REQUIRES: count < kPointsMax, and a larger size than the last point's.
  void Add(double at, double cost) {
    size[count] = at;
    us[count++] = cost;
  }
  double At(double at) const;
  // Whether the points go that far. A constant, whose one point is at 0, covers all.
  bool Covers(double at) const {
    return count > 0 && at >= size[0] && (at <= size[count - 1] || (count == 1 && size[0] == 0));
  }
};

inline constexpr size_t kHomesOfModelMax = 64;
inline constexpr size_t kMicroBatchesOfModelMax = 16;

// Attention at one home in one layer, for one micro-batch: hop_us + sequences * sequence_us + tokens * token_us +
// pairs * pair_us.
struct HomeCosts {
  double hop_us = 0;
  double sequence_us = 0;
  double token_us = 0;    // of KV that is attended to
  double pair_us = 0;     // of prompt chunks: a row and a token that it attends to
  bool near = false;      // it attends within the S-Part's stages: no hop goes there
  double tokens_max = 0;  // of the longest sequences that were measured
};

struct StepCosts {
  int layers = 1;
  CostCurve stage;             // a layer of the S-Part, by rows
  CostCurve head;              // embedding, last norm, logits and sampling of a step, by rows
  double boundary_us = 0;      // between two steps...
  double boundary_row_us = 0;  // ...and for each row
  double hop_us = 0;      // until a hop is at its home and its reply is back, without rows and without the home's work
  double hop_row_us = 0;  // for each row, of the link's time
  // While the other side reads memory all the time, this one takes so much longer (0.1: a tenth), with several
  // micro-batches.
  double s_slowed = 0, r_slowed = 0;
  size_t home_limit = kHomesOfModelMax;  // homes in use lie below it
  std::array<HomeCosts, kHomesOfModelMax> homes{};
};

// What a micro-batch has at one home.
struct HomeLoad {
  double sequences = 0;
  double tokens = 0;  // attended to in the step, by one row of each sequence or more
  double pairs = 0;   // of each row of the prompt chunks and each token that it attends to
};

struct MicroBatchLoad {
  double rows = 0;
  std::array<HomeLoad, kHomesOfModelMax> homes{};
};

// What a round's length follows from: the S-Part, a home, a link, or the way of one micro-batch through all of them.
enum class RoundLimit : uint8_t { kSPart, kHome, kLink, kPath };

// A round: each micro-batch has had one step.
struct RoundTimes {
  double us = 0;
  double s_us = 0;  // of it the S-Part is busy
  double r_us = 0;  // the busiest home; one that is near counts as the S-Part
  // How much longer each side takes than it would without the other.
  double s_factor = 1, r_factor = 1;
  RoundLimit limit = RoundLimit::kSPart;
  int home = -1;              // the busiest one that is not near; -1: there is none
  bool extrapolated = false;  // sizes lie beyond what was measured
};

// What a home's part of one layer takes, and what `sequences` and `tokens` more would add to it, without the other
// side's slowing it down.
double HomeUs(const HomeCosts& costs, const HomeLoad& load);
double AddedHomeUs(const HomeCosts& costs, const HomeLoad& more);

// What the S-Part does between a step's last hop and the next step's first one, beside a layer's stage.
double BetweenUs(const StepCosts& costs, double rows);

// Micro-batches follow each other through the S-Part and their homes, layer by layer. With one or two the layers are
// exact for the costs given; three and more may take up to 7 % longer where some have no sequences at a home. What the
// S-Part does between steps hides behind the homes of other micro-batches as far as it fits there: that is exact for
// one micro-batch, and for two where hops take no time, else right to 3 % with eight layers and to 8 % with two.
RoundTimes PredictRound(const StepCosts& costs, const MicroBatchLoad* loads, int micro_batches);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_STEP_MODEL_H_
