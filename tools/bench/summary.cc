#include "tools/bench/summary.h"

#include <algorithm>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <utility>

#include "engine/bench/median.h"
#include "numa/check.h"
#include "numa/pinning.h"

namespace fastdecode {

Summary Summarize(const std::vector<double>& values) {
  FD_CHECK(!values.empty(), "there is nothing to summarize");
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {MedianOf(values), *min, *max};
}

nlohmann::json ToJson(const Summary& summary) {
  return {{"median", summary.median}, {"min", summary.min}, {"max", summary.max}};
}

std::string ToLine(const nlohmann::json& figures) {
  return figures.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ToText(const Summary& summary, int decimals) {
  char text[128];
  std::snprintf(text, sizeof(text), "%.*f [%.*f..%.*f]", decimals, summary.median, decimals, summary.min, decimals,
                summary.max);
  return text;
}

std::string KvTypeNames() {
  std::string names;
  for (const KvType type : kKvTypes) names += std::string(names.empty() ? "" : ", ") + KvTypeName(type);
  return names;
}

KvType ParseKvType(const char* option, const std::string& name) {
  for (const KvType type : kKvTypes) {
    if (name == KvTypeName(type)) return type;
  }
  throw Error(FD_INVALID_ARGUMENT, std::string(option) + ": '" + name + "' is none of " + KvTypeNames());
}

void ThrowUnlessOk(const absl::Status& status, const std::string& context) {
  // The codes are the same.
  if (!status.ok()) throw Error(static_cast<fd_code>(status.code()), context + std::string(status.message()));
}

Topology DiscoverMachine() {
  absl::StatusOr<Topology> topology = Topology::Discover();
  ThrowUnlessOk(topology.status());
  if (!topology->warning.empty()) std::fprintf(stderr, "fastdecode: warning: %s\n", topology->warning.c_str());
  if (const std::string refused = TryToPin(topology->AllowedCores().front()); !refused.empty()) {
    std::fprintf(stderr, "fastdecode: warning: %s: no thread stays on its core, and figures are of any cores; %s\n",
                 refused.c_str(), kPinningAdvice);
  }
  return *std::move(topology);
}

}  // namespace fastdecode
