#ifndef FASTDECODE_NUMA_ABANDON_H_
#define FASTDECODE_NUMA_ABANDON_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fastdecode {

// Leaves an object to the end of the process, which does not destroy it either: its destructor would wait for ever.
// Thread: any.
template <class T>
void Abandon(std::unique_ptr<T> object) {
  static std::mutex mutex;
  // Never destroyed. Leak checkers find in it what they would miss.
  static auto& abandoned = *new std::vector<std::unique_ptr<T>>();
  const std::lock_guard<std::mutex> lock(mutex);
  abandoned.push_back(std::move(object));
}

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_ABANDON_H_
