// The mean token as a bar, and what was idle meanwhile.
#include <algorithm>
#include <cmath>
#include <string>

#include "tools/latency/html/markup.h"
#include "tools/latency/html/sections.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kWidth = 1000, kBarHeight = 56;
// A letter takes about so much.
constexpr double kLetter = 6.6;

std::string Swatch(const std::string& css) { return "<i class=\"swatch " + css + "\"></i>"; }

std::string PartBar(const CriticalPath& path) {
  Svg svg(kWidth, kBarHeight, "The mean token, taken apart");
  // A residual below 0 means that parts overlap: then they are what the bar shows.
  double whole_ns = std::max(0.0, path.residual_ns);
  for (const CriticalPath::Part& part : path.parts) whole_ns += part.mean_ns;
  if (whole_ns <= 0) return "";
  double x = 0;
  const auto add = [&](const std::string& name, double ns, const std::string& css) {
    const double width = kWidth * ns / whole_ns;
    svg.Rect({x, 0}, width, kBarHeight, "part " + css,
             name + ": " + HtmlNs(ns) + ", " + FormatShare(ns / path.token_ns));
    const std::string figure = HtmlNs(ns);
    const double letters = static_cast<double>(std::max(name.size(), figure.size()));
    if (width > kLetter * letters + 8) {
      svg.Text({x + width / 2, kBarHeight / 2 - 4}, "middle", name, "on " + css);
      svg.Text({x + width / 2, kBarHeight / 2 + 14}, "middle", figure, "on small " + css);
    }
    x += width;
  };
  for (const CriticalPath::Part& part : path.parts) add(PlaceName(part.place), part.mean_ns, PlaceClass(part.place));
  if (path.residual_ns > 0) add("residual", path.residual_ns, "residual");
  return "<figure>" + svg.Take() + "</figure>\n";
}

std::string PartTable(const CriticalPath& path) {
  Table table({"part", "#mean", "of the token", "mostly at"});
  for (const CriticalPath::Part& part : path.parts) {
    const std::string css = PlaceClass(part.place);
    table.Row({Swatch(css) + PlaceName(part.place), HtmlNs(part.mean_ns), ShareBar(part.share, css),
               part.home < 0 ? "engine" : HomeText(part.home)});
  }
  table.Row({Swatch("residual") + "residual", HtmlNs(path.residual_ns),
             ShareBar(path.token_ns > 0 ? path.residual_ns / path.token_ns : 0, "residual"), ""});
  table.Row({"<b>token</b>", "<b>" + HtmlNs(path.token_ns) + "</b>", "", ""});
  return table.Take();
}

std::string Bubbles(const LatencyResult& result) {
  if (result.bubbles.empty()) return "";
  Table table({"idle", "because of", "#in all", "of the recording"});
  for (const Bubble& bubble : result.bubbles) {
    table.Row({Escaped(bubble.where), Escaped(bubble.cause), HtmlNs(bubble.ns), ShareBar(bubble.share, "idle")});
  }
  return "<h3>Idle, and why</h3>\n" + table.Take();
}

std::string Figure(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

}  // namespace

std::string AchievedSection(const LatencyResult& result) {
  if (result.achieved.empty()) return "";
  Table table({"what", "#achieved", "#possible", "share", "possible by"});
  for (const Achieved& achieved : result.achieved) {
    const bool known = achieved.possible > 0;
    table.Row({Escaped(achieved.what), Escaped(Figure(achieved.achieved) + " " + achieved.unit),
               known ? Escaped(Figure(achieved.possible) + " " + achieved.unit) : "not known",
               known ? ShareBar(achieved.achieved / achieved.possible, "achieved") : "",
               Escaped(achieved.possible_by + (achieved.note.empty() ? "" : "; " + achieved.note))});
  }
  return Section("achieved", "Achieved against possible", table.Take());
}

std::string CriticalPathSection(const LatencyResult& result) {
  const CriticalPath& path = result.critical_path;
  if (path.tokens == 0) return "";
  std::string body =
      "<p>The mean of " + Escaped(FormatCount(path.tokens)) + " tokens. The parts and the residual add up to it.";
  if (path.wire_uncertain_ns > 0) {
    body += " ";
    body += HtmlNs(path.wire_uncertain_ns) + " of wire, home queue and pickup cannot be told apart for certain.";
  }
  body += "</p>\n";
  return Section("path", "The critical path of a token", body + PartBar(path) + PartTable(path));
}

std::string BusySection(const LatencyResult& result) {
  if (result.end_ns == result.start_ns) return "";
  Table table({"part", "busy"});
  table.Row({"S-Part", ShareBar(result.s_busy, "s-part")});
  table.Row({"busiest home", ShareBar(result.r_busy, "r-part")});
  table.Row({"overlap", ShareBar(result.overlap, "achieved")});
  return Section("busy", "Busy and idle", table.Take() + Bubbles(result));
}

}  // namespace fastdecode
