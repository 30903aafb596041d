#include "tools/latency_report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "nlohmann/json.hpp"
#include "tools/latency/distribution.h"

namespace fastdecode {

namespace {

std::string Format(const char* format, auto... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  return line;
}

// Withheld where `latency` withholds it.
std::string PercentileCell(const std::vector<double>& sorted, double share) {
  if (!EnoughBeyond(share, static_cast<double>(sorted.size()))) return Format("%10s", "-");
  return Format("%10.2f", sorted[NearestRank(share, sorted.size())]);
}

std::string Row(const char* name, std::vector<double> values_ms) {
  std::sort(values_ms.begin(), values_ms.end());
  const double count = static_cast<double>(values_ms.size());
  const auto known = [&](double ms) { return values_ms.empty() ? Format("%10s", "-") : Format("%10.2f", ms); };
  std::string row = Format("%-22s %7zu", name, values_ms.size());
  row += known(std::accumulate(values_ms.begin(), values_ms.end(), 0.0) / count);
  for (const double share : {0.5, 0.9, 0.99}) row += PercentileCell(values_ms, share);
  return row + known(values_ms.empty() ? 0 : values_ms.back()) + "\n";
}

std::string PhaseRow(const char* name, const nlohmann::json& phase) {
  const auto cell = [&](const char* key) {
    return phase.contains(key) ? Format("%10.1f", phase[key].get<double>()) : Format("%10s", "-");
  };
  return Format("%-22s %7llu", name, static_cast<unsigned long long>(phase.value("count", 0ull))) + cell("mean_us") +
         cell("p50_us") + cell("p90_us") + cell("p99_us") + cell("max_us") + "\n";
}

}  // namespace

std::string LatencyReport(const std::vector<RequestTimes>& requests, const std::string& statistics_json) {
  std::vector<double> ttft, tpot, itl;
  for (const RequestTimes& request : requests) {
    if (request.token_ns.empty()) continue;
    const auto ms = [](uint64_t later, uint64_t earlier) { return static_cast<double>(later - earlier) * 1e-6; };
    ttft.push_back(ms(request.token_ns.front(), request.submit_ns));
    for (size_t i = 1; i < request.token_ns.size(); ++i)
      itl.push_back(ms(request.token_ns[i], request.token_ns[i - 1]));
    if (request.token_ns.size() < 2) continue;
    tpot.push_back(ms(request.token_ns.back(), request.token_ns.front()) /
                   static_cast<double>(request.token_ns.size() - 1));
  }
  const nlohmann::json s = nlohmann::json::parse(statistics_json);
  std::string text = Format("%-22s %7s%10s%10s%10s%10s%10s\n", "ms", "count", "mean", "p50", "p90", "p99", "max");
  text += Row("time to first token", ttft) + Row("time per output token", tpot) + Row("inter-token latency", itl);
  text += Format("%-22s %7s%10s%10s%10s%10s%10s\n", "us", "count", "mean", "p50", "p90", "p99", "max");
  text += PhaseRow("step", s["step"]) + PhaseRow("S-Part stage", s["stage"]) + PhaseRow("hop (round trip)", s["hop"]);
  for (const nlohmann::json& home : s["homes"]) {
    text += PhaseRow(Format("R-Part at home %d", home["index"].get<int>()).c_str(),
                     home.value("work", nlohmann::json::object()));
  }
  text += Format("%.1f tokens/s; S busy %.0f %%, R busy %.0f %%, overlap %.2f; KV read %.2f GB/s while R is busy\n",
                 s["tokens_per_s"].get<double>(), 100 * s["s_busy"].get<double>(), 100 * s["r_busy"].get<double>(),
                 s["overlap"].get<double>(), s["kv_gb_per_s"].get<double>());
  return text;
}

}  // namespace fastdecode
