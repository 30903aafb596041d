// fastdecode bench memory: what the cores of every NUMA node read, write and copy of the memory of every node.
#include "tools/bench/memory.h"

#include <algorithm>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "nlohmann/json.hpp"
#include "numa/arena.h"
#include "numa/pinned_thread.h"
#include "numa/topology.h"
#include "tools/bench/memory_pass.h"
#include "tools/bench/summary.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct MemoryFlags {
  double gib = 2;
  std::vector<int> threads;  // empty: powers of two up to a node's physical cores, and these
  int node = -1;             // -1: the cores of all
  int repetitions = 5;
  bool json = false;
};

// One operation by some cores of one node on the memory of one.
struct Row {
  int cores_node = 0;
  int memory_node = 0;
  std::vector<int> cores;
  MemoryOperation operation = MemoryOperation::kRead;
  ReadStreams streams = ReadStreams::kOne;
  size_t bytes = 0;  // of a repetition, read and written
  Summary gb_per_s;
};

struct MemoryUsed {
  int node = 0;
  std::string description;
  double huge_share = 0;
};

struct MemoryReport {
  std::vector<MemoryUsed> memory;
  std::vector<Row> rows;
};

const char* Name(MemoryOperation operation) {
  switch (operation) {
    case MemoryOperation::kRead:
      return "read";
    case MemoryOperation::kWrite:
      return "write";
    case MemoryOperation::kCopy:
      return "copy";
  }
  return "";
}

// Those whose cores are measured. Throws Error that names the option.
std::vector<NumaNode> NodesWithCores(const Topology& topology, const MemoryFlags& flags) {
  std::vector<NumaNode> nodes;
  std::string known;
  for (const NumaNode& node : topology.nodes) {
    if (node.cores.empty()) continue;
    known += (known.empty() ? "" : ", ") + std::to_string(node.os_index);
    if (flags.node < 0 || flags.node == node.os_index) nodes.push_back(node);
  }
  if (nodes.empty()) {
    throw Error(FD_INVALID_ARGUMENT,
                "--node: " + std::to_string(flags.node) + " has no core that this process may use; there are " + known);
  }
  for (const int threads : flags.threads) {
    for (const NumaNode& node : nodes) {
      if (static_cast<size_t>(threads) <= node.cores.size()) continue;
      throw Error(FD_INVALID_ARGUMENT, "--threads: " + std::to_string(threads) + " are more than the " +
                                           std::to_string(node.cores.size()) + " cores of node " +
                                           std::to_string(node.os_index));
    }
  }
  return nodes;
}

std::vector<int> ThreadCounts(const NumaNode& node, const MemoryFlags& flags) {
  if (!flags.threads.empty()) return flags.threads;
  std::vector<int> counts;
  for (int threads = 1; threads < node.physical_cores; threads *= 2) counts.push_back(threads);
  counts.push_back(node.physical_cores);
  return counts;
}

// On the node, touched by its own cores (by those that are measured if it has none).
Arena MakeArena(const NumaNode& node, const NumaNode& measured, const MemoryFlags& flags) {
  const NumaNode& toucher = node.cores.empty() ? measured : node;
  ArenaOptions options;
  options.bytes = static_cast<size_t>(flags.gib * (size_t{1} << 30));
  options.node = node.os_index;
  options.prefault_cores.assign(toucher.cores.begin(), toucher.cores.begin() + toucher.physical_cores);
  absl::StatusOr<Arena> arena = Arena::Create(options);
  char option[64];
  std::snprintf(option, sizeof(option), "--gib: %g: ", flags.gib);
  ThrowUnlessOk(arena.status(), option);
  return *std::move(arena);
}

// GB/s of one operation. Thread: the team's owner, on its core.
Summary MeasurePass(MemoryPass pass, TicketTeam* team, int repetitions) {
  const double bytes = static_cast<double>(pass.BytesMoved(team->thread_count()));
  std::vector<double> rates;
  pass.Run(team);  // a first time unmeasured: clocks, translations
  for (int i = 0; i < repetitions; ++i) rates.push_back(bytes / static_cast<double>(pass.Run(team)));
  return Summarize(rates);
}

// The three operations with these cores, which become `rows`' last three.
void MeasureTeam(const Arena& arena, const Row& base, int repetitions, std::vector<Row>* rows) {
  TicketTeam team("memory", base.cores, PollMode::kSpin);
  for (const MemoryOperation operation : {MemoryOperation::kRead, MemoryOperation::kWrite, MemoryOperation::kCopy}) {
    MemoryPass pass;
    pass.data = reinterpret_cast<std::byte*>(arena.data());
    pass.bytes = arena.bytes();
    pass.operation = operation;
    pass.streams = operation == MemoryOperation::kRead ? FasterStreams(pass, &team) : ReadStreams::kOne;
    Row row = base;
    row.operation = operation;
    row.streams = pass.streams;
    row.bytes = pass.BytesMoved(team.thread_count());
    row.gb_per_s = MeasurePass(pass, &team, repetitions);
    rows->push_back(std::move(row));
  }
}

