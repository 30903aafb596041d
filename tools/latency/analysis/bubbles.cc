#include "tools/latency/analysis/bubbles.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "tools/latency/analysis/home_losses.h"

namespace fastdecode {
namespace {

constexpr int kNowhere = -1;  // the S-Part, among homes

uint64_t Overlap(uint64_t start_ns, uint64_t end_ns, uint64_t other_start_ns, uint64_t other_end_ns) {
  const uint64_t start = std::max(start_ns, other_start_ns), end = std::min(end_ns, other_end_ns);
  return end > start ? end - start : 0;
}

// Spans as one set of moments.
class Moments {
 public:
  explicit Moments(std::vector<Span> spans = {}) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start_ns < b.start_ns; });
    for (const Span& span : spans) {
      if (!spans_.empty() && span.start_ns <= spans_.back().end_ns) {
        spans_.back().end_ns = std::max(spans_.back().end_ns, span.end_ns);
      } else {
        spans_.push_back(span);
      }
    }
  }
  // Adds what of [start, end) is in the set to *inside_ns, and the pieces that are not to *outside.
  void Cut(const Span& span, uint64_t* inside_ns, std::vector<Span>* outside) const {
    uint64_t at_ns = span.start_ns;
    auto next = std::partition_point(spans_.begin(), spans_.end(),
                                     [&span](const Span& one) { return one.end_ns <= span.start_ns; });
    for (; next != spans_.end() && next->start_ns < span.end_ns; ++next) {
      if (next->start_ns > at_ns) outside->push_back({at_ns, next->start_ns});
      *inside_ns += Overlap(span.start_ns, span.end_ns, next->start_ns, next->end_ns);
      at_ns = next->end_ns;
    }
    if (at_ns < span.end_ns) outside->push_back({at_ns, span.end_ns});
  }

 private:
  std::vector<Span> spans_;
};

// What of the spans is not in the set.
std::vector<Span> Without(const std::vector<Span>& spans, const Moments& moments) {
  uint64_t inside_ns = 0;
  std::vector<Span> outside;
  for (const Span& span : spans) moments.Cut(span, &inside_ns, &outside);
  return outside;
}

// What was idle, and why, summed.
class BubbleSums {
 public:
  enum class Cause { kRLate, kSLate, kLink, kScheduler, kHomeLost, kNoRequests };

  // where: a home, or kNowhere. home: of kRLate and kLink; -1 where it goes without saying.
  void Add(int where, Cause cause, int home, uint64_t ns) {
    if (ns > 0) sums_[{where, cause, home}] += static_cast<double>(ns);
  }

  std::vector<Bubble> Take(uint64_t span_ns) const {
    std::vector<Bubble> bubbles;
    for (const auto& [key, ns] : sums_) {
      const std::string where = key.where == kNowhere ? "S-Part" : "home " + std::to_string(key.where);
      bubbles.push_back({where, CauseText(key.cause, key.home), ns, ns / static_cast<double>(span_ns)});
    }
    std::stable_sort(bubbles.begin(), bubbles.end(), [](const Bubble& a, const Bubble& b) { return a.ns > b.ns; });
    return bubbles;
  }

 private:
  struct Key {
    int where;
    Cause cause;
    int home;
    auto operator<=>(const Key&) const = default;
  };

  static std::string CauseText(Cause cause, int home) {
    const std::string at = home < 0 ? "" : ": home " + std::to_string(home);
    switch (cause) {
      case Cause::kRLate:
        return "R late" + at;
      case Cause::kSLate:
        return "S late";
      case Cause::kLink:
        return "link" + at;
      case Cause::kScheduler:
        return "scheduler";
      case Cause::kHomeLost:
        return "home lost";
      case Cause::kNoRequests:
        return "no requests";
    }
    return "?";
  }

  std::map<Key, double> sums_;
};
using Cause = BubbleSums::Cause;

// Who the steps before and after are, and what they were at.
class Steps {
 public:
  explicit Steps(const Timeline& timeline) : timeline_(timeline) {
    for (const StepTimes& step : timeline.steps) steps_[Key(step.micro_batch, step.step)] = &step;
  }
  // Null: was not recorded whole.
  const StepTimes* Find(int micro_batch, uint32_t step) const {
    const auto found = steps_.find(Key(micro_batch, step));
    return found == steps_.end() ? nullptr : found->second;
  }
  const Segment* begin(const StepTimes& step) const { return timeline_.segments.data() + step.first_segment; }
  const Segment* end(const StepTimes& step) const { return begin(step) + step.segments; }
  // The first that ends after `at_ns`.
  const Segment* After(const StepTimes& step, uint64_t at_ns) const {
    return std::partition_point(begin(step), end(step), [at_ns](const Segment& s) { return s.end_ns <= at_ns; });
  }

