#include "tools/latency/analysis/timeline.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tools/latency/analysis/step_events.h"

namespace fastdecode {
namespace {

constexpr int kHomesMax = 1024;  // an event that names more is none of an engine's
constexpr size_t kMicroBatchesMax = 256;

int CountHomes(const std::vector<fd_record_event>& events) {
  int homes = 0;
  for (const fd_record_event& event : events) {
    if (event.kind != FD_RECORD_HOP && event.kind != FD_RECORD_SHARE) continue;
    if (event.home < kHomesMax) homes = std::max(homes, event.home + 1);
  }
  return homes;
}

int CountLayers(const Recording& recording) {
  const int layers = recording.engine.is_object() ? recording.layers() : 0;
  if (layers > 0) return layers;
  int last_stage = 0;
  for (const fd_record_event& event : recording.events) {
    if (event.kind == FD_RECORD_STAGE) last_stage = std::max<int>(last_stage, event.layer);
  }
  return last_stage;
}

// The parts of stages, which are half of all events, as the little that they say; the rest moves up.
std::vector<PartTimes> TakeParts(std::vector<fd_record_event>* events) {
  const auto is_part = [](const fd_record_event& event) { return event.kind == FD_RECORD_STAGE_PART; };
  std::vector<PartTimes> parts;
  parts.reserve(static_cast<size_t>(std::count_if(events->begin(), events->end(), is_part)));
  for (const fd_record_event& event : *events) {
    if (is_part(event)) parts.push_back({event.start_ns, event.end_ns, event.part, event.layer, event.micro_batch});
  }
  std::sort(parts.begin(), parts.end(), [](const PartTimes& a, const PartTimes& b) {
    return std::tie(a.micro_batch, a.end_ns, a.start_ns) < std::tie(b.micro_batch, b.end_ns, b.start_ns);
  });
  std::erase_if(*events, is_part);
  ReleaseBehindEnd(events);
  return parts;
}

// Puts hops into this order, each index at most once, without a second copy of all; what is not in it goes.
void Reorder(std::vector<uint32_t> order, std::vector<HopTimes>* hops) {
  const size_t kept = order.size();
  std::vector<bool> wanted(hops->size(), false);
  for (const uint32_t index : order) wanted[index] = true;
  for (size_t i = 0; i < hops->size(); ++i) {
    if (!wanted[i]) order.push_back(static_cast<uint32_t>(i));
  }
  // Cycle by cycle. What has its place says so by its own index.
  for (size_t start = 0; start < order.size(); ++start) {
    const HopTimes first = (*hops)[start];
    size_t at = start;
    while (order[at] != start) {
      const size_t from = order[at];
      (*hops)[at] = (*hops)[from];
      order[at] = static_cast<uint32_t>(at);
      at = from;
    }
    (*hops)[at] = first;
    order[at] = static_cast<uint32_t>(at);
  }
  hops->resize(kept);
}

// Gives each event to the step that is open in its micro-batch, and each step that has ended to the timeline.
class Sorter {
 public:
  Sorter(const Recording& recording, Timeline* timeline) : recording_(recording), timeline_(*timeline) {}

  void Run() {
    HopsApart apart = TakeHopsApart(recording_.events, timeline_.homes, recording_.SameHost(timeline_.homes));
    timeline_.least_rest_ns = std::move(apart.least_rest_ns);
    timeline_.clocks = std::move(apart.clocks);
    timeline_.hops = std::move(apart.hops);
    MakeRoom();
    HopTimes* hop = timeline_.hops.data();
    for (const fd_record_event& event : recording_.events) {
      if (IsHop(event, timeline_.homes)) {
        StepEvents& open = OpenFor(event);
        open.hops.push_back(hop++);
        ++open.events;
      } else {
        Take(event);
      }
    }
    for (const MicroBatch& batch : batches_) timeline_.dropped_events += batch.open.events;
    timeline_.dropped_events += timeline_.parts.size() - parts_of_steps_;
    Reorder(std::move(hop_order_), &timeline_.hops);
    AppendTokens();
  }

 private:
  struct MicroBatch {
    StepEvents open;
    Boundary boundary;  // known: a step has ended
    uint32_t ended_step = 0;
    uint32_t joined = 0;  // sequences, since
  };

