#include "tools/latency/analysis/wire_rate.h"

#include <cstddef>
#include <string>

namespace fastdecode {

namespace {

constexpr double kGbitPerGb = 8;

// What a link stands on, as the engine describes it.
struct WireLine {
  bool memory = false;
  std::string device;   // empty: memory, or not known
  double gb_per_s = 0;  // one way; 0: not known
};

WireLine DescribedLine(const nlohmann::json& engine, int home) {
  WireLine line;
  const auto homes = engine.find("homes");
  if (homes == engine.end()) return line;
  for (const nlohmann::json& entry : *homes) {
    if (entry.value("index", -1) != home) continue;
    line.device = entry.value("link_device", "");
    line.gb_per_s = entry.value("link_gbit_per_s", 0.0) / kGbitPerGb;
    line.memory = line.device.empty() && entry.value("same_host", false);
  }
  return line;
}

struct Carried {
  double bytes = 0, wire_ns = 0;
};

std::vector<Carried> SumUp(const Timeline& timeline) {
  std::vector<Carried> carried(static_cast<size_t>(timeline.homes));
  for (const HopTimes& hop : timeline.hops) {
    Carried& of_home = carried[static_cast<size_t>(hop.home)];
    of_home.bytes += static_cast<double>(hop.payload_bytes);
    of_home.wire_ns += static_cast<double>(hop.wire_ns);
  }
  return carried;
}

std::string LineRateOf(const WireLine& line, const char* ways) {
  if (line.device.empty()) return "line rate not known";
  if (line.gb_per_s <= 0) return "line rate of " + line.device + " not known";
  return "line rate of " + line.device + ways;
}

}  // namespace

std::vector<Achieved> MeasureWires(const Recording& recording, const Timeline& timeline) {
  std::vector<Achieved> achieved;
  if (timeline.end_ns <= timeline.start_ns || !recording.engine.is_object()) return achieved;
  const double span_ns = static_cast<double>(timeline.end_ns - timeline.start_ns);
  const std::vector<Carried> carried = SumUp(timeline);
  for (int home = 0; home < timeline.homes; ++home) {
    const Carried& of_home = carried[static_cast<size_t>(home)];
    if (of_home.bytes <= 0 || of_home.wire_ns <= 0) continue;
    const std::string where = "home " + std::to_string(home);
    const WireLine line = DescribedLine(recording.engine, home);
    const double in_hops = of_home.bytes / of_home.wire_ns;
    if (line.memory) {
      const double possible = recording.memory_gb_per_s;
      achieved.push_back({"shared memory, " + where + ", in hops", in_hops, possible, "GB/s",
                          possible > 0 ? kReadTest : "read test not made"});
      NoteCache(&achieved.back());
      continue;
    }
    achieved.push_back(
        {"wire, " + where, of_home.bytes / span_ns, 2 * line.gb_per_s, "GB/s", LineRateOf(line, ", both ways")});
    achieved.push_back({"wire, " + where + ", in hops", in_hops, line.gb_per_s, "GB/s", LineRateOf(line, "")});
  }
  return achieved;
}

}  // namespace fastdecode
