#include "tools/latency/findings/compare_homes.h"

#include <algorithm>
#include <cmath>

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

std::optional<Excess> CompareHome(const std::vector<Line>& lines, size_t home, const ExcessFloor& floor) {
  const Line& own = lines[home];
  if (own.samples == 0) return std::nullopt;
  std::vector<const Line*> others;
  for (size_t h = 0; h < lines.size(); ++h) {
    if (h != home && lines[h].samples > 0) others.push_back(&lines[h]);
  }
  if (others.empty()) return std::nullopt;
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
  std::nth_element(others.begin(), middle, others.end(), [&own](const Line* a, const Line* b) {
    return Expected(*a, own.mean_x, 0) < Expected(*b, own.mean_x, 0);
  });
  const Line& other = **middle;
  const double at_most = ExpectedAtMost(other, own.mean_x);
  const double certain_ns = own.level - at_most;
  const double error = std::hypot(own.level_error, other.level_error);
  if (certain_ns <= std::max(floor.ns, floor.share * at_most)) return std::nullopt;
  if (certain_ns <= Significant(std::min(own.blocks, other.blocks)) * error) return std::nullopt;
  Excess excess;
  excess.home = static_cast<int>(home);
  excess.ns = own.level - Expected(other, own.mean_x, 0);
  excess.own = own;
  excess.other = other;
  return excess;
}

}  // namespace fastdecode
