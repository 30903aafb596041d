// What changed over the recording: steps, and the work of homes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kWidth = 1000, kHeight = 260;
constexpr double kLeft = 70, kRight = 985, kTop = 12, kBottom = 225;
// However long a recording is, a drawing has so many columns.
constexpr size_t kColumns = 600;
constexpr size_t kSparkColumns = 120;
constexpr double kSparkWidth = 180, kSparkHeight = 28;

// Samples of equal stretches of the recording.
class Stretches {
 public:
  Stretches(uint64_t start_ns, uint64_t end_ns, size_t count)
      : start_ns_(start_ns), length_ns_(std::max<uint64_t>(1, end_ns - start_ns)), samples_(count) {}

  void Add(uint64_t at_ns, uint64_t sample_ns) {
    const double share = static_cast<double>(at_ns - std::min(at_ns, start_ns_)) / static_cast<double>(length_ns_);
    samples_[std::min(static_cast<size_t>(share * static_cast<double>(samples_.size())), samples_.size() - 1)]
        .push_back(sample_ns);
  }
  std::vector<Distribution> Take() {
    std::vector<Distribution> columns;
    for (std::vector<uint64_t>& samples : samples_) columns.emplace_back(std::move(samples));
    return columns;
  }

 private:
  const uint64_t start_ns_, length_ns_;
  std::vector<std::vector<uint64_t>> samples_;
};

double Median(const Distribution& ns) { return static_cast<double>(ns.Quantile(0.5)); }

struct Extent {
  double low = 1e300, high = 0;
  void Take(const std::vector<Distribution>& columns) {
    for (const Distribution& column : columns) {
      if (column.empty()) continue;
      low = std::min(low, static_cast<double>(std::max<uint64_t>(1, column.min_ns())));
      high = std::max(high, static_cast<double>(column.max_ns()));
    }
  }
};

// A line through the medians of neighbours: over a stretch without samples nothing is known.
class MedianLine {
 public:
  explicit MedianLine(Svg* svg) : svg_(svg) {}
  void Add(size_t column, const Point& point) {
    if (!points_.empty() && column > last_ + kGapMax) End();
    points_.push_back(point);
    last_ = column;
  }
  void End() {
    if (points_.size() == 1) svg_->Dot(points_[0], 1.5, "dot");
    if (points_.size() > 1) svg_->Path(points_, "curve");
    points_.clear();
  }

 private:
  static constexpr size_t kGapMax = 3;
  Svg* const svg_;
  std::vector<Point> points_;
  size_t last_ = 0;
};

// A bar from least to largest in each column, and a line through the medians.
void DrawColumns(const std::vector<Distribution>& columns, size_t series, double seconds, const Scale& y, Svg* svg) {
  const double width = (kRight - kLeft) / static_cast<double>(columns.size());
  MedianLine medians(svg);
  svg->BeginSeries(series);
  for (size_t i = 0; i < columns.size(); ++i) {
    const Distribution& column = columns[i];
    if (column.empty()) continue;
    const double x = kLeft + width * static_cast<double>(i);
    const double least = static_cast<double>(std::max<uint64_t>(1, column.min_ns()));
    const double top = y.At(static_cast<double>(column.max_ns()));
    char when[48];
    std::snprintf(when, sizeof(when), "at %.3f s: %zu, ",
                  seconds * static_cast<double>(i) / static_cast<double>(columns.size()), column.count());
    svg->Rect({x, top}, width, std::max(1.0, y.At(least) - top), "envelope",
              when + HtmlNs(least) + " to " + HtmlNs(static_cast<double>(column.max_ns())) + ", median " +
                  HtmlNs(Median(column)));
    medians.Add(i, {x + width / 2, y.At(std::max(1.0, Median(column)))});
  }
  medians.End();
  svg->EndSeries();
}

void DrawTime(double seconds, Svg* svg) {
  const Scale x = {0, seconds, kLeft, kRight};
  for (const double tick : Ticks(x, 10)) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.6g s", tick);
    svg->Line({x.At(tick), kBottom}, {x.At(tick), kBottom + 5}, "axis");
    svg->Text({x.At(tick), kBottom + 20}, "middle", text, "axis");
  }
}

void DrawSpans(const Timeline& timeline, Svg* svg) {
  // Spans of less than a column are told by the steps.
  const double length_ns = static_cast<double>(timeline.end_ns - timeline.start_ns);
  const Scale x = {0, length_ns, kLeft, kRight};
  const auto draw = [&](const std::vector<Span>& spans, const char* css, const std::string& what) {
    for (const Span& span : spans) {
      if (span.end_ns <= timeline.start_ns || span.start_ns >= timeline.end_ns) continue;
      const double start = static_cast<double>(std::max(span.start_ns, timeline.start_ns) - timeline.start_ns);
      const double end = static_cast<double>(std::min(span.end_ns, timeline.end_ns) - timeline.start_ns);
      if ((end - start) * kColumns < length_ns) continue;
      svg->Rect({x.At(start), kTop}, x.At(end) - x.At(start), kBottom - kTop, css, what + ", " + HtmlNs(end - start));
    }
  };
  draw(timeline.held, "held", "held up by the scheduler");
  draw(timeline.idle, "nothing", "no requests");
}

