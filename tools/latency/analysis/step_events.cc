#include "tools/latency/analysis/step_events.h"

#include <algorithm>

namespace fastdecode {
namespace {

// Writes a step's segments one after the other. What reaches back before the last one, or beyond the step, is cut off,
// so that segments and residual make up the step whatever the events say.
class SegmentWriter {
 public:
  SegmentWriter(StepTimes* step, Timeline* timeline)
      : step_(*step), segments_(timeline->segments), at_ns_(step->start_ns) {
    step_.first_segment = static_cast<uint32_t>(segments_.size());
  }

  void Add(Place place, int home, int layer, uint64_t start_ns, uint64_t end_ns) {
    start_ns = std::max(start_ns, at_ns_);
    end_ns = std::min(end_ns, step_.end_ns);
    if (end_ns <= start_ns) return;
    segments_.push_back({start_ns, end_ns, place, static_cast<int16_t>(home), layer});
    step_.place_ns[static_cast<size_t>(place)] += end_ns - start_ns;
    at_ns_ = end_ns;
  }

  void Finish() {
    step_.segments = static_cast<uint32_t>(segments_.size()) - step_.first_segment;
    step_.residual_ns = static_cast<int64_t>(step_.end_ns - step_.start_ns);
    for (const uint64_t ns : step_.place_ns) step_.residual_ns -= static_cast<int64_t>(ns);
  }

  uint64_t at_ns() const { return at_ns_; }

 private:
  StepTimes& step_;
  std::vector<Segment>& segments_;
  uint64_t at_ns_;
};

void WriteBoundary(const Boundary& boundary, uint64_t composed_ns, SegmentWriter* writer) {
  for (const Span& held : boundary.held) {
    writer->Add(Place::kBoundary, -1, -1, writer->at_ns(), std::min(held.start_ns, composed_ns));
    writer->Add(Place::kScheduler, -1, -1, held.start_ns, std::min(held.end_ns, composed_ns));
  }
  writer->Add(Place::kBoundary, -1, -1, writer->at_ns(), composed_ns);
}

void WriteHop(const HopTimes& hop, SegmentWriter* writer) {
  uint64_t at_ns = hop.posted_ns;
  const auto next = [&](Place place, uint64_t ns) {
    writer->Add(place, hop.home, hop.layer, at_ns, at_ns + ns);
    at_ns += ns;
  };
  next(Place::kWire, hop.wire_there_ns);
  next(Place::kQueue, hop.queue_ns);
  next(Place::kPrepare, hop.prepare_ns);
  next(Place::kAppend, hop.append_ns);
  next(Place::kAttend, hop.attend_ns);
  next(Place::kMerge, hop.merge_ns);
  next(Place::kTeam, hop.team_ns);
  next(Place::kWire, hop.wire_ns - hop.wire_there_ns);
  next(Place::kPickup, hop.pickup_ns);
}

// `last`: of each layer, the hop that was waited for; null where no home had a row.
void WriteSegments(const StepEvents& events, const Boundary& boundary, const std::vector<const HopTimes*>& last,
                   StepTimes* step, Timeline* timeline) {
  SegmentWriter writer(step, timeline);
  if (step->follows) WriteBoundary(boundary, step->composed_ns, &writer);
  writer.Add(Place::kCompose, -1, -1, events.compose->start_ns, events.compose->end_ns);
  if (events.rosters != nullptr) writer.Add(Place::kCompose, -1, -1, events.rosters->start_ns, events.rosters->end_ns);
  for (size_t layer = 0; layer < events.stages.size(); ++layer) {
    const fd_record_event& stage = *events.stages[layer];
    // Between the last reply and the next stage the pipeline was at other micro-batches.
    if (layer > 0) writer.Add(Place::kPickup, -1, static_cast<int>(layer) - 1, writer.at_ns(), stage.start_ns);
    writer.Add(Place::kStage, -1, static_cast<int>(layer), stage.start_ns, stage.end_ns);
    if (layer >= events.posts.size()) continue;
    const fd_record_event& post = *events.posts[layer];
    const HopTimes* hop = last[layer];
    // The time of posting the others' hops, once the last one's is out, is that hop's.
    const uint64_t posted_ns = hop != nullptr ? std::min(hop->posted_ns, post.end_ns) : post.end_ns;
    writer.Add(Place::kPost, -1, static_cast<int>(layer), post.start_ns, posted_ns);
    if (hop != nullptr) WriteHop(*hop, &writer);
  }
  writer.Add(Place::kFinish, -1, -1, events.finish->start_ns, events.finish->end_ns);
  writer.Finish();
}

// A micro-batch is at one stage at a time: what of its parts lies within a stage is the stage's.
size_t AppendStages(const StepEvents& events, StepTimes* step, Timeline* timeline) {
  const std::vector<PartTimes>& parts = timeline->parts;
  step->first_stage = static_cast<uint32_t>(timeline->stages.size());
  step->stages = static_cast<uint32_t>(events.stages.size());
  size_t parts_of_step = 0;
  for (const fd_record_event* event : events.stages) {
    StageTimes stage;
    stage.start_ns = event->start_ns;
    stage.end_ns = event->end_ns;
    stage.step = event->step;
    stage.stage = event->layer;
    stage.micro_batch = event->micro_batch;
    stage.rows = event->rows;
    auto part = std::partition_point(parts.begin(), parts.end(), [&stage](const PartTimes& one) {
      return one.micro_batch < stage.micro_batch ||
             (one.micro_batch == stage.micro_batch && one.end_ns <= stage.start_ns);
    });
    const auto of_batch = [&] { return part != parts.end() && part->micro_batch == stage.micro_batch; };
    while (of_batch() && part->start_ns < stage.start_ns) ++part;
    stage.first_part = static_cast<uint32_t>(part - parts.begin());
    for (; of_batch() && part->end_ns <= stage.end_ns; ++part) ++stage.parts;
    parts_of_step += stage.parts;
    timeline->stages.push_back(stage);
  }
  return parts_of_step;
}

// Which of the replies of one layer was the last to be there. The order in which they were seen does not say that: of
// those that came while the pipeline was at other micro-batches, it is the order of looking.
const HopTimes* LastReply(HopTimes* const* hops, size_t count) {
  const HopTimes* last = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const HopTimes* hop = hops[i];
    if (last == nullptr || hop->seen_ns - hop->pickup_ns >= last->seen_ns - last->pickup_ns) last = hop;
  }
  return last;
}

// Returns, of each layer, the hop that was waited for.
std::vector<const HopTimes*> AppendHops(const StepEvents& events, StepTimes* step, const Timeline& timeline,
                                        std::vector<uint32_t>* hop_order) {
  std::vector<const HopTimes*> last_hops;
  step->first_hop = static_cast<uint32_t>(hop_order->size());
  step->hops = static_cast<uint32_t>(events.hops.size());
  HopTimes* const* hops = events.hops.data();
  for (const fd_record_event* post : events.posts) {
    const size_t count = post->count;
    const HopTimes* last = LastReply(hops, count);
    uint64_t others_seen_ns = 0;
    for (size_t i = 0; i < count; ++i) {
      if (hops[i] != last) others_seen_ns = std::max(others_seen_ns, hops[i]->seen_ns);
    }
    for (size_t i = 0; i < count; ++i) {
      HopTimes& hop = *hops[i];
      hop.kv_bytes = step->kv_bytes[static_cast<size_t>(hop.home)];
      hop.homes = static_cast<int>(count);
      hop.last = hops[i] == last;
      if (hop.last && count > 1 && hop.seen_ns > others_seen_ns) hop.waited_for_ns = hop.seen_ns - others_seen_ns;
      hop_order->push_back(static_cast<uint32_t>(hops[i] - timeline.hops.data()));
    }
    std::sort(hop_order->end() - static_cast<ptrdiff_t>(count), hop_order->end(),
              [&timeline](uint32_t a, uint32_t b) { return timeline.hops[a].home < timeline.hops[b].home; });
    last_hops.push_back(last);
    hops += count;
  }
  return last_hops;
}

}  // namespace

