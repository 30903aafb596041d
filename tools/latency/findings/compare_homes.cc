#include "tools/latency/findings/compare_homes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fastdecode {

namespace {

// What `line` would be at x if its slope were off by `errors` of its errors: between nothing and all of it goes with x.
double Expected(const Line& line, double x, double errors) {
  const double proportional = line.mean_x > 0 ? line.level / line.mean_x : 0;
  const double off = std::isfinite(line.slope_error) ? errors * line.slope_error : errors * proportional;
  return line.level + std::clamp(line.slope + off, 0.0, std::max(0.0, proportional)) * (x - line.mean_x);
}

// The most that it may be.
double ExpectedAtMost(const Line& line, double x) {
  const double errors = Significant(line.blocks);
  return std::max(Expected(line, x, errors), Expected(line, x, -errors));
}

}  // namespace

double ExpectedAt(const Line& line, double x) { return Expected(line, x, 0); }

std::optional<Excess> CompareWith(const std::vector<Line>& lines, size_t home, const std::vector<size_t>& others,
                                  const ExcessFloor& floor) {
  const Line& own = lines[home];
  if (own.samples == 0) return std::nullopt;
  std::vector<const Line*> known;
  for (const size_t h : others) {
    if (h != home && lines[h].samples > 0) known.push_back(&lines[h]);
  }
  if (known.empty()) return std::nullopt;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::nth_element(known.begin(), middle, known.end(), [&own](const Line* a, const Line* b) {
    return ExpectedAt(*a, own.mean_x) < ExpectedAt(*b, own.mean_x);
  });
  const Line& other = **middle;
  const double at_most = ExpectedAtMost(other, own.mean_x);
  const double certain_ns = own.level - at_most;
  const double error = std::hypot(own.level_error, other.level_error);
  if (certain_ns <= floor.Of(at_most)) return std::nullopt;
  if (certain_ns <= Significant(std::min(own.blocks, other.blocks)) * error) return std::nullopt;
  Excess excess;
  excess.home = static_cast<int>(home);
  excess.ns = own.level - ExpectedAt(other, own.mean_x);
  excess.own = own;
  excess.other = other;
  return excess;
}

std::optional<Excess> CompareHome(const std::vector<Line>& lines, size_t home, const ExcessFloor& floor) {
  std::vector<size_t> all(lines.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return CompareWith(lines, home, all, floor);
}

}  // namespace fastdecode
