#include "tools/latency/export/export_trace.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/latency/export/trace_writer.h"

namespace fastdecode {

namespace {

constexpr int kEngine = 1;
constexpr int kFirstHome = 100;
constexpr TraceWriter::Track kPipeline = {kEngine, 1};
TraceWriter::Track BatchTrack(int micro_batch) { return {kEngine, 10 + micro_batch}; }
TraceWriter::Track HomeTrack(int home) { return {kFirstHome + home, kFirstHome + home}; }

// What a track shows at some time. Of two that begin together the longer one is around the other, and of two that are
// as long, the one that comes first here.
enum class What : uint8_t { kStep, kEvent, kStage, kSegment, kPart, kHop, kHopPart, kToken, kPosted, kArrived, kSeen };

struct Item {
  uint64_t start_ns, end_ns;
  uint32_t index;  // of the vector that `what` is about
  What what;
  Place place = Place::kBoundary;  // kHopPart
};

// Slices that begin within another end within it: a duration that is rounded may be longer than what it is part of.
void SortAndNest(std::vector<Item>* items) {
  std::sort(items->begin(), items->end(), [](const Item& a, const Item& b) {
    if (a.start_ns != b.start_ns) return a.start_ns < b.start_ns;
    if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
    return a.what < b.what;
  });
  std::vector<uint64_t> open;
  for (Item& item : *items) {
    while (!open.empty() && open.back() <= item.start_ns) open.pop_back();
    if (!open.empty()) item.end_ns = std::min(item.end_ns, open.back());
    if (item.end_ns > item.start_ns) open.push_back(item.end_ns);
  }
}

const char* EventName(const fd_record_event& event) {
  switch (event.kind) {
    case FD_RECORD_COMPOSE:
      return "compose";
    case FD_RECORD_ROSTERS:
      return "rosters";
    case FD_RECORD_STAGE:
      return "stage";
    case FD_RECORD_POST:
      return "post";
    case FD_RECORD_FINISH:
      return "finish";
    case FD_RECORD_IDLE:
      return event.part == 1 ? "parked" : "idle";
    default:
      return nullptr;  // not of the pipeline thread, or no span
  }
}

const char* PartName(uint16_t part) {
  switch (part) {
    case FD_STAGE_QKV:
      return "GEMM qkv";
    case FD_STAGE_O:
      return "GEMM o";
    case FD_STAGE_GATE_UP:
      return "GEMM gate, up";
    case FD_STAGE_DOWN:
      return "GEMM down";
    case FD_STAGE_LOGITS:
      return "GEMM logits, sampling";
    case FD_STAGE_SIGNAL:
      return "to or from the GPU";
    case FD_STAGE_ATTEND:
      return "attention";
    case FD_STAGE_REST:
      return "rest";
    default:
      return "?";
  }
}

// ,"name":12, or the member without its comma if it is the first.
void AddMember(const char* name, uint64_t value, std::string* args) {
  if (!args->empty()) *args += ',';
  *args += '"';
  *args += name;
  *args += "\":" + std::to_string(value);
}

uint64_t PostKey(int micro_batch, uint32_t step, int layer) {
  return static_cast<uint64_t>(micro_batch) << 48 | static_cast<uint64_t>(step) << 16 | static_cast<uint64_t>(layer);
}

class TraceExport {
 public:
  TraceExport(const Recording& recording, const Timeline& timeline, std::ostream* out)
      : recording_(recording), timeline_(timeline), trace_(out, Origin(recording, timeline), About(recording)) {}

  void Write() {
    PlaceHops();
    NameTracks();
    WriteTrack(kPipeline, PipelineItems());
    for (int m = 0; m < micro_batches_; ++m) WriteTrack(BatchTrack(m), BatchItems(m));
    for (int h = 0; h < timeline_.homes; ++h) WriteTrack(HomeTrack(h), HomeItems(h));
    WriteHops();
    WriteRowsInFlight();
    trace_.Finish();
  }

 private:
  // Where a hop's work lies, and whether arrows can go there and back.
  struct PlacedHop {
    uint64_t start_ns = 0, end_ns = 0;
    uint64_t posted_ns = 0;  // within the slice of its posting; 0: none was recorded
  };

