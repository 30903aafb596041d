#include "tools/bench/machine.h"

#include <algorithm>

#include <fastdecode/fastdecode.hpp>
#include "numa/core_plan.h"
#include "tools/bench/summary.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

std::string IsaNames() {
  std::string names;
  for (const Isa isa : kIsas) names += std::string(names.empty() ? "" : ", ") + IsaName(isa);
  return names;
}

TeamCores FirstCores(int threads_asked, const Topology& topology) {
  const auto usable =
      std::find_if(topology.nodes.begin(), topology.nodes.end(), [](const auto& n) { return n.UsableAsHome(); });
  if (usable == topology.nodes.end()) throw Error(FD_FAILED_PRECONDITION, "no NUMA node has cores and memory for us");
  const size_t threads = static_cast<size_t>(threads_asked > 0 ? threads_asked : usable->physical_cores);
  if (threads > usable->cores.size()) {
    throw Error(FD_INVALID_ARGUMENT, "--threads: " + std::to_string(threads) + " are more than the " +
                                         std::to_string(usable->cores.size()) + " cores of node " +
                                         std::to_string(usable->os_index) + "; --cores names others");
  }
  return {{usable->cores.begin(), usable->cores.begin() + static_cast<ptrdiff_t>(threads)}, usable->os_index};
}

}  // namespace

void BenchMachineFlags::AddTo(CLI::App* command) {
  command->add_option("--threads", threads, "threads of the team (0: one for each physical core of the node)")
      ->transform(Number(0, 4096))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--cores", cores, "cores of the team, all of one NUMA node (default: of the first node)")
      ->type_name("LIST");
  command->add_option("--isa", isa, IsaNames() + " (default: the best that this CPU has)")->type_name("ISA");
}

Isa ChooseIsa(const BenchMachineFlags& flags) {
  const Isa best = DetectIsa();
  if (best == Isa::kNone) throw Error(FD_FAILED_PRECONDITION, "this CPU has no AVX2 with FMA and F16C");
  Isa isa = best;
  if (!flags.isa.empty() && !ParseIsa(flags.isa, &isa)) {
    throw Error(FD_INVALID_ARGUMENT, "--isa: '" + flags.isa + "' is none of " + IsaNames());
  }
  if (isa > best) {
    throw Error(FD_INVALID_ARGUMENT, "--isa: " + flags.isa + ", but this CPU has " + IsaName(best) + " at most");
  }
  return isa;
}

TeamCores ChooseCores(const BenchMachineFlags& flags, const Topology& topology) {
  if (flags.cores.empty()) return FirstCores(flags.threads, topology);
  absl::StatusOr<std::vector<int>> cores = ParseCores("--cores", flags.cores, topology);
  ThrowUnlessOk(cores.status());
  if (flags.threads > 0 && static_cast<size_t>(flags.threads) != cores->size()) {
    throw Error(FD_INVALID_ARGUMENT, "--threads: " + std::to_string(flags.threads) + " do not fit --cores " +
                                         flags.cores + ", which are " + std::to_string(cores->size()));
  }
  const int node = topology.NodeOfCore(cores->front());
  for (const int core : *cores) {
    if (topology.NodeOfCore(core) == node) continue;
    throw Error(FD_INVALID_ARGUMENT, "--cores: " + flags.cores + " are of several NUMA nodes, and a team is on one");
  }
  return {*std::move(cores), topology.nodes[static_cast<size_t>(node)].os_index};
}

std::optional<std::string> Regime(const Topology& topology, size_t threads, double read_gb_per_s) {
  const auto is = [&](const char* maker) { return topology.cpu_model.find(maker) != std::string::npos; };
  if (threads != 2) return std::nullopt;
  if (is("AMD") && DetectIsa() >= Isa::kAvx512Bf16) return read_gb_per_s >= 45 ? "calm" : "busy";  // Zen 4 and 5
  if (is("Intel")) return read_gb_per_s >= 26 ? "calm" : "busy";
  return std::nullopt;
}

}  // namespace fastdecode
