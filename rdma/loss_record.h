#ifndef FASTDECODE_RDMA_LOSS_RECORD_H_
#define FASTDECODE_RDMA_LOSS_RECORD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fastdecode {

// Whether one end's link is lost, and why. The first cause stays.
// Thread: any. Lock-free, but for a reader of the cause that meets its writer.
// Bounded: causes are cut to kCauseBytesMax.
class LossRecord {
 public:
  static constexpr size_t kCauseBytesMax = 400;

  // Acquire: pairs with Set's release, so that who sees the loss sees what was done before it.
  bool lost() const { return state_.load(std::memory_order_acquire) != kAlive; }

  // True for the call that was first.
  bool Set(const char* cause);

  // Empty while not lost.
  std::string cause() const;

 private:
  enum State : uint32_t { kAlive, kWritingCause, kLost };

  std::atomic<uint32_t> state_{kAlive};
  char cause_[kCauseBytesMax + 1] = {};
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_LOSS_RECORD_H_