  static uint64_t Origin(const Recording& recording, const Timeline& timeline) {
    uint64_t origin = timeline.start_ns;
    for (const StepTimes& step : timeline.steps) origin = std::min(origin, step.start_ns);
    for (const fd_record_event& event : recording.events) {
      if (EventName(event) != nullptr) origin = std::min(origin, event.start_ns);
    }
    return origin;
  }

  static std::string About(const Recording& recording) {
    const nlohmann::json about = {{"engine", recording.engine}, {"provenance", recording.provenance}};
    return about.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void PlaceHops();
  void NameTracks();
  std::vector<Item> PipelineItems() const;
  std::vector<Item> BatchItems(int micro_batch) const;
  std::vector<Item> HomeItems(int home) const;
  void WriteTrack(TraceWriter::Track track, std::vector<Item> items);
  void WriteItem(TraceWriter::Track track, const Item& item);
  void WriteStep(TraceWriter::Track track, const Item& item);
  void WriteHopWork(TraceWriter::Track track, const Item& item);
  void WriteHops();
  void WriteRowsInFlight();
  static uint32_t Index(size_t index) { return static_cast<uint32_t>(index); }

  const Recording& recording_;
  const Timeline& timeline_;
  TraceWriter trace_;
  int micro_batches_ = 0;
  std::vector<PlacedHop> hops_;  // [hops]
  std::string args_;
};

void TraceExport::PlaceHops() {
  std::unordered_map<uint64_t, const fd_record_event*> posts;
  for (const fd_record_event& event : recording_.events) {
    if (event.kind == FD_RECORD_POST) posts[PostKey(event.micro_batch, event.step, event.layer)] = &event;
    micro_batches_ = std::max(micro_batches_, event.micro_batch + 1);
  }
  hops_.resize(timeline_.hops.size());
  for (size_t i = 0; i < hops_.size(); ++i) {
    const HopTimes& hop = timeline_.hops[i];
    hops_[i].start_ns = hop.posted_ns + hop.wire_there_ns + hop.queue_ns;
    hops_[i].end_ns = hops_[i].start_ns + hop.work_ns();
    const auto post = posts.find(PostKey(hop.micro_batch, hop.step, hop.layer));
    if (post == posts.end() || post->second->end_ns == post->second->start_ns) continue;
    hops_[i].posted_ns = std::clamp(hop.posted_ns, post->second->start_ns, post->second->end_ns - 1);
  }
}

void TraceExport::NameTracks() {
  trace_.NameProcess(kEngine, "engine");
  trace_.NameThread(kPipeline, "pipeline thread");
  for (int m = 0; m < micro_batches_; ++m) trace_.NameThread(BatchTrack(m), "micro-batch " + std::to_string(m));
  for (int h = 0; h < timeline_.homes; ++h) {
    trace_.NameProcess(HomeTrack(h).process, recording_.HomeName(h));
    trace_.NameThread(HomeTrack(h), "leader");
  }
}

std::vector<Item> TraceExport::PipelineItems() const {
  std::vector<Item> items;
  for (size_t i = 0; i < recording_.events.size(); ++i) {
    const fd_record_event& event = recording_.events[i];
    // Of those that a GPU runs several may overlap; they are shown with their micro-batches.
    if (event.kind == FD_RECORD_STAGE && recording_.stages_overlap()) continue;
    if (EventName(event) != nullptr) items.push_back({event.start_ns, event.end_ns, Index(i), What::kEvent});
  }
  for (size_t i = 0; i < hops_.size(); ++i) {
    const uint64_t posted_ns = hops_[i].posted_ns;
    if (posted_ns > 0) items.push_back({posted_ns, posted_ns, Index(i), What::kPosted});
  }
  return items;
}

std::vector<Item> TraceExport::BatchItems(int micro_batch) const {
  std::vector<Item> items;
  for (size_t s = 0; s < timeline_.steps.size(); ++s) {
    const StepTimes& step = timeline_.steps[s];
    if (step.micro_batch != micro_batch) continue;
    items.push_back({step.start_ns, step.end_ns, Index(s), What::kStep});
    for (size_t i = step.first_segment; i < step.first_segment + step.segments; ++i) {
      const Segment& segment = timeline_.segments[i];
      if (segment.place != Place::kStage) items.push_back({segment.start_ns, segment.end_ns, Index(i), What::kSegment});
    }
    for (size_t i = step.first_stage; i < step.first_stage + step.stages; ++i) {
      const StageTimes& stage = timeline_.stages[i];
      items.push_back({stage.start_ns, stage.end_ns, Index(i), What::kStage});
      for (size_t p = stage.first_part; p < stage.first_part + stage.parts; ++p) {
        items.push_back({timeline_.parts[p].start_ns, timeline_.parts[p].end_ns, Index(p), What::kPart});
      }
    }
    for (size_t i = step.first_hop; i < step.first_hop + step.hops; ++i) {
      // A slice does not contain its end: a moment before, the reply is still waited for.
      const uint64_t seen_ns = timeline_.hops[i].seen_ns - 1;
      if (hops_[i].posted_ns > 0) items.push_back({seen_ns, seen_ns, Index(i), What::kSeen});
    }
  }
  for (size_t i = 0; i < timeline_.tokens.size(); ++i) {
    const TokenTimes& token = timeline_.tokens[i];
    if (timeline_.steps[token.step].micro_batch != micro_batch) continue;
    items.push_back({token.end_ns, token.end_ns, Index(i), What::kToken});
  }
  return items;
}

std::vector<Item> TraceExport::HomeItems(int home) const {
  std::vector<uint32_t> order;
  for (size_t i = 0; i < hops_.size(); ++i) {
    if (timeline_.hops[i].home == home) order.push_back(Index(i));
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return hops_[a].start_ns < hops_[b].start_ns; });
  std::vector<Item> items;
  uint64_t free_ns = 0;
  for (const uint32_t i : order) {
    // One after the other: by no more than its clock is wrong, a hop may seem to have begun before.
    const uint64_t end_ns = hops_[i].end_ns;
    const uint64_t start_ns = std::min(std::max(hops_[i].start_ns, free_ns), end_ns);
    free_ns = std::max(free_ns, end_ns);
    items.push_back({start_ns, end_ns, i, What::kHop});
    if (hops_[i].posted_ns > 0 && end_ns > start_ns) items.push_back({start_ns, start_ns, i, What::kArrived});
    const HopTimes& hop = timeline_.hops[i];
    uint64_t at_ns = hops_[i].start_ns;
    const auto add = [&](Place place, uint64_t ns) {
      const uint64_t begun_ns = std::max(at_ns, start_ns);
      at_ns += ns;
      if (at_ns > begun_ns) items.push_back({begun_ns, at_ns, i, What::kHopPart, place});
    };
    add(Place::kPrepare, hop.prepare_ns);
    add(Place::kAppend, hop.append_ns);
    add(Place::kAttend, hop.attend_ns);
    add(Place::kMerge, hop.merge_ns);
    add(Place::kTeam, hop.team_ns);
  }
  return items;
}

void TraceExport::WriteTrack(TraceWriter::Track track, std::vector<Item> items) {
  SortAndNest(&items);
  for (const Item& item : items) WriteItem(track, item);
}

void TraceExport::WriteItem(TraceWriter::Track track, const Item& item) {
  args_.clear();
  switch (item.what) {
    case What::kStep:
      return WriteStep(track, item);
    case What::kEvent: {
      const fd_record_event& event = recording_.events[item.index];
      const bool idle = event.kind == FD_RECORD_IDLE;
      if (!idle) AddMember("micro_batch", event.micro_batch, &args_);
      if (!idle) AddMember("step", event.step, &args_);
      const bool layered = event.kind == FD_RECORD_STAGE || event.kind == FD_RECORD_POST;
      const std::string name = EventName(event);
      return trace_.Slice(track, layered ? name + " " + std::to_string(event.layer) : name, item.start_ns, item.end_ns,
                          args_);
    }
    case What::kStage: {
      const StageTimes& stage = timeline_.stages[item.index];
      AddMember("rows", stage.rows, &args_);
      return trace_.Slice(track, "stage " + std::to_string(stage.stage), item.start_ns, item.end_ns, args_);
    }
    case What::kSegment: {
      const Segment& segment = timeline_.segments[item.index];
      if (segment.layer >= 0) AddMember("layer", static_cast<uint64_t>(segment.layer), &args_);
      if (segment.home >= 0) AddMember("home", static_cast<uint64_t>(segment.home), &args_);
      return trace_.Slice(track, PlaceName(segment.place), item.start_ns, item.end_ns, args_);
    }
    case What::kPart: {
      const PartTimes& part = timeline_.parts[item.index];
      AddMember("layer", part.layer, &args_);
      return trace_.Slice(track, PartName(part.part), item.start_ns, item.end_ns, args_);
    }
    case What::kHop:
      return WriteHopWork(track, item);
    case What::kHopPart:
      return trace_.Slice(track, PlaceName(item.place), item.start_ns, item.end_ns, "");
    case What::kToken: {
      const TokenTimes& token = timeline_.tokens[item.index];
      AddMember("request", token.id, &args_);
      AddMember("index", token.index, &args_);
      return trace_.Instant(track, "token", item.start_ns, args_);
    }
    case What::kPosted:
      return trace_.Flow(track, 's', item.index, item.start_ns);
    case What::kArrived:
      return trace_.Flow(track, 't', item.index, item.start_ns);
    case What::kSeen:
      return trace_.Flow(track, 'f', item.index, item.start_ns);
  }
}

void TraceExport::WriteStep(TraceWriter::Track track, const Item& item) {
  const StepTimes& step = timeline_.steps[item.index];
  AddMember("rows", step.rows, &args_);
  AddMember("sequences", step.sequences, &args_);
  AddMember("tokens", step.tokens, &args_);
  args_ += step.prefill ? ",\"prefill\":true" : ",\"prefill\":false";
  trace_.Slice(track, "step " + std::to_string(step.step), item.start_ns, item.end_ns, args_);
}

void TraceExport::WriteHopWork(TraceWriter::Track track, const Item& item) {
  const HopTimes& hop = timeline_.hops[item.index];
  AddMember("micro_batch", hop.micro_batch, &args_);
  AddMember("step", hop.step, &args_);
  AddMember("rows", hop.rows, &args_);
  AddMember("kv_bytes", hop.kv_bytes, &args_);
  AddMember("work_ns", hop.work_ns(), &args_);
  const ClockRelation& clock = timeline_.clocks[static_cast<size_t>(hop.home)];
  char within[64] = ",\"placed_within_us\":null";
  if (clock.known) std::snprintf(within, sizeof(within), ",\"placed_within_us\":%.3f", clock.bound_ns * 1e-3);
  args_ += within;
  trace_.Slice(track, "hop, layer " + std::to_string(hop.layer), item.start_ns, item.end_ns, args_);
}

void TraceExport::WriteHops() {
  for (size_t i = 0; i < hops_.size(); ++i) {
    const HopTimes& hop = timeline_.hops[i];
    args_.clear();
    AddMember("micro_batch", hop.micro_batch, &args_);
    AddMember("layer", hop.layer, &args_);
    AddMember("bytes", hop.payload_bytes, &args_);
    AddMember("wire_ns", hop.wire_ns, &args_);
    AddMember("queue_ns", hop.queue_ns, &args_);
    AddMember("pickup_ns", hop.pickup_ns, &args_);
    AddMember("uncertain_ns", hop.uncertain_ns, &args_);
    trace_.Async(kEngine, "hop to home " + std::to_string(hop.home), i, hop.posted_ns, hop.seen_ns, args_);
  }
}

void TraceExport::WriteRowsInFlight() {
  struct Change {
    uint64_t ns;
    int64_t rows;
  };
  std::vector<Change> changes;
  for (const StepTimes& step : timeline_.steps) {
    changes.push_back({step.composed_ns, step.rows});
    changes.push_back({step.end_ns, -static_cast<int64_t>(step.rows)});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.ns < b.ns; });
  int64_t rows = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    rows += changes[i].rows;
    const bool last_of_moment = i + 1 == changes.size() || changes[i + 1].ns != changes[i].ns;
    if (last_of_moment) trace_.Counter(kEngine, "rows in flight", changes[i].ns, rows);
  }
}

}  // namespace

void WriteTrace(const Recording& recording, const Timeline& timeline, std::ostream& out) {
  TraceExport(recording, timeline, &out).Write();
}

}  // namespace fastdecode
