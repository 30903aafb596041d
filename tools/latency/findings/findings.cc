#include "tools/latency/findings/findings.h"

#include <algorithm>
#include <utility>

#include "tools/latency/findings/finders.h"

namespace fastdecode {

std::vector<Finding> FindFaults(const Recording& recording, const Timeline& timeline) {
  const Evidence evidence(recording, timeline);
  std::vector<Finding> findings;
  const auto add = [&findings](std::vector<Finding> more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  const std::vector<Stalls> stalls = FindStalls(evidence);
  for (const Stalls& of_core : stalls) findings.push_back(DescribeStalls(evidence, of_core));
  add(FindLateHops(evidence, stalls));
  add(FindSlowLinks(evidence));
  add(FindSlowHomes(evidence));
  add(FindUnbalancedPlacement(evidence));
  add(FindSlowLayers(evidence));
  add(FindPauses(evidence));
  add(FindStandstills(evidence));
  add(FindLosses(evidence));
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.cost_ns > b.cost_ns; });
  return findings;
}

}  // namespace fastdecode
