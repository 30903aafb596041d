#include "tools/latency/analysis/phases.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace fastdecode {
namespace {

using Samples = std::vector<uint64_t>;

class PhaseList {
 public:
  void Add(const std::string& name, const std::string& where, Samples samples_ns, double share,
           const std::string& note = "") {
    if (samples_ns.empty()) return;
    Phase phase;
    phase.name = name;
    phase.where = where;
    phase.ns = Distribution(std::move(samples_ns));
    phase.share = share;
    phase.note = note;
    phases_.push_back(std::move(phase));
  }
  std::vector<Phase> Take() { return std::move(phases_); }

 private:
  std::vector<Phase> phases_;
};

Samples TokenSamples(const Timeline& timeline) {
  Samples samples;
  for (const StepTimes& step : timeline.steps) {
    if (MakesTokens(step)) samples.insert(samples.end(), step.tokens, step.end_ns - step.start_ns);
  }
  return samples;
}

// Of each step that spent time there.
Samples StepSamples(const Timeline& timeline, Place place) {
  Samples samples;
  for (const StepTimes& step : timeline.steps) {
    const uint64_t ns = step.place_ns[static_cast<size_t>(place)];
    if (ns > 0) samples.push_back(ns);
  }
  return samples;
}

// Of each layer of each step. What a layer has in several segments counts as one.
Samples LayerSamples(const Timeline& timeline, Place place) {
  Samples samples;
  for (const StepTimes& step : timeline.steps) {
    int layer = -1;
    for (uint32_t i = 0; i < step.segments; ++i) {
      const Segment& segment = timeline.segments[step.first_segment + i];
      if (segment.place != place) continue;
      if (segment.layer != layer) samples.push_back(0);
      layer = segment.layer;
      samples.back() += segment.end_ns - segment.start_ns;
    }
  }
  return samples;
}

struct PartName {
  fd_stage_part part;
  const char* name;
};
constexpr PartName kParts[] = {{FD_STAGE_QKV, "GEMM qkv"},         {FD_STAGE_O, "GEMM o"},
                               {FD_STAGE_GATE_UP, "GEMM gate/up"}, {FD_STAGE_DOWN, "GEMM down"},
                               {FD_STAGE_LOGITS, "GEMM logits"},   {FD_STAGE_SIGNAL, "to and from GPU"},
                               {FD_STAGE_ATTEND, "attention"},     {FD_STAGE_REST, "S-Part rest"}};
constexpr size_t kPartKinds = FD_STAGE_ATTEND + 1;

// What is in the stages. The rest is what the parts leave, whether it was recorded or not.
void AddStages(const Timeline& timeline, const TokenTime& token_time, PhaseList* phases) {
  Samples stages;
  std::array<Samples, kPartKinds> parts;
  std::array<double, kPartKinds> of_tokens{};
  for (const StepTimes& step : timeline.steps) {
    const double weight = MakesTokens(step) ? step.tokens : 0;
    for (uint32_t i = 0; i < step.stages; ++i) {
      const StageTimes& stage = timeline.stages[step.first_stage + i];
      uint64_t rest_ns = stage.end_ns - stage.start_ns;
      stages.push_back(rest_ns);
      const auto add = [&](size_t kind, uint64_t ns) {
        parts[kind].push_back(ns);
        of_tokens[kind] += weight * static_cast<double>(ns);
      };
      for (uint32_t k = 0; k < stage.parts; ++k) {
        const PartTimes& part = timeline.parts[stage.first_part + k];
        if (part.part == 0 || part.part == FD_STAGE_REST || part.part >= kPartKinds) continue;
        const uint64_t ns = std::min(part.end_ns - part.start_ns, rest_ns);
        rest_ns -= ns;
        add(part.part, ns);
      }
      if (stage.parts > 0) add(FD_STAGE_REST, rest_ns);
    }
  }
  phases->Add("S-Part stage", "engine", std::move(stages), token_time.Share(token_time.At(Place::kStage)));
  for (const PartName& part : kParts) {
    phases->Add(part.name, "engine", std::move(parts[part.part]), token_time.Share(of_tokens[part.part]));
  }
}

constexpr char kQueueNote[] = "upper bound: the home was busy, but the link may have been slow as well";
constexpr char kPickupNote[] = "upper bound: the pipeline did not look, but the link may have been slow as well";

struct HopPhase {
  const char* name;
  Place place;
  uint64_t HopTimes::*ns;
  const char* note;
};
constexpr HopPhase kHopPhases[] = {
    {"wire", Place::kWire, &HopTimes::wire_ns, ""},          {"queue", Place::kQueue, &HopTimes::queue_ns, kQueueNote},
    {"prepare", Place::kPrepare, &HopTimes::prepare_ns, ""}, {"append", Place::kAppend, &HopTimes::append_ns, ""},
    {"attend", Place::kAttend, &HopTimes::attend_ns, ""},    {"merge", Place::kMerge, &HopTimes::merge_ns, ""},
    {"team", Place::kTeam, &HopTimes::team_ns, ""}};

void AddHome(const Recording& recording, const Timeline& timeline, int home, const TokenTime& token_time,
             PhaseList* phases) {
  const std::string where = "home " + std::to_string(home);
  Samples hops;
  std::array<Samples, std::size(kHopPhases)> parts;
  for (const HopTimes& hop : timeline.hops) {
    if (hop.home != home) continue;
    hops.push_back(hop.seen_ns - hop.posted_ns);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(hop.*kHopPhases[i].ns);
  }
  Samples posts;
  for (const fd_record_event& event : recording.events) {
    if (IsHop(event, timeline.homes) && event.home == home && event.post_ns > 0) posts.push_back(event.post_ns);
  }
  double hop_ns = token_time.At(Place::kPickup, home);
  for (const HopPhase& phase : kHopPhases) hop_ns += token_time.At(phase.place, home);
  phases->Add("hop", where, std::move(hops), token_time.Share(hop_ns));
  for (size_t i = 0; i < parts.size(); ++i) {
    const HopPhase& phase = kHopPhases[i];
    phases->Add(phase.name, where, std::move(parts[i]), token_time.Share(token_time.At(phase.place, home)), phase.note);
  }
  phases->Add("reply post", where, std::move(posts), 0);
}

Samples DeliverySamples(const Recording& recording) {
  Samples samples;
  for (const fd_record_event& event : recording.events) {
    if (event.kind == FD_RECORD_DELIVER && event.end_ns >= event.start_ns)
      samples.push_back(event.end_ns - event.start_ns);
  }
  return samples;
}

}  // namespace

