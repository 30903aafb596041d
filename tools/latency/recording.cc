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

}  // namespace fastdecode
