#include "tools/latency/recording.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

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

void SortIn(size_t sorted, std::vector<fd_record_event>* events) {
  const auto ends_before = [](const fd_record_event& a, const fd_record_event& b) { return a.end_ns < b.end_ns; };
  const auto added = events->begin() + static_cast<ptrdiff_t>(sorted);
  if (added == events->end()) return;
  const fd_record_event first = *std::min_element(added, events->end(), ends_before);
  std::stable_sort(std::upper_bound(events->begin(), added, first, ends_before), events->end(), ends_before);
}

void ReleaseBehindEnd(std::vector<fd_record_event>* events) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = reinterpret_cast<uintptr_t>(events->data() + events->size());
  const uintptr_t begin = (end + page - 1) / page * page;
  const uintptr_t limit = reinterpret_cast<uintptr_t>(events->data() + events->capacity()) / page * page;
  // Anonymous memory that nobody has put anything into reads as zeros, whether it was there or not.
  if (limit > begin) madvise(reinterpret_cast<void*>(begin), limit - begin, MADV_DONTNEED);
}

}  // namespace fastdecode
