// Times at which the whole engine stood still.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/latency/analysis/silence.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

std::string Describe(const Evidence& evidence, const std::vector<Silence>& silences, const Silence& longest) {
  const uint64_t after_ns = longest.start_ns - std::min(longest.start_ns, evidence.recording.StartNs());
  const std::string when = longest.at_end ? absl::StrCat("in the last ", FormatNs(longest.ns()), " of the recording")
                                          : absl::StrFormat("for %s, %.3f s into the recording", FormatNs(longest.ns()),
                                                            static_cast<double>(after_ns) * 1e-9);
  std::string line = absl::StrCat("the whole engine stood still: it did nothing ", when, ", though it had requests");
  if (silences.size() > 1) absl::StrAppend(&line, " (and for less ", silences.size() - 1, " times more)");
  return line;
}

}  // namespace

std::vector<Finding> FindStandstills(const Evidence& evidence) {
  const std::vector<Silence> silences = FindSilences(evidence.recording, evidence.timeline);
  if (silences.empty()) return {};
  const auto shorter = [](const Silence& a, const Silence& b) { return a.ns() < b.ns(); };
  const Silence& longest = *std::max_element(silences.begin(), silences.end(), shorter);
  double sum_ns = 0;
  for (const Silence& silence : silences) sum_ns += silence.ns();
  Finding finding;
  finding.phase = "engine";
  finding.kind = "silence";
  finding.amount = longest.ns();
  finding.unit = "ns";
  finding.share = sum_ns / static_cast<double>(evidence.recording.EndNs() - evidence.recording.StartNs());
  // Each step had to wait so long, on average.
  finding.cost_ns = sum_ns / static_cast<double>(std::max<size_t>(1, evidence.timeline.steps.size()));
  finding.line = Describe(evidence, silences, longest);
  return {finding};
}

}  // namespace fastdecode
