// The slowest tokens, one by one, as timelines.
#include <algorithm>
#include <array>
#include <string>

#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kWidth = 1000, kLeft = 90, kRight = 990;
constexpr double kLane = 20, kBar = 14;
// Of more than these nobody looks at each.
constexpr size_t kStoriesMax = 20;
// Spans that are narrower are left out, so that a token of many layers stays readable and small.
constexpr double kNarrowest = 0.3;

constexpr const char* kLaneNames[] = {"waits", "engine", "link", "home"};
constexpr size_t kLanes = std::size(kLaneNames);

size_t LaneOf(Place place) {
  switch (place) {
    case Place::kBoundary:
    case Place::kScheduler:
    case Place::kPickup:
      return 0;
    case Place::kCompose:
    case Place::kStage:
    case Place::kPost:
    case Place::kFinish:
      return 1;
    case Place::kWire:
    case Place::kQueue:
      return 2;
    default:
      return 3;
  }
}

std::string SpanText(Place place, int layer, int home, uint64_t ns, uint64_t after_ns) {
  std::string text = PlaceName(place);
  if (layer >= 0) text += ", layer " + std::to_string(layer);
  if (home >= 0) text += ", " + HomeText(home);
  return text + ": " + HtmlNs(static_cast<double>(ns)) + ", after " + HtmlNs(static_cast<double>(after_ns));
}

const StepTimes* FindStep(const Timeline& timeline, const TokenStory& story) {
  for (const StepTimes& step : timeline.steps) {
    if (step.micro_batch == story.micro_batch && step.step == story.step) return &step;
  }
  return nullptr;
}

std::string Gantt(const TokenStory& story, const StepTimes& step, const Timeline& timeline) {
  const double length_ns = static_cast<double>(std::max<uint64_t>(1, story.end_ns - story.start_ns));
  const Scale x = {0, length_ns, kLeft, kRight};
  const double bottom = kLane * kLanes;
  Svg svg(kWidth, bottom + 24,
          "Timeline of token " + std::to_string(story.index) + " of request " + std::to_string(story.id));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const double y = kLane * static_cast<double>(lane);
    svg.Text({kLeft - 8, y + kBar - 3}, "end", kLaneNames[lane], "axis");
    svg.Line({kLeft, y + kBar + 3}, {kRight, y + kBar + 3}, "grid");
  }
  for (size_t i = step.first_segment; i < step.first_segment + step.segments; ++i) {
    const Segment& segment = timeline.segments[i];
    if (segment.start_ns < story.start_ns || segment.end_ns > story.end_ns) continue;
    const uint64_t after_ns = segment.start_ns - story.start_ns, ns = segment.end_ns - segment.start_ns;
    const double from = x.At(static_cast<double>(after_ns)), to = x.At(static_cast<double>(after_ns + ns));
    if (to - from < kNarrowest) continue;
    svg.Rect({from, kLane * static_cast<double>(LaneOf(segment.place))}, to - from, kBar, PlaceClass(segment.place),
             SpanText(segment.place, segment.layer, segment.home, ns, after_ns));
  }
  for (const double tick : Ticks(x, 8)) {
    svg.Line({x.At(tick), bottom}, {x.At(tick), bottom + 5}, "axis");
    svg.Text({x.At(tick), bottom + 19}, "middle", TickNs(tick), "axis");
  }
  return "<figure>" + svg.Take() + "</figure>\n";
}

std::string Longest(const TokenStory& story) {
  if (story.longest.empty()) return "";
  std::string out = "<p class=\"longest\">Longest: ";
  const char* separator = "";
  for (const TokenStory::Longest& span : story.longest) {
    out += separator + Escaped(SpanText(span.place, span.layer, span.home, span.ns,
                                        span.start_ns - std::min(span.start_ns, story.start_ns)));
    separator = "; ";
  }
  return out + ".</p>\n";
}

}  // namespace

std::string WorstSection(const LatencyResult& result, const Timeline& timeline) {
  if (result.worst.empty()) return "";
  std::string body = "<p>The slowest tokens, each from the end of the step before.</p>\n";
  const size_t count = std::min(result.worst.size(), kStoriesMax);
  for (size_t i = 0; i < count; ++i) {
    const TokenStory& story = result.worst[i];
    body += "<h3>" + HtmlNs(static_cast<double>(story.end_ns - story.start_ns)) + ": token " +
            std::to_string(story.index) + " of request " + std::to_string(story.id) + ", step " +
            std::to_string(story.step) + " of micro-batch " + std::to_string(story.micro_batch) + "</h3>\n";
    if (const StepTimes* const step = FindStep(timeline, story); step != nullptr) body += Gantt(story, *step, timeline);
    body += Longest(story);
  }
  if (count < result.worst.size()) {
    body += "<p>" + std::to_string(result.worst.size() - count) + " more are in the JSON.</p>\n";
  }
  return Section("worst", "The slowest tokens", body);
}

}  // namespace fastdecode
