#ifndef FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_LINK_H_
#define FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_LINK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/rpart/in_stage_link.h"
#include "engine/rpart/messages.h"

namespace fastdecode {

class GpuHome;

// The engine's way to its own GPU's memory as a home. Control messages are applied as they are sent; there are no hops
// (AttendsInStage), and nothing that could get lost on the way. What the home says waits there until it is asked for.
// Thread: as EngineLink says.
class GpuHomeLink final : public InStageLink {
 public:
  // areas: where stages write rows of each micro-batch, in the GPU's memory. `home` outlives the link.
  GpuHomeLink(GpuHome* home, const RPartShape& shape, std::vector<std::byte*> areas);

  bool lost() const override { return lost_.load(std::memory_order_acquire); }
  std::string lost_cause() const override;
  void MarkLost(const char* cause) override;
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "the GPU of this process"; }
  std::string Describe() const override { return description_; }

  std::byte* SendArea(int slot) override { return areas_[static_cast<size_t>(slot)]; }
  const std::byte* ReceiveArea(int slot) override { return areas_[static_cast<size_t>(slot)]; }
  bool AreasOnGpu() const override { return true; }
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;

 private:
  GpuHome* const home_;
  const LinkSize size_;
  const std::vector<std::byte*> areas_;  // [micro-batch]
  const std::string description_;

  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string cause_;  // guarded by mutex_
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_LINK_H_
