#include "tools/latency/recording.h"

namespace fastdecode {

std::string Recording::HomeName(int home) const {
  const std::string index = "home " + std::to_string(home);
  const auto homes = engine.find("homes");
  if (homes == engine.end()) return index;
  for (const nlohmann::json& entry : *homes) {
    if (entry.value("index", -1) == home) return index + " (" + entry.value("name", "") + ")";
  }
  return index;
}

std::vector<bool> Recording::SameHost(int homes) const {
  std::vector<bool> same(static_cast<size_t>(homes), false);
  const auto listed = engine.find("homes");
  if (listed == engine.end()) return same;
  for (const nlohmann::json& entry : *listed) {
    const int index = entry.value("index", -1);
    if (index >= 0 && index < homes) same[static_cast<size_t>(index)] = entry.value("same_host", false);
  }
  return same;
}

}  // namespace fastdecode
