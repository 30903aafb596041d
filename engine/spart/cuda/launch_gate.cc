#include "engine/spart/cuda/launch_gate.h"

#include <chrono>
#include <thread>

#include "numa/clock.h"

namespace fastdecode {

std::shared_ptr<void> LaunchGate::Hold() {
  constexpr std::chrono::microseconds kPause(20);
  holds_.fetch_add(1);
  std::shared_ptr<void> hold(this, [](LaunchGate* gate) { gate->holds_.fetch_sub(1); });
  for (const uint64_t start_ns = NowNs(); in_.load() != 0 && NowNs() - start_ns < wait_bound_ns_;) {
    std::this_thread::sleep_for(kPause);
  }
  return hold;
}

}  // namespace fastdecode
