#include "rdma/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace fastdecode {
namespace {

// Any bytes are a header as far as its words go: they must lie in memory as the struct does, and come back.
template <class Header>
void CheckWords(std::mt19937_64* random) {
  unsigned char bytes[sizeof(Header)];
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>((*random)());
  Header header;
  std::memcpy(&header, bytes, sizeof(header));
  const auto words = ToWords(header);
  static_assert(sizeof(words) == sizeof(Header));
  EXPECT_EQ(std::memcmp(words.data(), bytes, sizeof(bytes)), 0);
  Header back;
  std::memset(static_cast<void*>(&back), 0x5a, sizeof(back));
  FromWords(words, &back);
  EXPECT_EQ(std::memcmp(&back, bytes, sizeof(bytes)), 0);
}

TEST(WireTest, WordsAreTheHeadersMemory) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    CheckWords<HopHeader>(&random);
    CheckWords<ReplyHeader>(&random);
  }
}

}  // namespace
}  // namespace fastdecode