std::vector<Phase> MeasurePhases(const Recording& recording, const Timeline& timeline, const TokenTime& token_time) {
  PhaseList phases;
  const auto share = [&token_time](Place place) { return token_time.Share(token_time.At(place)); };
  phases.Add("token", "engine", TokenSamples(timeline), token_time.Share(token_time.ns()));
  phases.Add("boundary", "engine", StepSamples(timeline, Place::kBoundary), share(Place::kBoundary));
  phases.Add("held", "engine", StepSamples(timeline, Place::kScheduler), share(Place::kScheduler));
  phases.Add("compose", "engine", StepSamples(timeline, Place::kCompose), share(Place::kCompose));
  AddStages(timeline, token_time, &phases);
  phases.Add("post", "engine", LayerSamples(timeline, Place::kPost), share(Place::kPost));
  phases.Add("pickup", "engine", LayerSamples(timeline, Place::kPickup), share(Place::kPickup), kPickupNote);
  phases.Add("finish", "engine", StepSamples(timeline, Place::kFinish), share(Place::kFinish));
  phases.Add("delivery", "scheduler", DeliverySamples(recording), 0);
  for (int home = 0; home < timeline.homes; ++home) AddHome(recording, timeline, home, token_time, &phases);
  return phases.Take();
}

}  // namespace fastdecode