// Work at a home, of each hop.
std::string Spark(const Timeline& timeline, int home) {
  Stretches columns(timeline.start_ns, timeline.end_ns, kSparkColumns);
  for (const HopTimes& hop : timeline.hops) {
    if (hop.home == home) columns.Add(hop.seen_ns, hop.work_ns());
  }
  const std::vector<Distribution> taken = columns.Take();
  Extent extent;
  extent.Take(taken);
  if (extent.high == 0) return "";
  const Scale y = {0, extent.high, kSparkHeight, 1};
  const double width = kSparkWidth / kSparkColumns;
  Svg svg(kSparkWidth, kSparkHeight, "Work of home " + std::to_string(home) + " on a hop, over the recording");
  MedianLine medians(&svg);
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i].empty()) continue;
    const double x = width * static_cast<double>(i);
    const double top = y.At(static_cast<double>(taken[i].max_ns()));
    svg.Rect({x, top}, width, y.At(static_cast<double>(taken[i].min_ns())) - top, "envelope",
             HtmlNs(static_cast<double>(taken[i].min_ns())) + " to " + HtmlNs(static_cast<double>(taken[i].max_ns())));
    medians.Add(i, {x + width / 2, y.At(Median(taken[i]))});
  }
  medians.End();
  return "<div class=\"spark s0\">" + svg.Take() + "</div>";
}

std::string Clock(const HomeFigures& home) {
  if (home.clock_bound_ns == 0) return "not known";
  char drift[32];
  std::snprintf(drift, sizeof(drift), "%+.1f ppm", home.clock_drift_ppm);
  return Escaped(FormatSignedNs(home.clock_offset_ns)) + " \u00b1 " + HtmlNs(home.clock_bound_ns) + ", " + drift;
}

}  // namespace

std::string StepsSection(const Timeline& timeline) {
  if (timeline.steps.empty()) return "";
  Stretches decode(timeline.start_ns, timeline.end_ns, kColumns), prefill(timeline.start_ns, timeline.end_ns, kColumns);
  size_t prefills = 0;
  for (const StepTimes& step : timeline.steps) {
    (step.prefill ? prefill : decode).Add(step.end_ns, step.end_ns - step.start_ns);
    prefills += step.prefill ? 1 : 0;
  }
  const std::vector<Distribution> decode_columns = decode.Take(), prefill_columns = prefill.Take();
  Extent extent;
  extent.Take(decode_columns);
  extent.Take(prefill_columns);
  // Evenly from 0, unless stalls would press the rest to the ground.
  const bool logarithmic = extent.high > 8 * extent.low;
  const Scale y = {logarithmic ? extent.low * 0.9 : 0, extent.high * 1.05, kBottom, kTop, logarithmic};
  Svg svg(kWidth, kHeight, "Step time over the recording");
  DrawSpans(timeline, &svg);
  for (const double tick : Ticks(y, logarithmic ? 9 : 6)) {
    svg.Line({kLeft, y.At(tick)}, {kRight, y.At(tick)}, "grid");
    svg.Text({kLeft - 8, y.At(tick) + 4}, "end", TickNs(tick), "axis");
  }
  const double seconds = static_cast<double>(timeline.end_ns - timeline.start_ns) * 1e-9;
  DrawTime(seconds, &svg);
  std::vector<std::string> names = {"steps"};
  DrawColumns(decode_columns, 0, seconds, y, &svg);
  if (prefills > 0) {
    names.push_back("steps with prompts in them");
    DrawColumns(prefill_columns, 1, seconds, y, &svg);
  }
  return Section(
      "steps", "Steps over time",
      "<figure class=\"chart\">" + Legend(names) + svg.Take() +
          "<figcaption>From the least to the largest of each stretch of the recording; the line goes through "
          "the medians.</figcaption></figure>\n");
}

std::string HomesSection(const LatencyResult& result, const Timeline& timeline) {
  if (result.homes.empty()) return "";
  Table table({"home", "#hops", "busy", "#last to reply", "#waited for", "#share of KV", "#KV read",
               "#least round trip", "clock less the engine's", "work on a hop"});
  for (const HomeFigures& home : result.homes) {
    char speed[32];
    std::snprintf(speed, sizeof(speed), "%.1f GB/s", home.gb_per_s);
    table.Row({Escaped(home.name), Escaped(FormatCount(home.hops)), ShareBar(home.busy_share, "r-part"),
               Escaped(FormatShare(home.last_share)), HtmlNs(home.waited_for_ns), Escaped(FormatShare(home.kv_share)),
               speed, HtmlNs(home.min_round_trip_ns), Clock(home), Spark(timeline, home.home)});
  }
  return Section("homes", "Homes", table.Take());
}

}  // namespace fastdecode
