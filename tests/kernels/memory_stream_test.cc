#include "kernels/memory_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace fastdecode {
namespace {

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};

// `bytes` bytes and, around them, 512 that nobody may touch.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), all_(static_cast<std::byte*>(std::aligned_alloc(64, bytes + 1024))) {
    std::fill_n(all_.get(), bytes + 1024, std::byte{0xa5});
  }

  std::byte* data() const { return all_.get() + 512; }
  size_t bytes() const { return bytes_; }
  // Whether all bytes from `first` to the end, and those before the start, are as they were.
  bool UntouchedFrom(size_t first) const {
    const auto is_old = [](std::byte b) { return b == std::byte{0xa5}; };
    return std::all_of(all_.get(), data(), is_old) && std::all_of(data() + first, data() + bytes_ + 512, is_old);
  }

 private:
  const size_t bytes_;
  const std::unique_ptr<std::byte, Free> all_;
};

TEST(MemoryStream, EveryWordReadCounts) {
  Buffer buffer(4 * 512);
  std::fill_n(buffer.data(), buffer.bytes(), std::byte{0});
  for (const ReadStreams streams : {ReadStreams::kOne, ReadStreams::kFour}) {
    ASSERT_EQ(ReadStream(buffer.data(), buffer.bytes(), streams), 0u);
    for (size_t at = 0; at < buffer.bytes(); at += sizeof(uint64_t)) {
      const uint64_t word = 0x100 + at;
      std::memcpy(buffer.data() + at, &word, sizeof(word));
      EXPECT_EQ(ReadStream(buffer.data(), buffer.bytes(), streams), word) << at;
      std::fill_n(buffer.data() + at, sizeof(word), std::byte{0});
    }
  }
}

TEST(MemoryStream, ARestIsNotRead) {
  Buffer buffer(3 * 512 + 448);
  std::fill_n(buffer.data(), 3 * 512, std::byte{0});
  for (const ReadStreams streams : {ReadStreams::kOne, ReadStreams::kFour}) {
    EXPECT_EQ(ReadStream(buffer.data(), buffer.bytes(), streams), 0u);
    EXPECT_EQ(ReadStream(buffer.data(), 511, streams), 0u);
  }
}

TEST(MemoryStream, WritesWholeBlocks) {
  Buffer buffer(3 * 512 + 448);
  WriteStream(buffer.data(), buffer.bytes(), 0x0102030405060708u);
  for (size_t at = 0; at < 3 * 512; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, buffer.data() + at, sizeof(word));
    ASSERT_EQ(word, 0x0102030405060708u) << at;
  }
  EXPECT_TRUE(buffer.UntouchedFrom(3 * 512));
}

TEST(MemoryStream, CopiesWholeBlocks) {
  Buffer from(2 * 512 + 64), to(2 * 512 + 64);
  for (size_t i = 0; i < from.bytes(); ++i) from.data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  CopyStream(to.data(), from.data(), from.bytes());
  EXPECT_EQ(std::memcmp(to.data(), from.data(), 2 * 512), 0);
  EXPECT_TRUE(to.UntouchedFrom(2 * 512));
}

}  // namespace
}  // namespace fastdecode
