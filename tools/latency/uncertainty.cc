#include "tools/latency/uncertainty.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fastdecode {

namespace {

// Of so few blocks an estimate near 1 is chance rather than truth, and would make an interval without an end. With 0.95,
// intervals of simulated runs were a fifth wider, and as often wrong.
constexpr double kCorrelationMax = 0.8;
constexpr double kFreedomMin = 2;

// By nearest rank. REQUIRES: ascending, not empty.
double PercentileOf(const uint64_t* begin, size_t count, double share) {
  const double rank = std::ceil(share * static_cast<double>(count) * (1 - 1e-12));
  return static_cast<double>(begin[std::min(count, static_cast<size_t>(std::max(1.0, rank))) - 1]);
}

// How many times the variance of the mean of blocks is that of as many that do not follow each other.
double Inflation(const std::vector<double>& of_blocks) {
  const double blocks = static_cast<double>(of_blocks.size());
  double mean = 0;
  for (const double value : of_blocks) mean += value / blocks;
  double squares = 0, products = 0;
  for (size_t i = 0; i < of_blocks.size(); ++i) {
    squares += (of_blocks[i] - mean) * (of_blocks[i] - mean);
    if (i > 0) products += (of_blocks[i] - mean) * (of_blocks[i - 1] - mean);
  }
  if (squares <= 0) return 1;
  const double corrected = (products / squares * blocks + 1) / (blocks - 3);
  const double correlation = std::clamp(corrected, 0.0, kCorrelationMax);
  return (1 + correlation) / (1 - correlation);
}

}  // namespace

BlockStatistics TakeBlocks(std::vector<uint64_t>* samples_ns) {
  BlockStatistics out;
  const size_t count = samples_ns->size();
  const size_t blocks = std::min<size_t>(kUncertaintyBlocks, count / kBlockSamplesMin);
  if (blocks < kUncertaintyBlocksMin) return out;
  for (size_t block = 0; block < blocks; ++block) {
    uint64_t* const begin = samples_ns->data() + block * count / blocks;
    uint64_t* const end = samples_ns->data() + (block + 1) * count / blocks;
    std::sort(begin, end);
    const size_t in_block = static_cast<size_t>(end - begin);
    double sum = 0;
    for (const uint64_t* ns = begin; ns != end; ++ns) sum += static_cast<double>(*ns);
    out.mean.push_back(sum / static_cast<double>(in_block));
    out.p50.push_back(PercentileOf(begin, in_block, 0.5));
    out.p90.push_back(PercentileOf(begin, in_block, 0.9));
    out.p99.push_back(PercentileOf(begin, in_block, 0.99));
  }
  return out;
}

Uncertainty JudgeBlocks(const std::vector<double>& of_blocks, double of_all) {
  if (of_blocks.size() < kUncertaintyBlocksMin) return {};
  const double blocks = static_cast<double>(of_blocks.size());
  double squares = 0;
  for (const double value : of_blocks) squares += (value - of_all) * (value - of_all);
  const double inflation = Inflation(of_blocks);
  return {std::sqrt(squares / (blocks - 1) / blocks * inflation), std::max(kFreedomMin, (blocks - 1) / inflation)};
}

}  // namespace fastdecode
