#include "tools/latency/robust.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace fastdecode {

namespace {

constexpr double kSpreadOfNormal = 1.4826;
// The error of a median of normal values, in errors of their mean: sqrt(pi / 2).
constexpr double kMedianError = 1.2533;
// Tukey's biweight: samples this many spreads off do not count at all; at this value normal samples lose 5 %
// efficiency.
constexpr double kBiweight = 4.685;
constexpr int kRefits = 8;
// Samples that are all but equal are equal.
constexpr double kCutMin = 1e-9;
constexpr int kBlocksMin = 3;
// One in 300,000: some hundred comparisons are made of a recording, which are not all independent.
constexpr double kSignificantNormal = 4.5;

// What a least-squares line needs of its samples. Sums around a fixed x, so that large x lose no digits.
struct Sums {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;

  void Add(double dx, double dy, double weight) {
    w += weight;
    x += weight * dx;
    y += weight * dy;
    xx += weight * dx * dx;
    xy += weight * dx * dy;
  }
  Sums Without(const Sums& o) const { return {w - o.w, x - o.x, y - o.y, xx - o.xx, xy - o.xy}; }
  double VarianceX() const { return w > 0 ? xx / w - (x / w) * (x / w) : 0; }
  double Slope() const {
    const double variance = VarianceX();
    return variance > 0 ? (xy / w - (x / w) * (y / w)) / variance : 0;
  }
};

// x that varies by less than this share of itself is constant.
constexpr double kVariesMin = 1e-3;

}  // namespace

double Significant(int blocks) {
  // Student's quantile by two terms of its expansion around the normal one.
  const double z = kSignificantNormal, freedom = std::max(1, blocks - 1);
  return z * (1 + (z * z + 1) / (4 * freedom) + (5 * z * z * z * z + 16 * z * z + 3) / (96 * freedom * freedom));
}

double QuantileOf(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()) - 1e-9);
  const size_t index = rank < 1 ? 0 : std::min(values.size(), static_cast<size_t>(rank)) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

double Median(std::vector<double> values) { return QuantileOf(std::move(values), 0.5); }

double Spread(const std::vector<double>& values) {
  const double middle = Median(values);
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return kSpreadOfNormal * Median(std::move(distances));
}

Estimate EstimateFromBlocks(const std::vector<double>& of_block) {
  Estimate estimate;
  estimate.blocks = static_cast<int>(of_block.size());
  if (of_block.empty()) return estimate;
  estimate.value = Median(of_block);
  estimate.error = of_block.size() < kBlocksMin
                       ? std::numeric_limits<double>::infinity()
                       : kMedianError * Spread(of_block) / std::sqrt(static_cast<double>(of_block.size()));
  return estimate;
}

Line FitLine(const std::vector<Sample>& samples, int blocks) {
  Line line;
  if (samples.empty()) return line;
  std::vector<double> xs, distances(samples.size());
  for (const Sample& sample : samples) xs.push_back(sample.x);
  const double x0 = Median(std::move(xs));
  std::vector<double> ys;
  for (const Sample& sample : samples) ys.push_back(sample.y);
  const double y0 = Median(std::move(ys));

  std::vector<Sums> of_block(static_cast<size_t>(blocks));
  Sums all;
  double slope = 0, level = y0;  // at x0
  bool varies = false;
  for (int fit = 0; fit < kRefits; ++fit) {
    // Half of all samples are within the median distance, so that some always count.
    for (size_t i = 0; i < samples.size(); ++i) {
      distances[i] = std::abs(samples[i].y - level - slope * (samples[i].x - x0));
    }
    const double cut = std::max(kBiweight * kSpreadOfNormal * Median(distances), kCutMin * std::abs(y0));
    if (cut <= 0) break;
    std::fill(of_block.begin(), of_block.end(), Sums());
    all = Sums();
    for (const Sample& sample : samples) {
      const double off = (sample.y - level - slope * (sample.x - x0)) / cut;
      if (std::abs(off) >= 1) continue;
      const double weight = (1 - off * off) * (1 - off * off);
      of_block[static_cast<size_t>(sample.block)].Add(sample.x - x0, sample.y - y0, weight);
      all.Add(sample.x - x0, sample.y - y0, weight);
    }
    varies = std::sqrt(std::max(0.0, all.VarianceX())) > kVariesMin * std::abs(x0);
    slope = varies ? all.Slope() : 0;
    level = y0 + (all.y - slope * all.x) / all.w;
  }
  if (all.w <= 0) return line;

  const double mean_dx = all.x / all.w;
  double levels = 0, slopes = 0;  // squares
  int used = 0;
  for (const Sums& block : of_block) {
    if (block.w <= 0) continue;
    ++used;
    const Sums rest = all.Without(block);
    if (rest.w <= 0) continue;
    const double rest_slope = varies ? rest.Slope() : 0;
    const double rest_level = y0 + rest.y / rest.w + rest_slope * (mean_dx - rest.x / rest.w);
    const double level_off = rest_level - (level + slope * mean_dx);
    levels += level_off * level_off;
    slopes += (rest_slope - slope) * (rest_slope - slope);
  }
  if (used < kBlocksMin) return line;
  line.samples = samples.size();
  line.blocks = used;
  line.mean_x = x0 + mean_dx;
  line.level = level + slope * mean_dx;
  line.slope = slope;
  const double jackknife = static_cast<double>(used - 1) / used;
  line.level_error = std::sqrt(jackknife * levels);
  line.slope_error = varies ? std::sqrt(jackknife * slopes) : std::numeric_limits<double>::infinity();
  return line;
}

}  // namespace fastdecode
