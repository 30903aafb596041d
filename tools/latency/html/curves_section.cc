// Requests and phases: figures, and how they are distributed.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kWidth = 1000, kHeight = 340;
constexpr double kLeft = 70, kRight = 985, kTop = 12, kBottom = 305;
constexpr size_t kPoints = 160;
// More curves than this are not told apart.
constexpr size_t kCurvesMax = 8;

struct Curve {
  std::string name;
  const Distribution* ns;
};

// 1 / (1 - p) is what the x axis is even in, by logarithm: each nine gets as much room.
std::string PercentileName(double inverse) {
  if (inverse == 1) return "0 %";
  if (inverse == 2) return "p50";
  char text[32];
  std::snprintf(text, sizeof(text), "p%.6g", 100 * (1 - 1 / inverse));
  return text;
}

void DrawAxes(const Scale& x, const Scale& y, Svg* svg) {
  for (const double tick : Ticks(y, 12)) {
    svg->Line({kLeft, y.At(tick)}, {kRight, y.At(tick)}, "grid");
    svg->Text({kLeft - 8, y.At(tick) + 4}, "end", TickNs(tick), "axis");
  }
  std::vector<double> inverses = {1, 2};
  for (double inverse = 10; inverse <= x.high * 1.001; inverse *= 10) inverses.push_back(inverse);
  for (const double inverse : inverses) {
    svg->Line({x.At(inverse), kTop}, {x.At(inverse), kBottom}, "grid");
    svg->Text({x.At(inverse), kBottom + 18}, "middle", PercentileName(inverse), "axis");
  }
}

