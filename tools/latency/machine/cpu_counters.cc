#include "tools/latency/machine/cpu_counters.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/doctor/host_facts.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Hosts of hundreds of cores have hundreds of queues, each with a column for every core.
constexpr size_t kTableBytesMax = size_t{64} << 20;

std::vector<std::string> Words(const std::string& line) { return absl::StrSplit(line, ' ', absl::SkipEmpty()); }

// A line of /proc/interrupts: "LOC:  145523  145281  Local timer interrupts", "36:  0  42781  PCI-MSIX-0000:00:02.0
// 1-edge  virtio1-req.0".
struct CounterLine {
  std::string name;
  std::vector<uint64_t> counts;   // as many as there are columns
  std::vector<std::string> rest;  // words
};

std::optional<CounterLine> ParseLine(const std::string& text, size_t columns) {
  std::vector<std::string> words = Words(text);
  if (words.size() < columns + 1 || words[0].back() != ':') return std::nullopt;
  CounterLine line;
  line.name = words[0].substr(0, words[0].size() - 1);
  for (size_t i = 1; i <= columns; ++i) {
    uint64_t count;
    // Some have one count for all cores; those are of errors.
    if (!absl::SimpleAtoi(words[i], &count)) return std::nullopt;
    line.counts.push_back(count);
  }
  line.rest.assign(words.begin() + static_cast<ptrdiff_t>(columns) + 1, words.end());
  return line;
}

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
}

// Who the interrupt is from, in plural.
std::string InterruptCause(const CounterLine& line) {
  constexpr std::array<std::pair<const char*, const char*>, 10> kKnown = {{{"LOC", "timer interrupts"},
                                                                           {"NMI", "non-maskable interrupts"},
                                                                           {"PMI", "performance counter interrupts"},
                                                                           {"IWI", "deferred work interrupts"},
                                                                           {"RES", "rescheduling interrupts"},
                                                                           {"CAL", "function call interrupts"},
                                                                           {"TLB", "TLB shootdowns"},
                                                                           {"TRM", "thermal interrupts"},
                                                                           {"MCP", "machine check polls"},
                                                                           {"HYP", "hypervisor interrupts"}}};
  for (const auto& [name, cause] : kKnown) {
    if (line.name == name) return cause;
  }
  // Controller, its pin and trigger, then the names of who listens.
  if (!IsNumber(line.name)) return line.rest.empty() ? line.name : absl::StrJoin(line.rest, " ");
  const auto trigger = std::find_if(line.rest.begin(), line.rest.end(), [](const std::string& word) {
    return word.find("edge") != std::string::npos || word.find("level") != std::string::npos ||
           word.find("fasteoi") != std::string::npos;
  });
  std::string listeners = trigger == line.rest.end() ? "" : absl::StrJoin(trigger + 1, line.rest.end(), " ");
  if (listeners.empty()) listeners = line.rest.empty() ? line.name : line.rest.back();
  return absl::StrCat("interrupts of ", listeners);
}

// Calls add(core, line) for each line of a table with a column a core.
template <class Add>
void ReadTable(const SysRoot& root, const std::string& path, const Add& add) {
  const std::string text = root.Text(path, kTableBytesMax).value_or("");
  std::vector<int> cores;
  for (const std::string& row : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (cores.empty()) {  // "  CPU0  CPU1": offline ones are not there
      for (const std::string& word : Words(row)) cores.push_back(NumberAfter("CPU", word).value_or(-1));
      continue;
    }
    const std::optional<CounterLine> line = ParseLine(row, cores.size());
    if (!line) continue;
    for (size_t i = 0; i < cores.size(); ++i) {
      if (cores[i] >= 0) add(cores[i], *line, line->counts[i]);
    }
  }
}

// "cpu1 user nice system idle iowait irq softirq steal ...", in ticks of the clock that is for users.
void ReadStat(const SysRoot& root, MachineCounters* machine) {
  constexpr size_t kIrq = 6, kSoftirq = 7, kSteal = 8;
  const uint64_t tick_ns = 1'000'000'000 / static_cast<uint64_t>(std::max(1L, sysconf(_SC_CLK_TCK)));
  const std::string text = root.Text("/proc/stat", kTableBytesMax).value_or("");
  for (const std::string& row : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const std::vector<std::string> words = Words(row);
    if (words.size() <= kSteal) continue;
    const std::optional<int> core = NumberAfter("cpu", words[0]);
    uint64_t irq, softirq, steal;
    if (!core || !absl::SimpleAtoi(words[kIrq], &irq) || !absl::SimpleAtoi(words[kSoftirq], &softirq) ||
        !absl::SimpleAtoi(words[kSteal], &steal)) {
      continue;
    }
    CoreCounters& counters = (*machine)[*core];
    counters.stolen_ns = steal * tick_ns;
    counters.handled_ns = (irq + softirq) * tick_ns;
  }
}

// "interrupts of eth0" of one.
std::string Singular(const std::string& cause) {
  return absl::StrReplaceAll(cause, {{"interrupts", "interrupt"}, {"shootdowns", "shootdown"}, {"polls", "poll"}});
}

uint64_t Added(uint64_t before, uint64_t after) {
  if (after >= before) return after - before;
  return static_cast<uint32_t>(after - before);
}

}  // namespace

MachineCounters ReadMachineCounters(const SysRoot& root) {
  MachineCounters machine;
  ReadStat(root, &machine);
  ReadTable(root, "/proc/interrupts", [&](int core, const CounterLine& line, uint64_t count) {
    machine[core].interrupts[InterruptCause(line)] += count;
  });
  ReadTable(root, "/proc/softirqs",
            [&](int core, const CounterLine& line, uint64_t count) { machine[core].softirqs[line.name] += count; });
  return machine;
}

CauseCounts Since(const CauseCounts& before, const CauseCounts& after) {
  CauseCounts added;
  for (const auto& [cause, count] : after) {
    const auto then = before.find(cause);
    const uint64_t more = Added(then == before.end() ? 0 : then->second, count);
    if (more > 0) added[cause] = more;
  }
  return added;
}

CoreCounters Since(const CoreCounters& before, const CoreCounters& after) {
  CoreCounters added;
  added.interrupts = Since(before.interrupts, after.interrupts);
  added.softirqs = Since(before.softirqs, after.softirqs);
  // The kernel corrects these now and then, downwards too.
  added.stolen_ns = after.stolen_ns - std::min(before.stolen_ns, after.stolen_ns);
  added.handled_ns = after.handled_ns - std::min(before.handled_ns, after.handled_ns);
  return added;
}

MachineCounters Since(const MachineCounters& before, const MachineCounters& after) {
  MachineCounters added;
  for (const auto& [core, counters] : after) {
    const auto then = before.find(core);
    if (then != before.end()) added[core] = Since(then->second, counters);
  }
  return added;
}

uint64_t Total(const CauseCounts& counts) {
  uint64_t total = 0;
  for (const auto& [cause, count] : counts) total += count;
  return total;
}

std::string DescribeCauses(const CauseCounts& counts, size_t most) {
  std::vector<std::pair<uint64_t, std::string>> sorted;
  for (const auto& [cause, count] : counts) sorted.emplace_back(count, cause);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> parts;
  uint64_t more = 0;
  for (const auto& [count, cause] : sorted) {
    if (parts.size() < most) {
      parts.push_back(absl::StrCat(FormatCount(count), " ", count == 1 ? Singular(cause) : cause));
    } else {
      more += count;
    }
  }
  if (more > 0) parts.push_back(absl::StrCat("and ", FormatCount(more), " more"));
  return absl::StrJoin(parts, ", ");
}

}  // namespace fastdecode
