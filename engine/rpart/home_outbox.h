#ifndef FASTDECODE_ENGINE_RPART_HOME_OUTBOX_H_
#define FASTDECODE_ENGINE_RPART_HOME_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/rpart/messages.h"
#include "numa/check.h"

namespace fastdecode {

// What a home in the engine's own process has to say to it, in order, until the engine looks.
// Owns: copies of the messages. Thread: one. Bounded: by kMessagesMax. Nothing allocates after construction.
class HomeOutbox {
 public:
  static constexpr size_t kMessagesMax = 1024;

  HomeOutbox() : messages_(kMessagesMax) {}

  // False: the engine has left so many that there is no room.
  template <class T>
  bool TryPut(const T& message) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytesMax);
    return TryPut(&message, sizeof(T));
  }
  // The same. REQUIRES: bytes <= kBytesMax.
  bool TryPut(const void* message, size_t bytes) {
    FD_CHECK(bytes <= kBytesMax, "homes say nothing longer than what they count");
    if (count_ == kMessagesMax) return false;
    Message& to = messages_[(first_ + count_++) % kMessagesMax];
    to.bytes = bytes;
    std::memcpy(to.body, message, bytes);
    return true;
  }
  // The oldest one, of kBytesMax at most. False: there is none.
  bool TryTake(void* buffer, size_t* bytes) {
    if (count_ == 0) return false;
    const Message& from = messages_[first_];
    std::memcpy(buffer, from.body, from.bytes);
    *bytes = from.bytes;
    first_ = (first_ + 1) % kMessagesMax;
    --count_;
    return true;
  }
  void Clear() { count_ = 0; }

 private:
  static constexpr size_t kBytesMax = sizeof(StatsMessage);
  struct Message {
    size_t bytes = 0;
    std::byte body[kBytesMax];
  };

  std::vector<Message> messages_;
  size_t first_ = 0, count_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOME_OUTBOX_H_
