#ifndef FASTDECODE_TOOLS_LATENCY_UNCERTAINTY_H_
#define FASTDECODE_TOOLS_LATENCY_UNCERTAINTY_H_

#include <cstdint>
#include <vector>

namespace fastdecode {

// By how much a statistic of samples would differ in another run of the same thing.
//
// The samples of a run have much in common: the hops of a step, the tokens of a request, all of the seconds in which the
// load was high. As if they had nothing in common, a statistic of thousands would look far too certain. So the samples
// are cut, in order of time, into kUncertaintyBlocks blocks, and what the statistic of each block is off that of all says
// how certain that is (sectioning: Asmussen and Glynn, Stochastic Simulation, 2007, III.5; of percentiles: Nakayama, ACM
// Transactions on Modeling and Computer Simulation 24, 2014). Blocks still follow each other where a load takes seconds
// to change: their first autocorrelation says by how much too little they differ (prewhitening by an autoregression of
// order 1: Andrews and Monahan, Econometrica 60, 1992; that of a short series is too small, and is corrected as in
// Marriott and Pope, Biometrika 41, 1954). A run that is not much longer than its load's moods cannot tell well.
//
// Measured on pairs of simulated runs that differ in their seed alone, with a load that changes over some seconds
// (tests/tools/latency/compare_runs_test.cc): at 95 % confidence 6 % of all rows differ in runs of 10 s, 4.5 % of 30 s, 4 %
// of 60 s. As if samples were independent it was 62 %.
struct Uncertainty {
  double error_ns = 0;  // standard error
  double freedom = 0;   // degrees of freedom, of Student's t: what the error rests on itself. 0: too few samples to say
};

struct Uncertainties {
  Uncertainty mean, p50, p90, p99;
};

inline constexpr int kUncertaintyBlocks = 16;
// Fewer samples do not make a block, and fewer blocks tell nothing of each other.
inline constexpr int kBlockSamplesMin = 4;
inline constexpr int kUncertaintyBlocksMin = 8;

// The statistics of each block.
struct BlockStatistics {
  std::vector<double> mean, p50, p90, p99;  // [blocks]; empty: too few samples
};

// Sorts each block of `samples_ns`, which is in order of time.
BlockStatistics TakeBlocks(std::vector<uint64_t>* samples_ns);
// Of one statistic, whose value of all samples is `of_all`.
Uncertainty JudgeBlocks(const std::vector<double>& of_blocks, double of_all);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_UNCERTAINTY_H_
