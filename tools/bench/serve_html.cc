// The page of curves.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/bench/serve_outcome.h"
#include "tools/latency/html/markup.h"
#include "tools/latency/html/page.h"

namespace fastdecode::serve_bench {

namespace {

constexpr double kWidth = 1000, kHeight = 340;
constexpr double kLeft = 70, kRight = 985, kTop = 12, kBottom = 290;
// A curve of a metric has no more points than one can tell apart.
constexpr size_t kCurvePoints = 200;

struct Series {
  std::string name;
  std::vector<Point> points;
};

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

// Lines over a common axis. `level`: a line across, at what is to be reached.
struct Chart {
  std::string label;  // what is drawn, for who cannot see it
  std::string x_name, y_name;
  std::vector<Series> series;
  bool is_share = false;  // y is from 0 to 1
  std::optional<double> level = std::nullopt;
};

void DrawAxes(const Chart& chart, const Scale& x, const Scale& y, Svg* svg) {
  for (const double tick : Ticks(y, 6)) {
    svg->Line({kLeft, y.At(tick)}, {kRight, y.At(tick)}, "grid");
    svg->Text({kLeft - 8, y.At(tick) + 4}, "end", chart.is_share ? Text(100 * tick) + " %" : Text(tick), "axis");
  }
  for (const double tick : Ticks(x, 12)) {
    svg->Line({x.At(tick), kTop}, {x.At(tick), kBottom}, "grid");
    svg->Text({x.At(tick), kBottom + 18}, "middle", Text(tick), "axis");
  }
  svg->Text({(kLeft + kRight) / 2, kBottom + 40}, "middle", chart.x_name, "axis");
  if (chart.level.has_value()) svg->Line({kLeft, y.At(*chart.level)}, {kRight, y.At(*chart.level)}, "axis");
}

std::string Draw(Chart chart) {
  std::erase_if(chart.series, [](const Series& series) { return series.points.empty(); });
  double x_low = 1e300, x_high = 0, y_high = chart.is_share ? 1 : 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
      y_high = std::max(y_high, point.y);
    }
  }
  if (x_high <= 0 || y_high <= 0) return "";
  if (x_low == x_high) x_low = x_high / 2;
  const Scale x = {std::max(x_low, x_high * 1e-6), x_high, kLeft, kRight, true};
  const Scale y = {0, y_high, kBottom, kTop, false};
  Svg svg(kWidth, kHeight, chart.label);
  DrawAxes(chart, x, y, &svg);
  std::vector<std::string> names;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    names.push_back(series.name);
    std::vector<Point> path;
    for (const Point& point : series.points) path.push_back({x.At(std::max(point.x, x.low)), y.At(point.y)});
    svg.BeginSeries(i);
    svg.Path(path, "curve");
    for (size_t at = 0; at < path.size() && path.size() <= 40; ++at) {
      const Point& value = series.points[at];
      svg.Dot(path[at], 3.5, "dot",
              series.name + ", " + chart.x_name + " " + Text(value.x) + ": " +
                  (chart.is_share ? Text(100 * value.y) + " %" : Text(value.y) + " " + chart.y_name));
    }
    svg.EndSeries();
  }
  return "<figure class=\"chart\">" + Legend(names) + svg.Take() + "</figure>\n";
}

// All limits together, then each that there is.
template <class Points, class X>
std::vector<Series> AttainmentSeries(const Points& points, const load::Limits& limits, X x_of) {
  std::vector<Series> series = {{"all limits", {}}};
  for (const load::LimitKind kind : load::kLimitKinds) {
    if (limits[kind].has_value()) series.push_back({std::string(LimitName(kind)) + " alone", {}});
  }
  for (const auto& point : points) {
    size_t at = 0;
    series[at].points.push_back({x_of(point), point.attainment.joint});
    for (const load::LimitKind kind : load::kLimitKinds) {
      if (!limits[kind].has_value()) continue;
      series[++at].points.push_back({x_of(point), point.attainment.alone[static_cast<size_t>(kind)]});
    }
  }
  return series;
}

std::string Tile(const std::string& value, const std::string& name) {
  return "<div class=\"tile\"><b>" + Escaped(value) + "</b><span>" + Escaped(name) + "</span></div>\n";
}

std::string HeaderSection(const ServeOutcome& outcome, const Report& report) {
  std::string out =
      "<header>\n<p class=\"kind\">fastdecode bench serve</p>\n<h1>What users feel</h1>\n<p class=\"lead\">" +
      Escaped("Requests to " + outcome.options.model + ", " + outcome.where + ".") +
      " Times count from when a request was to start.</p>\n<div class=\"tiles\">\n";
  if (const std::optional<double> rate = outcome.MaxRate()) {
    out += Tile(Text(*rate), "requests/s keep their limits, at " + Text(100 * outcome.target) + " %");
  }
  if (report.completed + report.failed > 0) {
    out += Tile(std::to_string(report.completed), "requests succeeded") +
           Tile(std::to_string(report.failed), "failed") +
           Tile(Text(report.duration_s > 0
                         ? std::round(10 * static_cast<double>(report.output_tokens) / report.duration_s) / 10
                         : 0),
                "output tokens/s");
  }
  out += "</div>\n";
  for (const std::string& note : outcome.notes) out += "<p class=\"verdict warning\">" + Escaped(note) + "</p>\n";
  return out + "</header>\n";
}

