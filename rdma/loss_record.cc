#include "rdma/loss_record.h"

#include <cstring>
#include <thread>

namespace fastdecode {

bool LossRecord::Set(const char* cause) {
  uint32_t expected = kAlive;
  // Acq_rel: the first one alone gets on to write the cause; what it did before is seen by whoever sees lost().
  if (!state_.compare_exchange_strong(expected, kWritingCause, std::memory_order_acq_rel)) return false;
  std::strncpy(cause_, cause, kCauseBytesMax);
  // Release: pairs with the acquire load in cause(), which then reads the whole text.
  state_.store(kLost, std::memory_order_release);
  return true;
}

std::string LossRecord::cause() const {
  // Bounded by the strncpy between the two stores of Set().
  uint32_t state = state_.load(std::memory_order_acquire);
  while (state == kWritingCause) {
    std::this_thread::yield();
    state = state_.load(std::memory_order_acquire);
  }
  return state == kLost ? std::string(cause_) : std::string();
}

}  // namespace fastdecode
