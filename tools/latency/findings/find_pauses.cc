// Times at which the scheduler took no events: callers got no tokens, and once the queue was full no step began.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// The scheduler is an ordinary thread: it is away for some milliseconds wherever cores are shared, and may be, as long
// as no step is held.
constexpr double kHeldMinNs = 10e6;
constexpr double kDeliveryMinNs = 50e6;
// And that many times as long as deliveries usually take.
constexpr double kDeliveryTimes = 20;

struct Pause {
  uint64_t start_ns = 0, end_ns = 0;
  bool held = false;  // steps were
  double ns = 0;      // as far as one can see
};

// Tokens that were taken late. The pause began before the first of them was made, and after the last one that was taken
// in time: in the middle, for all that is known, but no further back than a sequence's tokens are apart.
std::vector<Pause> LateDeliveries(const Evidence& evidence) {
  std::vector<const fd_record_event*> deliveries;
  std::vector<double> taken_ns;
  for (const fd_record_event& event : evidence.recording.events) {
    if (event.kind != FD_RECORD_DELIVER) continue;
    deliveries.push_back(&event);
    taken_ns.push_back(static_cast<double>(event.end_ns - event.start_ns));
  }
  const double late_ns = std::max(kHeldMinNs, kDeliveryTimes * Median(std::move(taken_ns)));
  std::vector<Pause> pauses;
  uint64_t in_time_ns = 0;  // when the last one was taken before the pause
  for (const fd_record_event* delivery : deliveries) {
    if (static_cast<double>(delivery->end_ns - delivery->start_ns) < late_ns) {
      in_time_ns = delivery->end_ns;
      continue;
    }
    if (!pauses.empty() && delivery->start_ns <= pauses.back().end_ns) {
      pauses.back().start_ns = std::min(pauses.back().start_ns, delivery->start_ns);
      continue;
    }
    Pause pause;
    pause.start_ns = delivery->start_ns;
    pause.end_ns = delivery->end_ns;
    const bool known = in_time_ns > 0 && in_time_ns < pause.start_ns;
    const double before_ns = known ? static_cast<double>(pause.start_ns - in_time_ns) : 0;
    pause.ns = std::min(before_ns, evidence.token_ns()) / 2;
    pauses.push_back(pause);
  }
  for (Pause& pause : pauses) pause.ns += static_cast<double>(pause.end_ns - pause.start_ns);
  return pauses;
}

void AddHeld(const Evidence& evidence, std::vector<Pause>* pauses) {
  for (const Span& held : evidence.timeline.held) {
    const auto same = std::find_if(pauses->begin(), pauses->end(), [&held](const Pause& pause) {
      return held.start_ns <= pause.end_ns && pause.start_ns <= held.end_ns;
    });
    const auto ns = static_cast<double>(held.end_ns - held.start_ns);
    if (same != pauses->end()) {
      same->held = true;
      same->ns = std::max(same->ns, ns);
    } else {
      pauses->push_back({held.start_ns, held.end_ns, true, ns});
    }
  }
}

double HeldNs(const Evidence& evidence) {
  double sum_ns = 0;
  for (const Span& held : evidence.timeline.held) sum_ns += static_cast<double>(held.end_ns - held.start_ns);
  return sum_ns;
}

}  // namespace

std::vector<Finding> FindPauses(const Evidence& evidence) {
  std::vector<Pause> pauses = LateDeliveries(evidence);
  AddHeld(evidence, &pauses);
  std::erase_if(pauses, [](const Pause& pause) { return pause.ns < (pause.held ? kHeldMinNs : kDeliveryMinNs); });
  if (pauses.empty()) return {};
  const Pause& longest =
      *std::max_element(pauses.begin(), pauses.end(), [](const Pause& a, const Pause& b) { return a.ns < b.ns; });
  Finding finding;
  finding.phase = "scheduler";
  finding.kind = "pause";
  finding.amount = longest.ns;
  finding.unit = "ns";
  if (!evidence.timeline.steps.empty()) {
    finding.cost_ns = HeldNs(evidence) / static_cast<double>(evidence.timeline.steps.size());
  }
  char text[200];
  std::snprintf(
      text, sizeof(text), "the scheduler took no events for %s, %.3f s into the recording%s%s (",
      FormatNs(longest.ns).c_str(),
      static_cast<double>(longest.start_ns - std::min(longest.start_ns, evidence.timeline.start_ns)) * 1e-9,
      longest.held ? ", and steps had to wait for it" : "",
      pauses.size() > 1 ? (", and for less " + std::to_string(pauses.size() - 1) + " times more").c_str() : "");
  finding.line = text + CostText(finding.cost_ns) + ")";
  return {finding};
}

}  // namespace fastdecode
