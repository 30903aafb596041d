#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "tools/latency/findings/robust.h"

namespace fastdecode {

// What a home takes beyond what another one would for the same x (bytes).
struct Excess {
  int home = -1;
  double ns = 0;
  Line own, other;
};

// Less is nothing to look for, however sure it is.
struct ExcessFloor {
  double ns = 0;
  double share = 0;  // of what was to be expected

  double Of(double expected_ns) const { return std::max(ns, share * expected_ns); }
};

// What `line` is at x. Extrapolated no further than its slope can be believed: between nothing and all of it goes with
// x.
double ExpectedAt(const Line& line, double x);

// How `home` compares with the middle one of `others` (of two with the quicker), so that one bad home among them does
// not matter. Nothing: it does not stand out.
std::optional<Excess> CompareWith(const std::vector<Line>& lines, size_t home, const std::vector<size_t>& others,
                                  const ExcessFloor& floor);

// The same with all others.
std::optional<Excess> CompareHome(const std::vector<Line>& lines, size_t home, const ExcessFloor& floor);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_