 private:
  static uint64_t Key(int micro_batch, uint32_t step) { return static_cast<uint64_t>(micro_batch) << 32 | step; }

  const Timeline& timeline_;
  std::unordered_map<uint64_t, const StepTimes*> steps_;
};

bool AtHome(Place place) { return place >= Place::kQueue && place <= Place::kTeam; }

// Those that a GPU runs beside each other end in another order than they begin.
std::vector<const fd_record_event*> StagesByStart(const Recording& recording) {
  std::vector<const fd_record_event*> stages;
  for (const fd_record_event& event : recording.events) {
    if (event.kind == FD_RECORD_STAGE) stages.push_back(&event);
  }
  std::stable_sort(stages.begin(), stages.end(),
                   [](const fd_record_event* a, const fd_record_event* b) { return a->start_ns < b->start_ns; });
  return stages;
}

// The gaps between what the pipeline thread did; of a GPU's stages, those in which none ran.
class SPartBubbles {
 public:
  SPartBubbles(const Timeline& timeline, const Steps& steps, BubbleSums* sums)
      : timeline_(timeline), steps_(steps), sums_(*sums), held_(timeline.held), done_ns_(timeline.start_ns) {}

  void Find(const Recording& recording) {
    overlap_ = recording.stages_overlap();
    const std::vector<HomeLoss> losses = FindHomeLosses(recording);
    const std::vector<Span> no_requests = Without(timeline_.idle, Moments(SpansWithoutHome(losses, timeline_.end_ns)));
    // What is left of the idle time: sequences wait for a home.
    std::vector<Span> home_lost = Without(timeline_.idle, Moments(no_requests));
    for (const HomeLoss& loss : losses) home_lost.insert(home_lost.end(), loss.waits.begin(), loss.waits.end());
    idle_ = Moments(no_requests);
    lost_ = Moments(std::move(home_lost));
    if (overlap_) {
      for (const fd_record_event* stage : StagesByStart(recording)) Take(*stage);
    } else {
      for (const fd_record_event& event : recording.events) {
        if (IsWork(event, done_ns_)) Take(event);
      }
    }
  }

 private:
  void Take(const fd_record_event& work) {
    if (work.end_ns <= done_ns_ || work.start_ns >= timeline_.end_ns) return;
    if (work.start_ns > done_ns_) Explain({done_ns_, work.start_ns}, work);
    done_ns_ = work.end_ns;
  }

  // Rosters that take long wait for room in a link: other micro-batches go on meanwhile.
  static bool IsWork(const fd_record_event& event, uint64_t done_ns) {
    switch (event.kind) {
      case FD_RECORD_COMPOSE:
      case FD_RECORD_STAGE:
      case FD_RECORD_POST:
      case FD_RECORD_FINISH:
        return true;
      case FD_RECORD_ROSTERS:
        return event.start_ns >= done_ns;
      default:
        return false;
    }
  }

  void Explain(const Span& gap, const fd_record_event& next) {
    uint64_t lost_ns = 0, idle_ns = 0, held_ns = 0;
    std::vector<Span> not_lost, not_idle, others;
    lost_.Cut(gap, &lost_ns, &not_lost);
    sums_.Add(kNowhere, Cause::kHomeLost, -1, lost_ns);
    const StepTimes* step = steps_.Find(next.micro_batch, next.step);
    if (step == nullptr) return;
    for (const Span& span : not_lost) idle_.Cut(span, &idle_ns, &not_idle);
    // Had the scheduler taken the events, the pipeline would have had work, whatever else it waited for.
    for (const Span& span : not_idle) held_.Cut(span, &held_ns, &others);
    sums_.Add(kNowhere, Cause::kNoRequests, -1, idle_ns);
    sums_.Add(kNowhere, Cause::kScheduler, -1, held_ns);
    for (const Span& span : others) ExplainByStep(span, next, *step);
  }

  void ExplainByStep(const Span& gap, const fd_record_event& next, const StepTimes& step) {
    // Before a step that came out of nothing there was nothing that it waited for.
    if (next.kind == FD_RECORD_COMPOSE && !step.follows) {
      sums_.Add(kNowhere, Cause::kNoRequests, -1, gap.end_ns - gap.start_ns);
      return;
    }
    const Segment* segment = steps_.After(step, gap.start_ns);
    for (; segment != steps_.end(step) && segment->start_ns < gap.end_ns; ++segment) {
      const uint64_t ns = Overlap(gap.start_ns, gap.end_ns, segment->start_ns, segment->end_ns);
      if (AtHome(segment->place)) sums_.Add(kNowhere, Cause::kRLate, segment->home, ns);
      if (segment->place == Place::kWire) sums_.Add(kNowhere, Cause::kLink, segment->home, ns);
      if (segment->place == Place::kCompose) sums_.Add(kNowhere, overlap_ ? Cause::kSLate : Cause::kLink, -1, ns);
      if (CouldGoOn(segment->place)) sums_.Add(kNowhere, Cause::kSLate, -1, ns);
    }
  }

