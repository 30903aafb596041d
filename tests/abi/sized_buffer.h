#ifndef FASTDECODE_TESTS_ABI_SIZED_BUFFER_H_
#define FASTDECODE_TESTS_ABI_SIZED_BUFFER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace fastdecode {

// Sizes that no version of a struct can have: no multiples of 8, too small, much too large.
inline constexpr uint32_t kSizesThatAreNone[] = {0, 1, 8, 12, 15, 17, 1 << 20, UINT32_MAX};

// Structs of a caller who knows another version of the header: `count` of them, `bytes` bytes each. Behind them lies
// what is nobody's: whoever reads it finds no defaults there, and whoever writes to it is found.
class SizedBuffer {
 public:
  SizedBuffer(size_t bytes, size_t count) : bytes_(bytes), count_(count), memory_(bytes * count + kBehind, kNobodys) {
    SetSize(static_cast<uint32_t>(bytes));
  }
  // One that is a newer or older caller's `of`: its first bytes, and zeros behind what it has.
  template <class Struct>
  static SizedBuffer Of(const Struct& of, size_t bytes) {
    SizedBuffer buffer(bytes, 1);
    std::memset(buffer.memory_.data(), 0, bytes);
    std::memcpy(buffer.memory_.data(), &of, std::min(bytes, sizeof(of)));
    buffer.SetSize(static_cast<uint32_t>(bytes));
    return buffer;
  }

  void SetSize(uint32_t size) { std::memcpy(memory_.data(), &size, std::min(sizeof(size), memory_.size())); }
  uint8_t* at(size_t index) { return memory_.data() + index * bytes_; }
  template <class Struct>
  Struct* get() {
    return reinterpret_cast<Struct*>(memory_.data());
  }

  // That this one begins as `right` does, as far as both go, but for struct_size, and has zeros behind that.
  template <class Struct>
  void ExpectBeginsAs(const Struct& right, size_t index = 0) {
    const uint8_t* const own = at(index);
    uint32_t size = 0;
    std::memcpy(&size, own, sizeof(size));
    EXPECT_EQ(size, bytes_);
    const auto* const other = reinterpret_cast<const uint8_t*>(&right);
    for (size_t i = sizeof(size); i < bytes_; ++i) {
      ASSERT_EQ(own[i], i < sizeof(Struct) ? other[i] : 0) << "byte " << i << " of " << bytes_;
    }
  }
  // That nobody has written from the index-th one on.
  void ExpectUntouchedFrom(size_t index) {
    for (size_t i = index * bytes_; i < memory_.size(); ++i) {
      if (i < sizeof(uint32_t)) continue;  // what the caller has set
      ASSERT_EQ(memory_[i], kNobodys) << "byte " << i << " of " << count_ << " structs of " << bytes_;
    }
  }

 private:
  static constexpr size_t kBehind = 256;
  static constexpr uint8_t kNobodys = 0xa5;

  size_t bytes_, count_;
  std::vector<uint8_t> memory_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ABI_SIZED_BUFFER_H_
