#include "tests/tools/latency/simulated_setup.h"

#include <string>
#include <utility>

namespace fastdecode {

std::vector<double> HomeWeights(const SimulatedRun& run) {
  const double homes = run.homes;
  std::vector<double> weights(static_cast<size_t>(run.homes), 1 / homes);
  if (run.faults.heavy_home < 0) return weights;
  const double heavy = run.faults.heavy_ratio / homes;
  for (double& weight : weights) weight = (1 - heavy) / (homes - 1);
  weights[static_cast<size_t>(run.faults.heavy_home)] = heavy;
  return weights;
}

SimulatedHome MakeHome(const SimulatedRun& run, int home) {
  const SimulatedFaults& faults = run.faults;
  SimulatedLink link = home < run.local_homes ? run.local_link : run.link;
  SimulatedAttention attention = run.attention;
  if ((!link.in_memory || faults.late_in_memory) && (faults.late_home < 0 || faults.late_home == home)) {
    link.late_share = faults.late_share;
    link.late_ns = faults.late_ns;
  }
  const auto index = static_cast<size_t>(home);
  if (index < faults.far_ns.size()) link.extra_one_way_ns = faults.far_ns[index] / 2;
  if (faults.slow_home == home) {
    attention.prepare_extra_ns = faults.prepare_extra_ns;
    attention.attend_extra_ns = faults.attend_extra_ns;
  }
  if (faults.narrow_home == home) attention.bytes_per_ns *= faults.bandwidth_ratio;
  return {home, run.noise, link, attention, run.seed * 1000 + 10 * static_cast<uint64_t>(home) + 3};
}

std::deque<SimulatedLoss> PlanLoss(const SimulatedRun& run) {
  const SimulatedFaults& faults = run.faults;
  if (faults.lost_home < 0) return {};
  using enum SimulatedLoss::What;
  const double dies = kSimulatedStartNs + faults.lost_at_s * 1e9, known = dies + faults.known_after_ns;
  std::deque<SimulatedLoss> loss = {{kDies, dies}, {kIsKnown, known}};
  if (faults.away_ns > 0) loss.push_back({kIsBack, known + faults.away_ns});
  return loss;
}

nlohmann::json DescribeEngine(const SimulatedRun& run) {
  nlohmann::json homes = nlohmann::json::array();
  for (int h = 0; h < run.homes; ++h) {
    const bool local = h < run.local_homes;
    const std::string number = std::to_string(local ? h : h + 1);
    homes.push_back({{"index", h},
                     {"name", local ? "local, node " + number : "10.0.0." + number + ":7000, home 0"},
                     {"same_host", local},
                     {"link_device", local ? "" : "mlx5_0 port 1"},
                     {"link_gbit_per_s", local ? 0 : run.link.bytes_per_ns * 8}});
  }
  return {
      {"layers", run.layers}, {"micro_batches", run.micro_batches}, {"s_part_asynchronous", run.gpu}, {"homes", homes}};
}

}  // namespace fastdecode
