#include "tools/latency/findings/delays.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "tools/latency/findings/robust.h"

namespace fastdecode {

namespace {

// Shorter ones are what timers and caches do everywhere; and long spans vary by more.
constexpr double kDelayMinNs = 1e6;
constexpr double kDelayMinShare = 0.5;  // of the usual span
// For a median of a step's layers.
constexpr size_t kLayersMin = 4;

bool IsDelay(double excess_ns, double usual_ns) {
  return excess_ns >= kDelayMinNs && excess_ns >= kDelayMinShare * usual_ns;
}

struct Work {
  uint64_t end_ns = 0;
  double ns = 0;
  double beside_ns = 0;  // what it is the rest of
};

// Compares spans of one kind, of which each should take as long as the others.
void AddDelays(const std::vector<Work>& works, std::vector<Delay>* delays) {
  if (works.size() < kLayersMin) return;
  std::vector<double> ns, whole_ns;
  for (const Work& work : works) {
    ns.push_back(work.ns);
    whole_ns.push_back(work.ns + work.beside_ns);
  }
  const double usual_ns = Median(std::move(ns)), usual_whole_ns = Median(std::move(whole_ns));
  for (const Work& work : works) {
    const double excess_ns = work.ns - usual_ns;
    if (IsDelay(excess_ns, usual_whole_ns)) delays->push_back({work.end_ns, excess_ns, usual_whole_ns, true});
  }
}

bool IsPipelineWork(uint8_t kind) {
  return kind == FD_RECORD_COMPOSE || kind == FD_RECORD_ROSTERS || kind == FD_RECORD_STAGE || kind == FD_RECORD_POST ||
         kind == FD_RECORD_FINISH;
}

// What the pipeline thread did, one after the other.
class PipelineWork {
 public:
  explicit PipelineWork(const std::vector<fd_record_event>& events) {
    uint64_t until = 0, sum = 0;
    for (const fd_record_event& event : events) {
      if (!IsPipelineWork(event.kind)) continue;
      const uint64_t start = std::max(event.start_ns, until);
      if (start >= event.end_ns) continue;
      spans_.push_back({start, event.end_ns, sum});
      sum += event.end_ns - start;
      until = event.end_ns;
    }
  }

  uint64_t Between(uint64_t from_ns, uint64_t to_ns) const { return Until(to_ns) - Until(from_ns); }

 private:
  struct Span {
    uint64_t start_ns, end_ns, before_ns;  // before: the sum of those before
  };
  uint64_t Until(uint64_t at_ns) const {
    const auto next =
        std::partition_point(spans_.begin(), spans_.end(), [at_ns](const Span& span) { return span.start_ns < at_ns; });
    if (next == spans_.begin()) return 0;
    const Span& span = *(next - 1);
    return span.before_ns + std::min(at_ns, span.end_ns) - span.start_ns;
  }

  std::vector<Span> spans_;
};

void AddStageDelays(const Evidence& evidence, std::vector<Delay>* delays) {
  const Timeline& timeline = evidence.timeline;
  std::array<std::vector<Work>, FD_STAGE_REST + 1> works;
  std::vector<Work> logits;  // one a step, compared with those of other decode steps
  for (const StepTimes& step : timeline.steps) {
    for (std::vector<Work>& of_part : works) of_part.clear();
    for (uint32_t s = step.first_stage; s < step.first_stage + step.stages; ++s) {
      const StageTimes& stage = timeline.stages[s];
      for (uint32_t p = stage.first_part; p < stage.first_part + stage.parts; ++p) {
        const PartTimes& part = timeline.parts[p];
        if (part.part >= works.size()) continue;
        const Work work = {part.end_ns, static_cast<double>(part.end_ns - part.start_ns)};
        if (part.part != FD_STAGE_LOGITS) works[part.part].push_back(work);
        if (part.part == FD_STAGE_LOGITS && !step.prefill) logits.push_back(work);
      }
    }
    for (const std::vector<Work>& of_part : works) AddDelays(of_part, delays);
  }
  AddDelays(logits, delays);
}

void AddOtherDelays(const Evidence& evidence, std::vector<Delay>* delays) {
  for (const fd_record_kind kind : {FD_RECORD_COMPOSE, FD_RECORD_ROSTERS, FD_RECORD_POST, FD_RECORD_FINISH}) {
    std::vector<Work> works;
    for (const fd_record_event& event : evidence.recording.events) {
      if (event.kind == kind) works.push_back({event.end_ns, static_cast<double>(event.end_ns - event.start_ns)});
    }
    AddDelays(works, delays);
  }
}

// A reply is seen at the next look; and where there is nothing to do, that is at once.
void AddLateLooks(const Evidence& evidence, std::vector<Delay>* delays) {
  const PipelineWork work(evidence.recording.events);
  for (const fd_record_event& event : evidence.recording.events) {
    if (event.kind != FD_RECORD_HOP || event.polled_ns <= event.start_ns || event.polled_ns > event.end_ns) continue;
    const uint64_t busy_ns = work.Between(event.polled_ns, event.end_ns);
    const double away_ns = static_cast<double>(event.end_ns - event.polled_ns - busy_ns);
    if (away_ns >= kDelayMinNs) delays->push_back({event.end_ns, away_ns, 0, true});
  }
}

// The leader's own work in hops, or its wait for the others, who do the same.
void AddHopDelays(const Evidence& evidence, int home, bool team, std::vector<Delay>* delays) {
  std::vector<Work> works;
  for (const StepTimes& step : evidence.timeline.steps) {
    works.clear();
    for (const HopTimes* hop = evidence.HopsBegin(step); hop != evidence.HopsEnd(step); ++hop) {
      if (hop->home != home) continue;
      const auto team_ns = static_cast<double>(hop->team_ns), own_ns = static_cast<double>(hop->work_ns()) - team_ns;
      works.push_back({hop->seen_ns - hop->pickup_ns, team ? team_ns : own_ns, team ? own_ns : 0});
    }
    AddDelays(works, delays);
  }
}

}  // namespace

std::vector<Delay> PipelineDelays(const Evidence& evidence) {
  std::vector<Delay> delays;
  AddStageDelays(evidence, &delays);
  AddOtherDelays(evidence, &delays);
  AddLateLooks(evidence, &delays);
  return delays;
}

std::vector<Delay> LeaderDelays(const Evidence& evidence, int home) {
  std::vector<Delay> delays;
  AddHopDelays(evidence, home, false, &delays);
  std::vector<double> wire_ns;
  for (const HopTimes& hop : evidence.timeline.hops) {
    if (hop.home == home && 2 * hop.wire_least_ns > hop.wire_ns) wire_ns.push_back(static_cast<double>(hop.wire_ns));
  }
  const double usual_ns = Median(std::move(wire_ns));
  for (const HopTimes& hop : evidence.timeline.hops) {
    if (hop.home != home || hop.idle_ns == 0) continue;
    const double late_ns = static_cast<double>(hop.wire_ns) - usual_ns;
    if (static_cast<double>(hop.wire_least_ns) - usual_ns < kDelayMinNs) continue;
    // While it stood still it believed to look.
    if (static_cast<double>(hop.idle_ns) < late_ns) continue;
    delays.push_back({hop.seen_ns - hop.pickup_ns, late_ns, usual_ns, false});
  }
  return delays;
}

std::vector<Delay> TeamDelays(const Evidence& evidence, int home) {
  std::vector<Delay> delays;
  AddHopDelays(evidence, home, true, &delays);
  return delays;
}

}  // namespace fastdecode
