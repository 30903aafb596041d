#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_

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
};

// How `home` compares with its like: with the middle one of the others, so that one bad home among them does not
// matter; of two the quicker. Nothing: it does not stand out.
std::optional<Excess> CompareHome(const std::vector<Line>& lines, size_t home, const ExcessFloor& floor);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_COMPARE_HOMES_H_
