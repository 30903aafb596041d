#include "engine/spart/cuda/gpu_home_link.h"

#include <utility>

#include "engine/rpart/rpart_shape.h"
#include "engine/spart/cuda/gpu_home.h"

namespace fastdecode {

GpuHomeLink::GpuHomeLink(GpuHome* home, const RPartShape& shape, std::vector<std::byte*> areas)
    : home_(home),
      size_(LinkSizeFor(shape)),
      areas_(std::move(areas)),
      description_(std::string(home->Describe().memory) + ", attention in the S-Part's stages") {}

std::string GpuHomeLink::lost_cause() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cause_;
}

void GpuHomeLink::MarkLost(const char* cause) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost()) return;
  cause_ = cause;
  // Release: who sees the loss sees the cause.
  lost_.store(true, std::memory_order_release);
}

bool GpuHomeLink::TrySendControl(const void* message, size_t bytes) {
  if (lost()) return false;
  const absl::Status applied = home_->Apply({static_cast<const std::byte*>(message), bytes});
  if (!applied.ok()) MarkLost(std::string(applied.message()).c_str());
  return applied.ok();
}

LinkPoll GpuHomeLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  return home_->TakeMessage(buffer, bytes) ? LinkPoll::kMessage : LinkPoll::kEmpty;
}

}  // namespace fastdecode
