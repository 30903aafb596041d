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

void AddStageDelays(const Evidence& evidence, std::vector<Delay>* delays) {
  std::array<std::vector<Work>, FD_STAGE_REST + 1> works;
  std::vector<Work> logits;  // one a step, compared with those of other decode steps
  for (const StepTimes& step : evidence.timeline.steps) {
    for (std::vector<Work>& of_part : works) of_part.clear();
    for (const PartTimes& part : evidence.PartsOf(step)) {
      if (part.part >= works.size()) continue;
      const Work work = {part.end_ns, static_cast<double>(part.end_ns - part.start_ns)};
      if (part.part != FD_STAGE_LOGITS) works[part.part].push_back(work);
      if (part.part == FD_STAGE_LOGITS && !step.prefill) logits.push_back(work);
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
  for (const fd_record_event& event : evidence.recording.events) {
    if (event.kind != FD_RECORD_HOP || event.polled_ns <= event.start_ns || event.polled_ns > event.end_ns) continue;
    const uint64_t busy_ns = evidence.pipeline.WorkBetween(event.polled_ns, event.end_ns);
    const double away_ns = static_cast<double>(event.end_ns - event.polled_ns - busy_ns);
    if (away_ns >= kDelayMinNs) delays->push_back({event.end_ns, away_ns, 0, true});
  }
}

// The leader's own work in hops, or its wait for the others, who do the same.
void AddHopDelays(const Evidence& evidence, int home, bool team, std::vector<Delay>* delays) {
  std::vector<Work> works;
  for (const StepTimes& step : evidence.timeline.steps) {
    works.clear();
    for (const HopTimes& hop : evidence.HopsOf(step)) {
      if (hop.home != home) continue;
      const auto team_ns = static_cast<double>(hop.team_ns), own_ns = static_cast<double>(hop.work_ns()) - team_ns;
      works.push_back({hop.seen_ns - hop.pickup_ns, team ? team_ns : own_ns, team ? own_ns : 0});
    }
    AddDelays(works, delays);
  }
}

// Hops for which the leader had looked for longer than they were late. A link says less than its time on the wire, of
// which it is not known when the leader had the hop to begin with; in memory all until the work began is known.
void AddLateStarts(const Evidence& evidence, int home, std::vector<Delay>* delays) {
  const bool in_memory = evidence.InMemory(home);
  const auto until_start_ns = [in_memory](const HopTimes& hop) {
    return static_cast<double>(in_memory ? hop.wire_there_ns : hop.wire_ns);
  };
  std::vector<double> usually_ns;
  for (const HopTimes* hop : evidence.HopsOfLink(home).hops) usually_ns.push_back(until_start_ns(*hop));
  const double usual_ns = Median(std::move(usually_ns));
  for (const HopTimes& hop : evidence.timeline.hops) {
    if (hop.home != home || hop.idle_ns == 0) continue;
    const double late_ns = until_start_ns(hop) - usual_ns;
    const double least_ns = in_memory ? late_ns : static_cast<double>(hop.wire_least_ns) - usual_ns;
    const double before_ns = static_cast<double>(hop.idle_ns) - late_ns;
    // While it stood still it believed to look.
    if (least_ns < kDelayMinNs || before_ns < 0) continue;
    delays->push_back({hop.seen_ns - hop.pickup_ns, late_ns, usual_ns, in_memory, before_ns});
  }
}

}  // namespace

std::vector<Delay> PipelineDelays(const Evidence& evidence) {
  std::vector<Delay> delays;
  // A GPU's are none of the thread's.
  if (!evidence.recording.stages_overlap()) AddStageDelays(evidence, &delays);
  AddOtherDelays(evidence, &delays);
  AddLateLooks(evidence, &delays);
  return delays;
}

std::vector<Delay> LeaderDelays(const Evidence& evidence, int home) {
  std::vector<Delay> delays;
  AddHopDelays(evidence, home, false, &delays);
  AddLateStarts(evidence, home, &delays);
  return delays;
}

std::vector<Delay> TeamDelays(const Evidence& evidence, int home) {
  std::vector<Delay> delays;
  AddHopDelays(evidence, home, true, &delays);
  return delays;
}

}  // namespace fastdecode