// One node's memory after the other, so that only one needs to be had at a time.
MemoryReport MeasureMemory(const Topology& topology, const MemoryFlags& flags) {
  const std::vector<NumaNode> measured = NodesWithCores(topology, flags);
  MemoryReport report;
  for (const NumaNode& node : topology.nodes) {
    if (!node.memory_allowed || node.memory_bytes == 0) continue;
    const Arena arena = MakeArena(node, measured.front(), flags);
    report.memory.push_back({node.os_index, arena.Describe(), arena.huge_share()});
    for (const NumaNode& near : measured) {
      for (const int threads : ThreadCounts(near, flags)) {
        Row base;
        base.cores_node = near.os_index;
        base.memory_node = node.os_index;
        base.cores.assign(near.cores.begin(), near.cores.begin() + threads);
        // The team's owner has its first core.
        PinnedThread owner("memory", base.cores[0], [&] { MeasureTeam(arena, base, flags.repetitions, &report.rows); });
      }
    }
  }
  return report;
}

std::string Text(const MemoryReport& report, const Topology& topology, const MemoryFlags& flags) {
  std::string text = topology.cpu_model + "; median [min..max] of " + std::to_string(flags.repetitions) +
                     " passes; a copy's bytes count when read and when written\n";
  for (const MemoryUsed& memory : report.memory) {
    text += "memory of node " + std::to_string(memory.node) + ": " + memory.description + "\n";
  }
  char line[256];
  std::snprintf(line, sizeof(line), "%-6s %-6s %-5s %7s  %-9s %9s  %s\n", "cores", "memory", "", "threads", "operation",
                "GB moved", "GB/s");
  text += line;
  for (const Row& row : report.rows) {
    std::snprintf(line, sizeof(line), "%-6d %-6d %-5s %7zu  %-9s %9.3f  %s\n", row.cores_node, row.memory_node,
                  row.cores_node == row.memory_node ? "near" : "far", row.cores.size(), Name(row.operation),
                  static_cast<double>(row.bytes) * 1e-9, ToText(row.gb_per_s, 2).c_str());
    text += line;
  }
  return text;
}

std::string Json(const MemoryReport& report, const Topology& topology, const MemoryFlags& flags) {
  nlohmann::json out = {{"cpu", topology.cpu_model}, {"repetitions", flags.repetitions}};
  out["memory"] = nlohmann::json::array();
  for (const MemoryUsed& memory : report.memory) {
    out["memory"].push_back(
        {{"node", memory.node}, {"description", memory.description}, {"huge_share", memory.huge_share}});
  }
  out["rows"] = nlohmann::json::array();
  for (const Row& row : report.rows) {
    out["rows"].push_back({{"cores_node", row.cores_node},
                           {"memory_node", row.memory_node},
                           {"near", row.cores_node == row.memory_node},
                           {"threads", row.cores.size()},
                           {"cores", row.cores},
                           {"operation", Name(row.operation)},
                           {"bytes", row.bytes},
                           {"streams", static_cast<int>(row.streams)},
                           {"gb_per_s", ToJson(row.gb_per_s)}});
  }
  return ToLine(out);
}

void BenchMemory(const MemoryFlags& flags) {
  if (DetectIsa() == Isa::kNone) throw Error(FD_FAILED_PRECONDITION, "this CPU has no AVX2 with FMA and F16C");
  const Topology topology = DiscoverMachine();
  const MemoryReport report = MeasureMemory(topology, flags);
  WriteOut(flags.json ? Json(report, topology, flags) : Text(report, topology, flags));
}

}  // namespace

void AddBenchMemory(CLI::App* bench) {
  auto flags = std::make_shared<MemoryFlags>();
  CLI::App* command = bench->add_subcommand(
      "memory", "Read, write and copy: the cores of every NUMA node on the memory of every node, by number of threads");
  command->add_option("--gib", flags->gib, "memory of one measurement, of all its threads together")
      ->transform(Number(0.001, 65536.0))
      ->type_name("GIB")
      ->capture_default_str();
  AddNumbers(command, "--threads", flags->threads, 1, 4096,
             "numbers of threads (default: 1, 2, 4 ... and all physical cores)")
      ->type_name("LIST");
  command->add_option("--node", flags->node, "only the cores of this node (default: those of every node)")
      ->transform(Number(0, 1023))
      ->type_name("N");
  command->add_option("--repetitions", flags->repetitions, "measured passes of each operation")
      ->transform(Number(1, 10000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { BenchMemory(*flags); });
}

}  // namespace fastdecode
