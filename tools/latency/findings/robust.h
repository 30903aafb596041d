#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_ROBUST_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_ROBUST_H_

#include <cstddef>
#include <vector>

namespace fastdecode {

// Estimates that a few wild samples do not move, with errors that hold although samples close in time are alike: a
// recording is cut into stretches (blocks), and what differs between them says how far the whole can be trusted.

// The middle one; of an even number the lower. 0 for none.
double Median(std::vector<double> values);
// Quantile by nearest rank, share in [0, 1]. 0 for none.
double QuantileOf(std::vector<double> values, double share);
// 1.4826 times the median distance from the median: the standard deviation, where values are normal.
double Spread(const std::vector<double>& values);

struct Estimate {
  double value = 0;
  double error = 0;  // standard error
  int blocks = 0;    // 0: nothing is known
};

// What stands out by fewer standard errors than this does not stand out, where the errors come of so many blocks: the
// fewer, the less are they to be trusted themselves.
double Significant(int blocks);

// One value a block.
Estimate EstimateFromBlocks(const std::vector<double>& of_block);

struct Sample {
  double x = 0, y = 0;
  int block = 0;
};

// y = level + slope (x - mean_x), by samples that are not far off it.
struct Line {
  size_t samples = 0;  // 0: nothing is known
  int blocks = 0;      // that have any
  double mean_x = 0;
  double level = 0, level_error = 0;
  double slope = 0, slope_error = 0;  // error: infinite where x does not vary

  double At(double x) const { return level + slope * (x - mean_x); }
};

// Errors by leaving out one block after the other. Nothing is known with samples in fewer than three blocks.
Line FitLine(const std::vector<Sample>& samples, int blocks);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_ROBUST_H_
