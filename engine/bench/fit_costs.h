#ifndef FASTDECODE_ENGINE_BENCH_FIT_COSTS_H_
#define FASTDECODE_ENGINE_BENCH_FIT_COSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/calibration.h"
#include "engine/schedule/step_model.h"
#include "nlohmann/json.hpp"

namespace fastdecode {

// What one window of decode steps took. Times are in microseconds.
struct MeasuredWindow {
  int batch = 0;    // sequences
  int context = 0;  // tokens of each, as asked for
  int micro_batches = 1;
  double tokens = 0;  // attended to in a round, by all sequences
  double round_us = 0;
  double s_us = 0;         // the S-Part in one micro-batch's step
  double layer_us = 0;     // of that, a whole layer; 0: the model has one layer
  double attend_us = 0;    // of s_us and of all layers, what the S-Part's threads attended; 0: none, or not known
  double overhead_us = 0;  // of a hop, without the home's work
  struct HomeWindow {
    double share = 0;   // of the sequences
    double hop_us = 0;  // its work in one hop; 0: it attends within the S-Part's stages
  };
  std::vector<HomeWindow> homes;

  double rows() const { return static_cast<double>(batch) / micro_batches; }
};

// Reads what `bench step` says of a window. Error: Unavailable, naming a home that has not said what pages it uses.
absl::StatusOr<MeasuredWindow> ReadWindow(const nlohmann::json& statistics);

// What each micro-batch has in the window: all have as much.
std::vector<MicroBatchLoad> LoadsOf(const MeasuredWindow& window);

// A window with what the model says of it.
struct Residual {
  MeasuredWindow window;
  RoundTimes predicted;
  double ratio() const { return predicted.us / window.round_us; }
};

struct Fit {
  StepCosts costs;
  std::vector<Residual> residuals;
};

// What a home did for a prompt that was computed by itself, in chunks.
struct MeasuredPrompt {
  int tokens = 0, chunk = 0;
  size_t home = 0;
  double home_us = 0;      // its work for all chunks, in one layer...
  bool in_stages = false;  // ...or, where it attends within stages, these

  double chunks() const;
  HomeLoad load() const;  // of all chunks
};

// What pairs cost at homes, from prompts that they computed and all other costs: least squares of relative errors.
// Homes without a prompt cost as much as the mean of the others.
void FitPairs(const std::vector<MeasuredPrompt>& prompts, size_t homes, StepCosts* costs);

// The costs that these windows show: those of one micro-batch, as least squares of relative errors, none of them
// negative; and how far both sides slow each other down, of windows with several. has_fabric: a home is on another
// host, so that a hop's rows take the link's time. REQUIRES: a window of one micro-batch, and at most
// CostCurve::kPointsMax batches.
Fit FitCosts(const std::vector<MeasuredWindow>& windows, int layers, bool has_fabric);

// The x >= 0 that minimise the sum of ((rows[i] * x - values[i]) / scales[i])^2, by trying which of them are zero. At
// most three unknowns. Without scales, errors are relative: these are the values. REQUIRES: scales[i] > 0.
std::vector<double> SolveNonNegative(const std::vector<std::vector<double>>& rows, const std::vector<double>& values,
                                     std::vector<double> scales = {});

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_FIT_COSTS_H_
