#ifndef FASTDECODE_ENGINE_SPART_CUDA_LAUNCH_GATE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_LAUNCH_GATE_H_

#include <atomic>
#include <cstdint>
#include <memory>

namespace fastdecode {

// Keeps a GPU's steps apart from calls that may wait for all that runs there, and for which launches may wait in turn:
// those that register, pin or free memory. A step waits for the pipeline thread; if that waited in a launch for such a
// call, and the call for the step, nothing would move until the step's own wait ends.
// A device that answers no more would keep such calls and launches for ever, and one that failed cannot be counted on:
// Shut says so, and nobody holds or launches again. Thread: TryEnter, GoOn, Leave, AnyIn and Shut the pipeline thread,
// Hold any other, shut any.
class LaunchGate {
 public:
  // A step goes on or is given up within `stage_bound_ns`: nobody waits longer for the next stage of one, not counting
  // times in which the process stood still.
  explicit LaunchGate(uint64_t stage_bound_ns) : stage_bound_ns_(stage_bound_ns) {}

  // Whether a step may be launched now; it is in from here to Leave.
  bool TryEnter() {
    if (holds_.load() != 0 || shut_.load()) return false;
    in_.fetch_add(1);
    if (holds_.load() == 0) return true;
    in_.fetch_sub(1);
    return false;
  }
  // A step that is in begins another stage.
  void GoOn() { stages_.store(stages_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void Leave() {
    GoOn();
    in_.fetch_sub(1);
  }

  bool AnyIn() const { return in_.load() != 0; }

  // None enters any more, and nobody holds.
  void Shut() { shut_.store(true); }
  bool shut() const { return shut_.load(); }

  // Returns when no step is in, or the one that is has not gone on for the bound. None enters while what it returns
  // lives. Null: the gate is shut.
  [[nodiscard]] std::shared_ptr<void> Hold();

 private:
  // Each side announces itself and then looks for the other: one of two that come at once sees the other, since all
  // these accesses have one order.
  std::atomic<int> in_{0}, holds_{0};
  std::atomic<bool> shut_{false};
  std::atomic<uint64_t> stages_{0};  // news of the steps that are in, and no more than that: relaxed
  const uint64_t stage_bound_ns_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_LAUNCH_GATE_H_
