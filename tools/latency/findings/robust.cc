#include "tools/latency/findings/robust.h"

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
// Samples of which every two give a slope: their number goes into the time squared.
constexpr size_t kSlopeSamplesMax = 128;
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

// The middle of the slopes between samples, weighted by how far apart they are: far off it are neither wild samples nor
// a few samples far away, of which least squares would take the first for true and a robust fit without it the second
// for wild.
double MiddleSlope(const std::vector<Sample>& samples) {
  const size_t stride = samples.size() / kSlopeSamplesMax + 1;
  struct Weighted {
    double slope, weight;
  };
  std::vector<Weighted> slopes;
  double weights = 0;
  for (size_t i = 0; i < samples.size(); i += stride) {
    for (size_t k = 0; k < i; k += stride) {
      const double dx = samples[i].x - samples[k].x;
      if (dx == 0) continue;
      slopes.push_back({(samples[i].y - samples[k].y) / dx, std::abs(dx)});
      weights += std::abs(dx);
    }
  }
  std::sort(slopes.begin(), slopes.end(), [](const Weighted& a, const Weighted& b) { return a.slope < b.slope; });
  double below = 0;
  for (const Weighted& one : slopes) {
    below += one.weight;
    if (2 * below >= weights) return one.slope;
  }
  return 0;
}

class LineFit {
 public:
  // REQUIRES: samples.
  LineFit(const std::vector<Sample>& samples, int blocks)
      : samples_(samples), distances_(samples.size()), of_block_(static_cast<size_t>(blocks)) {
    std::vector<double> xs, ys;
    for (const Sample& sample : samples) xs.push_back(sample.x);
    x0_ = Median(std::move(xs));
    slope_ = MiddleSlope(samples);
    for (const Sample& sample : samples) ys.push_back(sample.y - slope_ * (sample.x - x0_));
    y0_ = level_ = Median(std::move(ys));
  }

  // Least squares again, of samples that are not far off the line as it is.
  void Refit() {
    // Half of all samples are within the median distance, so that some always count.
    for (size_t i = 0; i < samples_.size(); ++i) distances_[i] = std::abs(Off(samples_[i]));
    const double cut = std::max(kBiweight * kSpreadOfNormal * Median(distances_), kCutMin * std::abs(y0_));
    std::fill(of_block_.begin(), of_block_.end(), Sums());
    all_ = Sums();
    for (const Sample& sample : samples_) {
      const double off = cut > 0 ? Off(sample) / cut : Off(sample) == 0 ? 0 : 1;
      if (std::abs(off) >= 1) continue;
      const double weight = (1 - off * off) * (1 - off * off);
      of_block_[static_cast<size_t>(sample.block)].Add(sample.x - x0_, sample.y - y0_, weight);
      all_.Add(sample.x - x0_, sample.y - y0_, weight);
    }
    varies_ = std::sqrt(std::max(0.0, all_.VarianceX())) > kVariesMin * std::abs(x0_);
    slope_ = varies_ ? all_.Slope() : 0;
    level_ = y0_ + (all_.y - slope_ * all_.x) / all_.w;
  }

  Line WithErrors() const {
    Line line;
    const double mean_dx = all_.x / all_.w;
    double levels = 0, slopes = 0;  // squares
    for (const Sums& block : of_block_) {
      if (block.w <= 0) continue;
      ++line.blocks;
      const Sums rest = all_.Without(block);
      if (rest.w <= 0) continue;
      const double slope = varies_ ? rest.Slope() : 0;
      const double level = y0_ + rest.y / rest.w + slope * (mean_dx - rest.x / rest.w);
      const double level_off = level - (level_ + slope_ * mean_dx);
      levels += level_off * level_off;
      slopes += (slope - slope_) * (slope - slope_);
    }
    if (line.blocks < kBlocksMin) return {};
    line.samples = samples_.size();
    line.mean_x = x0_ + mean_dx;
    line.level = level_ + slope_ * mean_dx;
    line.slope = slope_;
    const double jackknife = static_cast<double>(line.blocks - 1) / line.blocks;
    line.level_error = std::sqrt(jackknife * levels);
    line.slope_error = varies_ ? std::sqrt(jackknife * slopes) : std::numeric_limits<double>::infinity();
    return line;
  }

 private:
  double Off(const Sample& sample) const { return sample.y - level_ - slope_ * (sample.x - x0_); }

  const std::vector<Sample>& samples_;
  std::vector<double> distances_;
  std::vector<Sums> of_block_;
  Sums all_;
  double x0_ = 0, y0_ = 0;        // the origin of the sums
  double slope_ = 0, level_ = 0;  // at x0_
  bool varies_ = false;
};

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
  if (samples.empty()) return {};
  LineFit fit(samples, blocks);
  for (int i = 0; i < kRefits; ++i) fit.Refit();
  return fit.WithErrors();
}

}  // namespace fastdecode
