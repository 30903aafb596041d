// What was found out of the clock, for people and programs.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/latency/machine/clock_probe.h"
#include "tools/latency/text/text.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// From here on a duration of a second is wrong by more than what a hop takes.
constexpr double kCalibrationPpmMax = 50;
constexpr double kDriftPpmMax = 20;

std::string Ppm(double ppm) { return absl::StrFormat("%+.2f ppm", ppm); }

// Finer than FormatNs, as these are a few ns.
std::string FineNs(double ns) { return ns < 100 ? absl::StrFormat("%.2f ns", ns) : FormatNs(ns); }

std::string DescribeCost(const char* name, const ClockCost& cost) {
  return absl::StrCat(name, " ", FineNs(cost.call_ns), " a call, steps of ", FineNs(cost.step_ns));
}

}  // namespace

std::vector<std::string> ClockWarnings(const ClockFacts& facts) {
  std::vector<std::string> warnings;
  if (!facts.tsc) {
    warnings.push_back(
        "the processor does not say that its TSC is invariant: CLOCK_MONOTONIC_RAW stands in, at a system "
        "call's or a virtual page's cost");
  }
  if (facts.tsc && !facts.source.empty() && facts.source != "tsc") {
    warnings.push_back(absl::StrCat("the kernel's clock source is ", facts.source,
                                    ", not tsc: it may have found the TSC wanting (dmesg | grep -i tsc)"));
  }
  if (facts.ticks.backwards > 0) {
    warnings.push_back(
        absl::StrCat("the clock went back ", FormatCount(facts.ticks.backwards), " times on one thread"));
  }
  if (std::fabs(facts.calibration_ppm) > kCalibrationPpmMax) {
    warnings.push_back(absl::StrCat("durations are off by ", Ppm(facts.calibration_ppm),
                                    ": the clock's rate was measured badly at start-up"));
  }
  if (facts.drift_ppm > kDriftPpmMax) {
    warnings.push_back(absl::StrFormat("the rate was not steady: it differed by %.1f ppm between tenths of %s",
                                       facts.drift_ppm, FormatNs(static_cast<double>(facts.elapsed_ns))));
  }
  for (const ClockOffset& offset : facts.offsets) {
    if (offset.rounds == 0) {
      warnings.push_back(absl::StrCat("cores ", offset.from, " and ", offset.to,
                                      " could not be compared: one of them is "
                                      "not to be had"));
    } else if (offset.ShownToDiffer()) {
      warnings.push_back(absl::StrCat("core ", offset.to, "'s clock is ", offset.offset_ns > 0 ? "ahead of" : "behind",
                                      " core ", offset.from, "'s by ", FineNs(std::fabs(offset.offset_ns)),
                                      ", give or take ", FineNs(offset.bound_ns)));
    }
  }
  return warnings;
}

std::string FormatClock(const ClockFacts& facts, size_t width) {
  width = std::max(width, kTextWidthMin);
  std::string out;
  const auto row = [&](const char* label, const std::string& text) {
    out += Paragraph(absl::StrFormat("  %-12s", label), text, width);
  };
  out += Heading("CLOCK");
  row("reads", facts.tsc ? "the TSC, which is invariant" : "CLOCK_MONOTONIC_RAW");
  row("kernel", absl::StrCat("clock source ", facts.source.empty() ? "not readable" : facts.source,
                             facts.available.empty() ? "" : absl::StrCat(" (of: ", facts.available, ")")));
  row("cost", absl::StrCat(DescribeCost("NowTicks", facts.ticks), "; ", DescribeCost("NowNs", facts.ns)));
  row("rate",
      absl::StrFormat("%s Hz against CLOCK_MONOTONIC_RAW over %s, steady within %.2f ppm; start-up found %s",
                      FormatCount(static_cast<uint64_t>(std::llround(facts.ticks_per_second))),
                      FormatNs(static_cast<double>(facts.elapsed_ns)), facts.drift_ppm, Ppm(facts.calibration_ppm)));
  row("NowNs",
      absl::StrCat("CLOCK_MONOTONIC, which is steered: ", Ppm(facts.slew_ppm), " against CLOCK_MONOTONIC_RAW"));
  TextTable table({{"cores", true, TextTable::kAlways},
                   {"apart", false, TextTable::kAlways},
                   {"within", false, TextTable::kAlways},
                   {"round trips", false, 50},
                   {"", true, 60}});
  for (const ClockOffset& offset : facts.offsets) {
    table.AddRow({absl::StrCat(offset.from, " - ", offset.to), FormatSignedNs(offset.offset_ns),
                  FineNs(offset.bound_ns), FormatCount(offset.rounds),
                  offset.rounds == 0       ? "not known"
                  : offset.ShownToDiffer() ? "they differ"
                                           : "no difference seen"});
  }
  if (!table.empty())
    absl::StrAppend(&out, "\n", Heading("CORES AGAINST EACH OTHER"), table.Format(width, kTextIndent));
  const std::vector<std::string> warnings = ClockWarnings(facts);
  absl::StrAppend(&out, "\n", Heading("VERDICT"));
  if (warnings.empty()) out += "  the clock is good\n";
  for (const std::string& warning : warnings) out += Paragraph("  ! ", warning, width);
  return out;
}

nlohmann::json ToJson(const ClockFacts& facts) {
  const auto cost = [](const ClockCost& of) {
    return nlohmann::json{{"call_ns", of.call_ns}, {"step_ns", of.step_ns}, {"backwards", of.backwards}};
  };
  nlohmann::json offsets = nlohmann::json::array();
  for (const ClockOffset& offset : facts.offsets) {
    offsets.push_back({{"from", offset.from},
                       {"to", offset.to},
                       {"offset_ns", offset.offset_ns},
                       {"bound_ns", offset.bound_ns},
                       {"rounds", offset.rounds},
                       {"differ", offset.ShownToDiffer()}});
  }
  return {{"tsc", facts.tsc},
          {"source", facts.source},
          {"available", facts.available},
          {"elapsed_ns", facts.elapsed_ns},
          {"ticks_per_second", facts.ticks_per_second},
          {"calibration_ppm", facts.calibration_ppm},
          {"drift_ppm", facts.drift_ppm},
          {"slew_ppm", facts.slew_ppm},
          {"now_ticks", cost(facts.ticks)},
          {"now_ns", cost(facts.ns)},
          {"offsets", offsets},
          {"warnings", ClockWarnings(facts)}};
}

}  // namespace fastdecode
