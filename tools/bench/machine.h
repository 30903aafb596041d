#ifndef FASTDECODE_TOOLS_BENCH_MACHINE_H_
#define FASTDECODE_TOOLS_BENCH_MACHINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/isa.h"
#include "numa/topology.h"

namespace fastdecode {

// Which part of the machine a benchmark of one team measures: its options, and what they mean here.
struct BenchMachineFlags {
  int threads = 0;    // 0: all physical cores of the node, or those of `cores`
  std::string cores;  // empty: the first ones of the first node that has memory
  std::string isa;    // empty: the best

  // --threads, --cores, --isa.
  void AddTo(CLI::App* command);
};

// Cores of one NUMA node.
struct TeamCores {
  std::vector<int> cores;  // OS numbers of PUs
  int node = -1;           // os_index
};

// Throw Error that names the option and its value.
Isa ChooseIsa(const BenchMachineFlags& flags);
TeamCores ChooseCores(const BenchMachineFlags& flags, const Topology& topology);

// "calm" or "busy", by what two threads read where such a machine has nothing else to do; nothing for other machines.
std::optional<std::string> Regime(const Topology& topology, size_t threads, double read_gb_per_s);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_MACHINE_H_
