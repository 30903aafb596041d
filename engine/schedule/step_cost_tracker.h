// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_SCHEDULE_STEP_COST_TRACKER_H_
#define FASTDECODE_ENGINE_SCHEDULE_STEP_COST_TRACKER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/schedule/step_model.h"

namespace fastdecode {

// What one step of one micro-batch took.
struct MeasuredStep {
  double stage_us = 0;                             // of the S-Part, the mean of its whole layers; 0: there is none
  double near_us = 0;                              // of near homes, the mean of the layers, which stage_us is without;
                                                   // 0: there are none, or they are in stage_us
  std::array<double, kHomesOfModelMax> home_us{};  // each home's work, the mean of the layers; 0: it had none
  double hop_us = 0;                               // the shortest hop took so long without the home's work; 0: no
                                                   // reply was seen at once...
  double hop_bound_us = 0;                         // ...but one took no longer than this; 0: there was none
  double round_us = 0;                             // from the end of the step before; 0: it did not follow at once
  bool has_chunks = false;                         // homes computed prompt chunks, which say nothing of decode rows
};

// What the model foretold for one step, and each time what it was. All 0: the model said nothing of it.
struct StepForecast {
  double stage_us = 0;
  double round_us = 0;
};

// What steps cost in a running engine. With a calibration these are its costs, and one factor for the S-Part and for
// each home follows what steps really take: an exponentially weighted mean with a half-life of 200 steps, between 0.7
// and 1.4, so that a machine that changes for long is followed, and one that stands still for a moment is not. Without
// one the costs begin with what read rates say, and are learned: the S-Part's as a mean for each power of two of rows,
// a home's as a straight line over its tokens, by least squares in which old steps fade.
//
// Thread: the pipeline thread. Never allocates.
class StepCostTracker {
 public:
  struct Start {
    std::optional<StepCosts> calibrated;
    int layers = 1;
    int micro_batches = 1;
    double weight_bytes = 0;    // that a step of the S-Part reads; 0: not known
    double kv_token_bytes = 0;  // of one token in one layer
  };
  explicit StepCostTracker(const Start& start);

  // A home has come, or has come again. read_rate: how fast it reads its KV, in bytes a microsecond; 0: not known.
  // near: it attends within the S-Part's stages, and its memory is what weights are read from.
  void AddHome(int home, double read_rate, bool near);

  // A step of micro-batch m is over. A step in which a home was lost is not to be told.
  StepForecast Note(int m, const MicroBatchLoad& load, const MeasuredStep& took);
  // Micro-batch m has no rows now.
  void NoteIdle(int m) { loads_[static_cast<size_t>(m)].rows = 0; }

  // Whether it knows what the S-Part and the homes cost that have something in this load.
  bool Knows(const MicroBatchLoad& load) const;
  // The costs as they are now.
  const StepCosts& costs() const { return costs_; }
  bool calibrated() const { return is_calibrated_; }
  // By how much the S-Part, and a home, take longer than the calibration says.
  double s_factor() const { return s_factor_; }
  double home_factor(int home) const { return homes_[static_cast<size_t>(home)].factor; }

 private:
  static constexpr size_t kRowBuckets = 12;  // for 1, 2, 4, ... rows

  struct Mean {
    double count = 0;  // up to a bound, so that old values fade
    double rows = 0, us = 0;
  };
  // Sums of a weighted least squares fit of us = a + b * tokens.
  struct Line {
    double weight = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  struct Home {
    double factor = 1;
    double near_rate = 0;
    Line line;
  };

  void Correct(const MicroBatchLoad& load, const MeasuredStep& took, const RoundTimes& round, double stage_us);
  void Learn(const MicroBatchLoad& load, const MeasuredStep& took, const RoundTimes& round);
  void LearnHop(const MeasuredStep& took);
  int SlowestNearHome(const MicroBatchLoad& load) const;
  void LearnStage(double rows, double us);
  void LearnHome(size_t home, const HomeLoad& load, double us);
  void Apply();

  const bool is_calibrated_;
  const Start start_;
  StepCosts costs_;
  double s_factor_ = 1;
  double rest_us_ = -1;  // without a calibration: of a round, outside its layers; below 0: not known
  std::array<Mean, kRowBuckets> stages_{};
  std::array<Home, kHomesOfModelMax> homes_{};
  std::array<MicroBatchLoad, kMicroBatchesOfModelMax> loads_{};
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_STEP_COST_TRACKER_H_
