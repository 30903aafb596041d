#include "numa/front_cores.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

constexpr const char* kFrontOption = "--front-cores";
constexpr int kPhysicalCoresMin = 4;  // of which auto takes one

bool NamesFrontCores(const std::string& text) { return !text.empty() && text != "none" && text != "auto"; }

bool HasAny(const std::vector<int>& cores, const std::vector<int>& of) {
  return std::find_first_of(cores.begin(), cores.end(), of.begin(), of.end()) != cores.end();
}

// What --s-cores or --r-cores says; empty: nothing.
absl::StatusOr<std::vector<int>> ParseGiven(const char* option, const std::string& text, const Topology& topology) {
  if (text.empty()) return std::vector<int>();
  return ParseCores(option, text, topology);
}

// The nodes that auto looks at, the S-Part's first. `s_cores`: as given, or empty.
std::vector<const NumaNode*> NodesForFront(const Topology& topology, const std::vector<int>& s_cores) {
  std::vector<const NumaNode*> nodes;
  for (const NumaNode& node : topology.nodes) {
    if (node.UsableAsHome()) nodes.push_back(&node);
  }
  if (s_cores.empty()) return nodes;
  const NumaNode* const s_node = &topology.nodes[static_cast<size_t>(topology.NodeOfCore(s_cores[0]))];
  std::stable_partition(nodes.begin(), nodes.end(), [&](const NumaNode* node) { return node == s_node; });
  return nodes;
}

// `settled`: the cores given are all that the engine will have.
std::vector<int> ChooseAuto(const Topology& topology, const std::vector<int>& s_cores, const std::vector<int>& r_cores,
                            const std::vector<int>& taken, bool settled) {
  std::vector<std::pair<const NumaNode*, std::vector<std::vector<int>>>> free;  // by node: physical cores, none given
  int physical = 0;
  for (const NumaNode* node : NodesForFront(topology, s_cores)) {
    physical += node->physical_cores;
    std::vector<std::vector<int>> cores = PhysicalCores(*node);
    std::erase_if(cores, [&](const std::vector<int>& core) { return HasAny(core, s_cores) || HasAny(core, r_cores); });
    if (cores.size() > (settled ? 0 : 1)) free.emplace_back(node, std::move(cores));
  }
  if (!settled && physical < kPhysicalCoresMin) return {};
  for (const bool avoid_taken : {true, false}) {
    for (const auto& [node, cores] : free) {
      const auto last = std::find_if(cores.rbegin(), cores.rend(), [&](const std::vector<int>& core) {
        return !avoid_taken || !HasAny(core, taken);
      });
      if (last != cores.rend()) return *last;
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<std::vector<int>> ChooseFrontCores(const Topology& topology, const CorePlanOptions& options) {
  const std::string& text = options.front_cores;
  if (text.empty() || text == "none") return std::vector<int>();
  absl::StatusOr<std::vector<int>> s_cores = ParseGiven("--s-cores", options.s_cores, topology);
  if (!s_cores.ok()) return s_cores.status();
  absl::StatusOr<std::vector<int>> r_cores = ParseGiven("--r-cores", options.r_cores, topology);
  if (!r_cores.ok()) return r_cores.status();
  if (!NamesFrontCores(text)) {
    if (options.share && s_cores->empty()) *s_cores = *r_cores;
    const bool settled = !s_cores->empty() && (options.share || !r_cores->empty() || options.homes == 0);
    return ChooseAuto(topology, *s_cores, *r_cores, options.taken_cores, settled);
  }
  absl::StatusOr<std::vector<int>> named = ParseCores(kFrontOption, text, topology);
  if (!named.ok()) return named.status();
  const auto error = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(kFrontOption, ": '", text, "': ", why, " (allowed: cores ",
                                                   FormatCores(topology.AllowedCores()), ")"));
  };
  for (const auto& [option, value, cores] :
       {std::tuple("--s-cores", &options.s_cores, &*s_cores), std::tuple("--r-cores", &options.r_cores, &*r_cores)}) {
    for (const int core : *named) {
      if (std::find(cores->begin(), cores->end(), core) == cores->end()) continue;
      return error(absl::StrCat("core ", core, " is also in ", option, " '", *value, "': name it in one of them"));
    }
  }
  const Topology left = topology.Without(*named);
  if (std::none_of(left.nodes.begin(), left.nodes.end(), [](const NumaNode& node) { return node.UsableAsHome(); })) {
    return error("no core is left to the engine: name fewer");
  }
  return named;
}

Topology WithoutNamedFrontCores(const Topology& topology, const std::string& front_cores) {
  if (!NamesFrontCores(front_cores)) return topology;
  const absl::StatusOr<std::vector<int>> named = ParseCores(kFrontOption, front_cores, topology);
  return named.ok() ? topology.Without(*named) : topology;
}

}  // namespace fastdecode
