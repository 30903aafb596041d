#include "engine/spart/cuda/launch_gate.h"

#include <chrono>
#include <thread>

#include "numa/clock.h"

namespace fastdecode {

std::shared_ptr<void> LaunchGate::Hold() {
  constexpr std::chrono::microseconds kPause(20);
  holds_.fetch_add(1);
  std::shared_ptr<void> hold(this, [](LaunchGate* gate) { gate->holds_.fetch_sub(1); });
  uint64_t stages = stages_.load(std::memory_order_relaxed);
  for (uint64_t since_ns = NowNs(); in_.load() != 0 && !shut() && NowNs() - since_ns < stage_bound_ns_;) {
    std::this_thread::sleep_for(kPause);
    if (const uint64_t now = stages_.load(std::memory_order_relaxed); now != stages) {
      stages = now;
      since_ns = NowNs();
    }
  }
  return shut() ? nullptr : hold;
}

}  // namespace fastdecode