  // The thread was at other things. Posting and finishing are work where stages are, and lie in no gap.
  static bool CouldGoOn(Place place) {
    return place == Place::kPickup || place == Place::kBoundary || place == Place::kPost || place == Place::kFinish;
  }

  const Timeline& timeline_;
  const Steps& steps_;
  BubbleSums& sums_;
  const Moments held_;
  Moments idle_, lost_;
  bool overlap_ = false;
  uint64_t done_ns_ = 0;
};

// What a home waited for before a hop: where the hop's micro-batch had been, backwards.
class HomeBubbles {
 public:
  HomeBubbles(const Timeline& timeline, const Steps& steps, BubbleSums* sums)
      : timeline_(timeline), steps_(steps), sums_(*sums) {}

  void Find() {
    for (const StepTimes& step : timeline_.steps) {
      for (uint32_t i = 0; i < step.hops; ++i) Explain(timeline_.hops[step.first_hop + i], step);
    }
  }

 private:
  void Explain(const HopTimes& hop, const StepTimes& step) {
    if (hop.idle_ns == 0) return;
    const uint64_t begun_ns = hop.posted_ns + hop.wire_there_ns;
    uint64_t idle_since_ns = begun_ns - std::min(hop.idle_ns, begun_ns);
    idle_since_ns = std::max(idle_since_ns, timeline_.start_ns);
    if (idle_since_ns >= begun_ns) return;
    sums_.Add(hop.home, Cause::kLink, -1, Overlap(idle_since_ns, begun_ns, hop.posted_ns, begun_ns));
    uint64_t until_ns = std::min(begun_ns, hop.posted_ns);
    const StepTimes* at = &step;
    while (until_ns > idle_since_ns) {
      ExplainByStep(hop.home, idle_since_ns, until_ns, *at);
      until_ns = std::min(until_ns, at->start_ns);
      if (until_ns <= idle_since_ns) return;
      if (!at->follows) {
        // Nobody knows of the time before the first step that was recorded after a hole.
        if (at->step == 1 || steps_.Find(at->micro_batch, at->step - 1) != nullptr) {
          sums_.Add(hop.home, Cause::kNoRequests, -1, until_ns - idle_since_ns);
        }
        return;
      }
      at = steps_.Find(at->micro_batch, at->step - 1);
      if (at == nullptr) return;
    }
  }

  void ExplainByStep(int home, uint64_t start_ns, uint64_t end_ns, const StepTimes& step) {
    start_ns = std::max(start_ns, step.start_ns);
    end_ns = std::min(end_ns, step.end_ns);
    if (end_ns <= start_ns) return;
    uint64_t engine_ns = end_ns - start_ns;
    const Segment* segment = steps_.After(step, start_ns);
    for (; segment != steps_.end(step) && segment->start_ns < end_ns; ++segment) {
      const uint64_t ns = Overlap(start_ns, end_ns, segment->start_ns, segment->end_ns);
      if (AtHome(segment->place) && segment->home != home) {
        sums_.Add(home, Cause::kRLate, segment->home, ns);
      } else if (AtHome(segment->place) || segment->place == Place::kWire) {
        // At this home itself, though it says that it had nothing to do: the wire was divided wrongly.
        sums_.Add(home, Cause::kLink, -1, ns);
      } else if (segment->place == Place::kScheduler) {
        sums_.Add(home, Cause::kScheduler, -1, ns);
      } else {
        continue;
      }
      engine_ns -= ns;
    }
    sums_.Add(home, Cause::kSLate, -1, engine_ns);
  }

  const Timeline& timeline_;
  const Steps& steps_;
  BubbleSums& sums_;
};

}  // namespace

double MeasureStagesBusy(const Recording& recording, const Timeline& timeline) {
  if (timeline.end_ns <= timeline.start_ns) return 0;
  uint64_t busy_ns = 0, done_ns = timeline.start_ns;
  for (const fd_record_event* stage : StagesByStart(recording)) {
    busy_ns += Overlap(stage->start_ns, stage->end_ns, done_ns, timeline.end_ns);
    done_ns = std::max(done_ns, stage->end_ns);
  }
  return static_cast<double>(busy_ns) / static_cast<double>(timeline.end_ns - timeline.start_ns);
}

std::vector<Bubble> FindBubbles(const Recording& recording, const Timeline& timeline) {
  if (timeline.end_ns <= timeline.start_ns) return {};
  const Steps steps(timeline);
  BubbleSums sums;
  SPartBubbles(timeline, steps, &sums).Find(recording);
  HomeBubbles(timeline, steps, &sums).Find();
  return sums.Take(timeline.end_ns - timeline.start_ns);
}

}  // namespace fastdecode