void StepEvents::Clear(uint32_t new_step) {
  step = new_step;
  compose = rosters = finish = nullptr;
  stages.clear();
  posts.clear();
  shares.clear();
  hops.clear();
  events = 0;
}

bool StepEvents::Add(const fd_record_event& event) {
  switch (event.kind) {
    case FD_RECORD_COMPOSE:
      compose = &event;
      break;
    case FD_RECORD_ROSTERS:
      rosters = &event;
      break;
    case FD_RECORD_SHARE:
      shares.push_back(&event);
      break;
    case FD_RECORD_STAGE:
      stages.push_back(&event);
      break;
    case FD_RECORD_POST:
      posts.push_back(&event);
      break;
    case FD_RECORD_FINISH:
      finish = &event;
      break;
    default:
      return false;
  }
  ++events;
  return true;
}

bool StepEvents::Whole(int layers) const {
  if (compose == nullptr || finish == nullptr) return false;
  if (stages.size() != static_cast<size_t>(layers) + 1 || posts.size() != static_cast<size_t>(layers)) return false;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i]->layer != i) return false;
  }
  size_t next = 0;
  for (size_t layer = 0; layer < posts.size(); ++layer) {
    if (posts[layer]->layer != layer || posts[layer]->count > hops.size() - next) return false;
    for (const size_t end = next + posts[layer]->count; next < end; ++next) {
      if (hops[next]->layer != layer) return false;
    }
  }
  return next == hops.size();
}

size_t AppendStep(const StepEvents& events, const Boundary& boundary, Timeline* timeline,
                  std::vector<uint32_t>* hop_order) {
  StepTimes step;
  step.composed_ns = events.compose->start_ns;
  step.follows = boundary.known && boundary.start_ns <= step.composed_ns;
  step.start_ns = step.follows ? boundary.start_ns : step.composed_ns;
  step.end_ns = std::max(events.finish->end_ns, step.start_ns);
  step.step = events.step;
  step.micro_batch = events.compose->micro_batch;
  step.rows = events.compose->rows;
  step.sequences = events.compose->count;
  step.tokens = events.finish->count;
  step.prefill = step.rows > step.sequences;
  step.kv_bytes.resize(static_cast<size_t>(timeline->homes));
  step.home_rows.resize(static_cast<size_t>(timeline->homes));
  for (const fd_record_event* share : events.shares) {
    if (share->home < 0 || share->home >= timeline->homes) continue;
    step.kv_bytes[static_cast<size_t>(share->home)] = share->bytes;
    step.home_rows[static_cast<size_t>(share->home)] = share->rows;
  }
  const size_t parts = AppendStages(events, &step, timeline);
  const std::vector<const HopTimes*> last = AppendHops(events, &step, *timeline, hop_order);
  WriteSegments(events, boundary, last, &step, timeline);
  timeline->steps.push_back(std::move(step));
  return parts;
}

}  // namespace fastdecode
