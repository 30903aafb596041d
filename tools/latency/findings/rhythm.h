#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_RHYTHM_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_RHYTHM_H_

#include <optional>
#include <vector>

namespace fastdecode {

// What happens in even periods, though not in each, and now and then beside.
struct Rhythm {
  double period_ns = 0;
  std::vector<bool> fits;  // of each moment: it is one of them
};

// moments_ns: ascending. A moment fits if it is within tolerance_ns of the beat, or a few percent of the period.
// Nothing: too few moments, too few of them fit, too few beats have one, or the period is shorter than least_period_ns.
std::optional<Rhythm> FindRhythm(const std::vector<double>& moments_ns, double tolerance_ns, double least_period_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_RHYTHM_H_
