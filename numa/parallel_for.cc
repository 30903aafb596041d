#include "numa/parallel_for.h"

#include <atomic>

#include "numa/pinned_thread.h"

namespace fastdecode {

void ParallelFor(const std::string& thread_name, const std::vector<int>& cores, int64_t count,
                 const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  std::vector<PinnedThread> threads;
  for (const int core : cores) threads.emplace_back(thread_name, core, work);
  if (threads.empty()) work();
}

}  // namespace fastdecode
