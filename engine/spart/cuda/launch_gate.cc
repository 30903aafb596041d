#include "engine/spart/cuda/launch_gate.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "numa/clock.h"

namespace fastdecode {

std::shared_ptr<void> LaunchGate::Hold() {
  constexpr std::chrono::microseconds kPause(20);
  constexpr uint64_t kLookNsMax = 200'000'000;  // that a look counts for
  holds_.fetch_add(1);
  std::shared_ptr<void> hold(this, [](LaunchGate* gate) { gate->holds_.fetch_sub(1); });
  uint64_t stages = stages_.load(std::memory_order_relaxed), looked_ns = NowNs(), waited_ns = 0;
  while (in_.load() != 0 && !shut() && waited_ns < stage_bound_ns_) {
    std::this_thread::sleep_for(kPause);
    const uint64_t now_ns = NowNs();
    waited_ns += std::min(now_ns - looked_ns, kLookNsMax);
    looked_ns = now_ns;
    if (const uint64_t now = stages_.load(std::memory_order_relaxed); now != stages) {
      stages = now;
      waited_ns = 0;
    }
  }
  return shut() ? nullptr : hold;
}

}  // namespace fastdecode