// Up to where five samples lie beyond it is drawn firmly, from there on dotted: another name for an extreme.
void DrawCurve(const Curve& curve, size_t series, const Scale& x, const Scale& y, Svg* svg) {
  const double count = static_cast<double>(curve.ns->count());
  const double firm_until = count / static_cast<double>(Distribution::kBeyondMin);
  std::vector<Point> firm, dotted;
  for (size_t i = 0; i <= kPoints; ++i) {
    const double inverse = std::pow(count, static_cast<double>(i) / kPoints);
    const uint64_t ns = i < kPoints ? curve.ns->Quantile(1 - 1 / inverse) : curve.ns->max_ns();
    const double value = static_cast<double>(std::max<uint64_t>(1, ns));
    const Point point = {x.At(inverse), y.At(value)};
    if (inverse <= firm_until) firm.push_back(point);
    if (inverse >= firm_until || firm.empty()) dotted.push_back(point);
  }
  if (!firm.empty() && !dotted.empty()) dotted.insert(dotted.begin(), firm.back());
  svg->BeginSeries(series);
  svg->Path(firm, "curve");
  svg->Path(dotted, "curve dotted");
  for (const double share : {0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const std::optional<uint64_t> value = curve.ns->Percentile(share);
    if (!value) continue;
    const double inverse = 1 / (1 - share);
    svg->Dot({x.At(inverse), y.At(static_cast<double>(std::max<uint64_t>(1, *value)))}, 3.5, "dot",
             curve.name + ", " + PercentileName(inverse) + ": " + HtmlNs(static_cast<double>(*value)));
  }
  svg->EndSeries();
}

std::string Curves(std::vector<Curve> curves, const std::string& label) {
  std::erase_if(curves, [](const Curve& curve) { return curve.ns->count() < 2; });
  if (curves.empty()) return "";
  double low = 1e300, high = 1, most = 2;
  for (const Curve& curve : curves) {
    low = std::min(low, static_cast<double>(std::max<uint64_t>(1, curve.ns->min_ns())));
    high = std::max(high, static_cast<double>(curve.ns->max_ns()));
    most = std::max(most, static_cast<double>(curve.ns->count()));
  }
  const Scale x = {1, most, kLeft, kRight, true};
  const Scale y = {low * 0.9, high * 1.1, kBottom, kTop, true};
  Svg svg(kWidth, kHeight, label);
  DrawAxes(x, y, &svg);
  std::vector<std::string> names;
  for (size_t i = 0; i < curves.size(); ++i) {
    DrawCurve(curves[i], i, x, y, &svg);
    names.push_back(curves[i].name);
  }
  return "<figure class=\"chart\">" + Legend(names) + svg.Take() +
         "<figcaption>Percentiles, each nine as wide as the one before. Dotted: fewer than five samples lie "
         "beyond.</figcaption></figure>\n";
}

std::string Withheld() { return "<span class=\"withheld\" title=\"withheld: too few samples\">\u2013</span>"; }

// min, p50, p90, p99, p99.9, max.
std::vector<std::string> Percentiles(const Distribution& ns) {
  if (ns.empty() && ns.unfinished() == 0) return {"", "", "", "", "", ""};
  std::vector<std::string> cells = {ns.empty() ? "" : HtmlNs(static_cast<double>(ns.min_ns()))};
  for (const double share : {0.5, 0.9, 0.99, 0.999}) {
    const std::optional<uint64_t> value = ns.Percentile(share);
    const std::optional<uint64_t> least = ns.AtLeast(share);
    cells.push_back(value   ? HtmlNs(static_cast<double>(*value))
                    : least ? "&ge; " + HtmlNs(static_cast<double>(*least))
                            : Withheld());
  }
  cells.push_back(ns.empty() ? "" : HtmlNs(static_cast<double>(ns.max_ns())));
  return cells;
}

std::vector<std::string> Joined(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The phases that most of a token's time is in, after the token itself.
std::vector<Curve> CurvesOf(const LatencyResult& result) {
  std::vector<const Phase*> phases;
  for (const Phase& phase : result.phases) phases.push_back(&phase);
  std::stable_sort(phases.begin(), phases.end(), [](const Phase* a, const Phase* b) {
    if ((a->name == "token") != (b->name == "token")) return a->name == "token";
    return a->share > b->share;
  });
  if (phases.size() > kCurvesMax) phases.resize(kCurvesMax);
  std::vector<Curve> curves;
  for (const Phase* phase : phases) {
    curves.push_back({phase->where == "engine" ? phase->name : phase->name + ", " + phase->where, &phase->ns});
  }
  return curves;
}

}  // namespace

std::string RequestsSection(const LatencyResult& result) {
  if (result.requests.empty()) return "";
  const RequestFigures& first = result.requests.front();
  std::string body = Curves(
      {{"TTFT", &first.ttft_ns}, {"TPOT", &first.tpot_ns}, {"ITL", &first.itl_ns}, {"end to end", &first.e2e_ns}},
      "Percentile curves of requests, from when they were " + first.start);
  Table table({"from the start that was", "metric", "#count", "#min", "#p50", "#p90", "#p99", "#p99.9", "#max"});
  for (const RequestFigures& figures : result.requests) {
    const std::pair<const char*, const Distribution*> metrics[] = {{"TTFT", &figures.ttft_ns},
                                                                   {"TPOT", &figures.tpot_ns},
                                                                   {"ITL", &figures.itl_ns},
                                                                   {"end to end", &figures.e2e_ns}};
    for (const auto& [name, ns] : metrics) {
      table.Row(Joined({Escaped(figures.start), name, Escaped(FormatCount(ns->count()))}, Percentiles(*ns)));
    }
  }
  body += table.Take() + "<p>" + Escaped(FormatCount(first.requests)) + " requests ended well within the recording, " +
          Escaped(FormatCount(first.failed)) + " failed, " + Escaped(FormatCount(first.unfinished)) +
          " had not finished: their waits so far count as lower bounds.</p>\n";
  return Section("requests", "Requests", body);
}

std::string PhasesSection(const LatencyResult& result) {
  if (result.phases.empty()) return "";
  Table table({"phase", "where", "#count", "#min", "#p50", "#p90", "#p99", "#p99.9", "#max", "of tokens' time", ""});
  for (const Phase& phase : result.phases) {
    std::vector<std::string> cells = Joined(
        {Escaped(phase.name), Escaped(phase.where), Escaped(FormatCount(phase.ns.count()))}, Percentiles(phase.ns));
    cells.push_back(phase.share > 0 ? ShareBar(phase.share, "achieved") : "");
    cells.push_back(phase.note.empty() ? "" : "<small>" + Escaped(phase.note) + "</small>");
    table.Row(cells);
  }
  return Section("phases", "Phases", Curves(CurvesOf(result), "Percentile curves of phases") + table.Take());
}

}  // namespace fastdecode