  // A vector that grows has its old memory and the new at once; of one that has room to spare only what is written to
  // is memory at all.
  void MakeRoom() {
    std::array<size_t, FD_RECORD_SUBMIT + 1> counts{};
    for (const fd_record_event& event : recording_.events) {
      if (event.kind < counts.size()) ++counts[event.kind];
    }
    constexpr size_t kSegmentsOfHop = 9, kSegmentsOfStep = 5;
    timeline_.steps.reserve(counts[FD_RECORD_FINISH]);
    timeline_.stages.reserve(counts[FD_RECORD_STAGE]);
    timeline_.tokens.reserve(counts[FD_RECORD_TOKEN]);
    tokens_.reserve(counts[FD_RECORD_TOKEN]);
    hop_order_.reserve(timeline_.hops.size());
    timeline_.segments.reserve(2 * counts[FD_RECORD_STAGE] + (kSegmentsOfHop + 1) * counts[FD_RECORD_POST] +
                               kSegmentsOfStep * counts[FD_RECORD_FINISH] + 2 * counts[FD_RECORD_HELD]);
  }

  // A step of which other events were lost is left behind as it is.
  StepEvents& OpenFor(const fd_record_event& event) {
    StepEvents& open = batches_[event.micro_batch].open;
    if (open.step != event.step) {
      timeline_.dropped_events += open.events;
      open.Clear(event.step);
    }
    return open;
  }

  void Take(const fd_record_event& event) {
    switch (event.kind) {
      case FD_RECORD_HELD:
        timeline_.held.push_back({event.start_ns, event.end_ns, event.micro_batch});
        batches_[event.micro_batch].boundary.held.push_back(timeline_.held.back());
        return;
      case FD_RECORD_IDLE:
        timeline_.idle.push_back({event.start_ns, event.end_ns, -1});
        return;
      case FD_RECORD_JOIN:
        ++batches_[event.micro_batch].joined;
        return;
      case FD_RECORD_TOKEN:
        tokens_.push_back(&event);
        return;
      case FD_RECORD_LEAVE:
      case FD_RECORD_DELIVER:
      case FD_RECORD_SUBMIT:
        return;
      default:
        break;
    }
    if (event.kind < FD_RECORD_COMPOSE || event.kind > FD_RECORD_FINISH || !OpenFor(event).Add(event)) {
      ++timeline_.dropped_events;
    } else if (event.kind == FD_RECORD_FINISH) {
      EndStep(event);
    }
  }

  void EndStep(const fd_record_event& finish) {
    MicroBatch& batch = batches_[finish.micro_batch];
    if (batch.open.Whole(timeline_.layers)) {
      // Where all have joined since, nobody's token had to wait for this step from the end of the one before.
      batch.boundary.known &= batch.ended_step + 1 == finish.step && batch.joined < batch.open.compose->count;
      step_indices_.emplace(Key(finish), static_cast<uint32_t>(timeline_.steps.size()));
      parts_of_steps_ += AppendStep(batch.open, batch.boundary, &timeline_, &hop_order_);
    } else {
      timeline_.dropped_events += batch.open.events;
    }
    batch.open.Clear(finish.step);
    batch.boundary.known = true;
    batch.boundary.start_ns = finish.end_ns;
    batch.boundary.held.clear();
    batch.ended_step = finish.step;
    batch.joined = 0;
  }

  void AppendTokens() {
    for (const fd_record_event* token : tokens_) {
      const auto step = step_indices_.find(Key(*token));
      if (step == step_indices_.end()) {
        ++timeline_.dropped_events;
        continue;
      }
      timeline_.tokens.push_back({token->id, token->count, step->second, token->end_ns});
    }
  }

  static uint64_t Key(const fd_record_event& event) { return uint64_t{event.micro_batch} << 32 | event.step; }

  const Recording& recording_;
  Timeline& timeline_;
  std::vector<MicroBatch> batches_{kMicroBatchesMax};
  std::unordered_map<uint64_t, uint32_t> step_indices_;  // by Key
  std::vector<const fd_record_event*> tokens_;
  std::vector<uint32_t> hop_order_;  // of Timeline::hops, those of whole steps by these
  size_t parts_of_steps_ = 0;
};

}  // namespace

Timeline BuildTimeline(Recording* recording) {
  Timeline timeline;
  timeline.events = recording->events.size();
  timeline.parts = TakeParts(&recording->events);
  timeline.homes = CountHomes(recording->events);
  timeline.layers = CountLayers(*recording);
  Sorter(*recording, &timeline).Run();
  if (timeline.steps.empty()) return timeline;
  timeline.start_ns = timeline.steps.front().start_ns;
  timeline.end_ns = timeline.steps.back().end_ns;
  for (const StepTimes& step : timeline.steps) timeline.start_ns = std::min(timeline.start_ns, step.start_ns);
  return timeline;
}

Timeline BuildTimeline(const Recording& recording) {
  Recording copy = recording;
  return BuildTimeline(&copy);
}

}  // namespace fastdecode
