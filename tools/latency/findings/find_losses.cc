// Homes that were lost: their sequences were computed again elsewhere, and their callers saw a pause.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/latency/analysis/home_losses.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// What a caller saw, from the hop that never came back until the next token.
struct LostPause {
  double until_known_ns = 0, queue_ns = 0, compute_ns = 0;
  double ns() const { return until_known_ns + queue_ns + compute_ns; }
};

// All losses of one home.
struct LossesOfHome {
  size_t losses = 0;
  uint64_t first_ns = 0;
  size_t sequences = 0;           // that were computed again, each time
  size_t homeless = 0;            // that had no home until their end, or the recording's
  std::vector<LostPause> pauses;  // of those that had a token before and after
  double waited_ns = 0;           // until the losses were known, by all sequences together
};

void Add(const HomeLoss& loss, LossesOfHome* of_home) {
  if (of_home->losses++ == 0) of_home->first_ns = loss.lost_ns;
  of_home->sequences += loss.sequences.size();
  of_home->waited_ns += loss.waited_by_all_ns;
  for (const LostSequence& sequence : loss.sequences) {
    if (sequence.joined_ns == 0) ++of_home->homeless;
    if (!sequence.answers || sequence.again_ns == 0 || sequence.joined_ns == 0) continue;
    of_home->pauses.push_back({.until_known_ns = static_cast<double>(sequence.waited_ns),
                               .queue_ns = static_cast<double>(sequence.joined_ns - loss.lost_ns),
                               .compute_ns = static_cast<double>(sequence.again_ns - sequence.joined_ns)});
  }
}

std::string Describe(const Evidence& evidence, int home, const LossesOfHome& of_home, const Finding& finding) {
  const uint64_t since_ns = of_home.first_ns - std::min(of_home.first_ns, evidence.recording.StartNs());
  std::string line = absl::StrFormat("%s was lost %.3f s into the recording", evidence.recording.HomeName(home),
                                     static_cast<double>(since_ns) * 1e-9);
  if (of_home.losses > 1) absl::StrAppend(&line, ", and ", of_home.losses - 1, " times more");
  absl::StrAppend(&line, ": recovery of ", of_home.sequences, of_home.sequences == 1 ? " sequence" : " sequences");
  if (!of_home.pauses.empty()) {
    const LostPause& median = of_home.pauses[of_home.pauses.size() / 2];
    absl::StrAppend(&line, ", with pauses of ", FormatNs(median.ns()), " and at most ",
                    FormatNs(of_home.pauses.back().ns()), " (", FormatNs(median.until_known_ns),
                    " until the loss was known, ", FormatNs(median.queue_ns), " until it had a home again, ",
                    FormatNs(median.compute_ns), " to compute it)");
  }
  if (of_home.homeless > 0) absl::StrAppend(&line, "; ", of_home.homeless, " of them found no home");
  return absl::StrCat(line, " (", CostText(finding.cost_ns), ")");
}

}  // namespace

std::vector<Finding> FindLosses(const Evidence& evidence) {
  std::map<int, LossesOfHome> by_home;
  for (const HomeLoss& loss : FindHomeLosses(evidence.recording)) Add(loss, &by_home[loss.home]);
  std::vector<Finding> findings;
  for (auto& [home, of_home] : by_home) {
    std::sort(of_home.pauses.begin(), of_home.pauses.end(),
              [](const LostPause& a, const LostPause& b) { return a.ns() < b.ns(); });
    double sum_ns = of_home.waited_ns;
    for (const LostPause& pause : of_home.pauses) sum_ns += pause.queue_ns + pause.compute_ns;
    Finding finding;
    finding.phase = "recovery";
    finding.home = home;
    finding.kind = "loss";
    finding.unit = "ns";
    if (!of_home.pauses.empty()) finding.amount = of_home.pauses[of_home.pauses.size() / 2].ns();
    finding.cost_ns = sum_ns / static_cast<double>(std::max<size_t>(1, evidence.timeline.tokens.size()));
    finding.line = Describe(evidence, home, of_home, finding);
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace fastdecode
