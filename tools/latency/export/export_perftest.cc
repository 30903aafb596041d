#include "tools/latency/export/export_perftest.h"

#include <cinttypes>
#include <cstdio>

namespace fastdecode {

namespace {

std::string Micros(double ns) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.3f", ns * 1e-3);
  return text;
}

std::string PercentileMicros(const Distribution& ns, double share) {
  const std::optional<uint64_t> value = ns.Percentile(share);
  return value ? Micros(static_cast<double>(*value)) : "-";
}

void Append(const PerftestRow& row, std::string* text) {
  const Distribution& ns = row.ns;
  char line[320];
  std::snprintf(line, sizeof(line), " %-10" PRIu64 " %-12zu %-12s %-12s %-16s %-12s %-14s %-21s %s\n", row.bytes,
                ns.count(), Micros(static_cast<double>(ns.min_ns())).c_str(),
                Micros(static_cast<double>(ns.max_ns())).c_str(), PercentileMicros(ns, 0.5).c_str(),
                Micros(ns.mean_ns()).c_str(), Micros(ns.stdev_ns()).c_str(), PercentileMicros(ns, 0.99).c_str(),
                PercentileMicros(ns, 0.999).c_str());
  *text += line;
}

}  // namespace

std::string PerftestText(const std::vector<PerftestRow>& rows) {
  std::string text =
      " #bytes     #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]  "
      "99% percentile[usec]  99.9% percentile[usec]\n";
  std::string name;
  for (const PerftestRow& row : rows) {
    if (row.name != name) text += "# " + row.name + "\n";
    name = row.name;
    Append(row, &text);
  }
  return text;
}

}  // namespace fastdecode