std::string RatesSection(const ServeOutcome& outcome) {
  std::vector<load::RatePoint> points = outcome.points;
  std::erase_if(points, [](const load::RatePoint& point) { return point.cut; });
  if (points.empty() || outcome.options.limits.empty()) return "";
  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.rate < b.rate; });
  const auto rate = [](const load::RatePoint& point) { return point.rate; };
  Chart chart = {"Share of requests that kept their limits, by rate",    "requests/s", "",
                 AttainmentSeries(points, outcome.options.limits, rate), true,         outcome.target};
  std::string body = Draw(std::move(chart));
  if (const auto crossing = load::FindCrossing(AttainmentCurve(points), outcome.target)) {
    body += "<p>The curve crosses " + Text(100 * outcome.target) + " % at " + Text(*crossing) + " requests/s.</p>\n";
  }
  return Section("rates", "Requests that kept their limits, by rate", body);
}

std::string ScaleSection(const ServeOutcome& outcome) {
  if (outcome.options.limits.empty() || outcome.run.results.empty()) return "";
  const auto scale = [](const load::ScaledAttainment& scaled) { return scaled.scale; };
  Chart chart = {
      "Share of requests that kept their limits, by how strict these are",
      "limits times",
      "",
      AttainmentSeries(load::JudgeScaled(outcome.run, outcome.options.limits), outcome.options.limits, scale),
      true,
      outcome.target};
  return Section("scale", "The same run, by how strict the limits are", Draw(std::move(chart)));
}

std::string TimesSection(const ServeOutcome& outcome, const Report& report) {
  if (report.completed == 0) return "";
  std::vector<double> percentiles;
  for (size_t i = 0; i <= kCurvePoints; ++i) percentiles.push_back(100.0 * static_cast<double>(i) / kCurvePoints);
  ReportOptions options = outcome.options;
  options.percentiles = percentiles;
  Chart chart = {"Share of requests or gaps that took at most so long", "ms", "", {}, true};
  Table table({"metric", "#mean ms", "#p50", "#p90", "#p99"});
  for (const auto& [name, times] : MakeReport(outcome.run, options).metrics) {
    Series series = {name, {}};
    for (size_t i = 0; i <= kCurvePoints; ++i) {
      if (times.percentiles_ms[i] > 0) series.points.push_back({times.percentiles_ms[i], percentiles[i] / 100});
    }
    chart.series.push_back(std::move(series));
    const auto at = [&, &ms = times.percentiles_ms](double percentile) {
      return Text(std::round(1000 * ms[static_cast<size_t>(percentile / 100 * kCurvePoints)]) / 1000);
    };
    table.Row({Escaped(name), Text(std::round(1000 * times.mean_ms) / 1000), at(50), at(90), at(99)});
  }
  return Section("times", "Times", Draw(std::move(chart)) + table.Take());
}

std::string InterferenceSection(const ServeOutcome& outcome) {
  if (outcome.interference.empty()) return "";
  Table table({"chunk", "#p50 alone", "#p99 alone", "#p50 with", "#p99 with", "#prompts", "#their TTFT"});
  Series alone = {"p99 alone", {}}, with = {"p99 with prompts", {}};
  for (const InterferencePoint& point : outcome.interference) {
    const auto ms = [](double value) { return Text(std::round(100 * value) / 100); };
    table.Row({point.chunk.has_value() ? std::to_string(*point.chunk) : "as it is", ms(point.alone.percentiles_ms[0]),
               ms(point.alone.percentiles_ms[1]), ms(point.with_prompts.percentiles_ms[0]),
               ms(point.with_prompts.percentiles_ms[1]), std::to_string(point.prompts), ms(point.prompt_ttft_ms)});
    if (!point.chunk.has_value()) continue;
    alone.points.push_back({static_cast<double>(*point.chunk), point.alone.percentiles_ms[1]});
    with.points.push_back({static_cast<double>(*point.chunk), point.with_prompts.percentiles_ms[1]});
  }
  Chart chart = {"p99 of the gaps between tokens, by the prompt tokens of a step",
                 "prompt tokens of a step",
                 "ms",
                 {std::move(alone), std::move(with)}};
  return Section("interference", "Running answers while prompts arrive", Draw(std::move(chart)) + table.Take());
}

}  // namespace

void WriteCurves(const ServeOutcome& outcome, std::ostream& out) {
  const Report report = MakeReport(outcome.run, outcome.options);
  const std::string body = HeaderSection(outcome, report) + RatesSection(outcome) + ScaleSection(outcome) +
                           InterferenceSection(outcome) + TimesSection(outcome, report);
  WritePage("fastdecode bench serve", body, "docs/SERVING.md says how these figures are meant.", out);
}

}  // namespace fastdecode::serve_bench
