#include "tools/latency/machine/hiccup_report.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "numa/topology.h"
#include "tools/latency/distribution.h"
#include "tools/latency/text/text.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Shares of all moments, for how long something waits then.
constexpr std::array<std::pair<const char*, double>, 3> kWaits = {
    {{"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}}};
constexpr size_t kReportedCausesMax = 8;

struct Placed {
  int core;
  Hiccup hiccup;
};

std::vector<Placed> Longest(const std::vector<HiccupCore>& cores, size_t most) {
  std::vector<Placed> all;
  for (const HiccupCore& core : cores) {
    for (const Hiccup& hiccup : core.hiccups) all.push_back({core.core, hiccup});
  }
  const size_t kept = std::min(most, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept), all.end(),
                    [](const Placed& a, const Placed& b) { return a.hiccup.length_ns > b.hiccup.length_ns; });
  all.resize(kept);
  return all;
}

// What one cause took of a core.
struct Toll {
  uint64_t count = 0, ns = 0, longest_ns = 0;
};

std::array<Toll, kHiccupCauses> TollsOf(const HiccupCore& core) {
  std::array<Toll, kHiccupCauses> tolls;
  for (const Hiccup& hiccup : core.hiccups) {
    Toll& toll = tolls[static_cast<size_t>(hiccup.cause)];
    ++toll.count;
    toll.ns += hiccup.length_ns;
    toll.longest_ns = std::max(toll.longest_ns, hiccup.length_ns);
  }
  return tolls;
}

double Share(uint64_t ns, const HiccupCore& core) {
  return core.elapsed_ns > 0 ? static_cast<double>(ns) / static_cast<double>(core.elapsed_ns) : 0;
}

std::string Ns(uint64_t ns) { return FormatNs(static_cast<double>(ns)); }

// The lengths of those hiccups that were kept one by one.
Distribution LengthsOf(const HiccupCore& core) {
  std::vector<uint64_t> lengths;
  for (const Hiccup& hiccup : core.hiccups) lengths.push_back(hiccup.length_ns);
  return Distribution(std::move(lengths));
}

std::string CoresTable(const std::vector<HiccupCore>& cores, size_t width) {
  TextTable table({{"core", false, TextTable::kAlways},
                   {"hiccups", false, 90},
                   {"p50", false, 70},
                   {"p99", false, 85},
                   {"p99.9", false, 60},
                   {"max", false, TextTable::kAlways},
                   {"lost", false, TextTable::kAlways},
                   {"wait p99", false, 40},
                   {"wait p99.9", false, 50},
                   {"wait p99.99", false, 75}});
  for (const HiccupCore& core : cores) {
    const Distribution lengths = LengthsOf(core);
    const auto percentile = [&](double share) {
      const std::optional<uint64_t> ns = lengths.Percentile(share);
      return ns ? Ns(*ns) : "-";
    };
    std::vector<std::string> row = {absl::StrCat(core.core),
                                    FormatCount(lengths.count() + core.not_kept),
                                    percentile(0.5),
                                    percentile(0.99),
                                    percentile(0.999),
                                    lengths.empty() ? "-" : Ns(lengths.max_ns()),
                                    FormatShare(Share(core.lost_ns, core))};
    for (const auto& [name, share] : kWaits) row.push_back(FormatNs(core.WaitNs(share)));
    table.AddRow(std::move(row));
  }
  return table.Format(width, kTextIndent);
}

std::string CausesTable(const std::vector<HiccupCore>& cores, size_t width) {
  TextTable table({{"core", false, TextTable::kAlways},
                   {"taken by", true, TextTable::kAlways, 12},
                   {"hiccups", false, TextTable::kAlways},
                   {"time", false, 80},
                   {"share", false, TextTable::kAlways},
                   {"longest", false, 90}});
  for (const HiccupCore& core : cores) {
    const std::array<Toll, kHiccupCauses> tolls = TollsOf(core);
    for (size_t cause = 0; cause < kHiccupCauses; ++cause) {
      if (tolls[cause].count == 0) continue;
      table.AddRow({absl::StrCat(core.core), HiccupCauseName(static_cast<HiccupCause>(cause)),
                    FormatCount(tolls[cause].count), Ns(tolls[cause].ns), FormatShare(Share(tolls[cause].ns, core)),
                    Ns(tolls[cause].longest_ns)});
    }
  }
  return table.empty() ? "" : Heading("WHO HAD THE CORES") + table.Format(width, kTextIndent) + "\n";
}

// "2,501 timer interrupts, 3 TLB shootdowns; softirqs: 20 TIMER; 3 preemptions; ..."
std::string DescribeCounts(const HiccupCore& core) {
  std::vector<std::string> parts;
  const std::string interrupts = DescribeCauses(core.counters.interrupts, kReportedCausesMax);
  parts.push_back(interrupts.empty() ? "no interrupts" : interrupts);
  const std::string softirqs = DescribeCauses(core.counters.softirqs, kReportedCausesMax);
  if (!softirqs.empty()) parts.push_back("softirqs: " + softirqs);
  parts.push_back(absl::StrCat(FormatCount(core.preemptions), core.preemptions == 1 ? " preemption" : " preemptions",
                               core.timed ? absl::StrCat(", ", Ns(core.waited_ns), " waited for the core") : ""));
  if (core.migrations) parts.push_back(absl::StrCat(FormatCount(*core.migrations), " migrations"));
  parts.push_back(absl::StrCat(Ns(core.counters.stolen_ns), " stolen by the hypervisor"));
  parts.push_back(absl::StrCat("SMI count: ", core.smis ? FormatCount(*core.smis) : core.smi_note));
  return absl::StrJoin(parts, "; ");
}

std::string WorstList(const std::vector<HiccupCore>& cores, size_t worst, size_t width) {
  TextTable table({{"longest", false, TextTable::kAlways},
                   {"core", false, TextTable::kAlways},
                   {"at", false, 80},
                   {"taken by", true, TextTable::kAlways, 12}});
  for (const Placed& placed : Longest(cores, worst)) {
    table.AddRow({Ns(placed.hiccup.length_ns), absl::StrCat(placed.core),
                  absl::StrFormat("+%.6f s", static_cast<double>(placed.hiccup.start_ns) * 1e-9),
                  HiccupCauseName(placed.hiccup.cause)});
  }
  return table.empty() ? "" : Heading("THE LONGEST") + table.Format(width, kTextIndent) + "\n";
}

}  // namespace

std::string FormatHiccups(const std::vector<HiccupCore>& cores, const HiccupOptions& options, size_t worst,
                          size_t width) {
  width = std::max(width, kTextWidthMin);
  uint64_t elapsed_ns = 0, not_kept = 0;
  double turn_ns = 0;
  std::vector<std::string> unpinned;
  for (const HiccupCore& core : cores) {
    elapsed_ns = std::max(elapsed_ns, core.elapsed_ns);
    turn_ns = std::max(turn_ns, core.turn_ns);
    not_kept += core.not_kept;
    if (!core.pinned) unpinned.push_back(absl::StrCat(core.core));
  }
  std::string out = Paragraph("",
                              absl::StrCat("hiccups of more than ", Ns(options.threshold_ns), " in ", Ns(elapsed_ns),
                                           "; undisturbed, the clock is read every ", FormatNs(turn_ns)),
                              width);
  if (!unpinned.empty()) {
    out += Paragraph("  ! ", absl::StrCat("not pinned, so of no certain core: ", absl::StrJoin(unpinned, ", ")), width);
  }
  out += CoresTable(cores, width);
  out += Paragraph("  ", "wait: how long something waits that happens at a random moment", width) + "\n";
  out += CausesTable(cores, width);
  out += Heading("WHAT THE KERNEL COUNTED MEANWHILE");
  for (const HiccupCore& core : cores) {
    out += Paragraph(absl::StrCat("  core ", core.core, ": "), DescribeCounts(core), width);
  }
  absl::StrAppend(&out, "\n", WorstList(cores, worst, width));
  if (not_kept > 0) {
    out += Paragraph("  ! ",
                     absl::StrCat(FormatCount(not_kept), " hiccups came after the first ", FormatCount(kHiccupsMax),
                                  " of their core and count as lost time alone; a larger --threshold keeps them out"),
                     width);
  }
  return out;
}

nlohmann::json HiccupsToJson(const std::vector<HiccupCore>& cores, const HiccupOptions& options, size_t worst) {
  const auto or_null = [](const auto& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  nlohmann::json rows = nlohmann::json::array(), longest = nlohmann::json::array();
  for (const HiccupCore& core : cores) {
    const Distribution lengths = LengthsOf(core);
    nlohmann::json waits, causes = nlohmann::json::object();
    for (const auto& [name, share] : kWaits) waits[name] = core.WaitNs(share);
    const std::array<Toll, kHiccupCauses> tolls = TollsOf(core);
    for (size_t cause = 0; cause < kHiccupCauses; ++cause) {
      causes[HiccupCauseName(static_cast<HiccupCause>(cause))] = {
          {"hiccups", tolls[cause].count}, {"ns", tolls[cause].ns}, {"longest_ns", tolls[cause].longest_ns}};
    }
    rows.push_back({{"core", core.core},
                    {"pinned", core.pinned},
                    {"elapsed_ns", core.elapsed_ns},
                    {"turn_ns", core.turn_ns},
                    {"hiccups", lengths.count() + core.not_kept},
                    {"not_kept", core.not_kept},
                    {"lost_ns", core.lost_ns},
                    {"lost_share", Share(core.lost_ns, core)},
                    {"p50_ns", or_null(lengths.Percentile(0.5))},
                    {"p99_ns", or_null(lengths.Percentile(0.99))},
                    {"p999_ns", or_null(lengths.Percentile(0.999))},
                    {"max_ns", lengths.empty() ? nlohmann::json() : nlohmann::json(lengths.max_ns())},
                    {"wait_ns", waits},
                    {"causes", causes},
                    {"interrupts", core.counters.interrupts},
                    {"softirqs", core.counters.softirqs},
                    {"stolen_ns", core.counters.stolen_ns},
                    {"preemptions", core.preemptions},
                    {"waited_ns", core.timed ? nlohmann::json(core.waited_ns) : nlohmann::json()},
                    {"migrations", or_null(core.migrations)},
                    {"smis", or_null(core.smis)},
                    {"smi_note", core.smi_note}});
  }
  for (const Placed& placed : Longest(cores, worst)) {
    longest.push_back({{"core", placed.core},
                       {"start_ns", placed.hiccup.start_ns},
                       {"length_ns", placed.hiccup.length_ns},
                       {"cause", HiccupCauseName(placed.hiccup.cause)}});
  }
  return {{"threshold_ns", options.threshold_ns}, {"cores", rows}, {"longest", longest}};
}

}  // namespace fastdecode
