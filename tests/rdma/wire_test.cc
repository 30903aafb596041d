#include "rdma/wire.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
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

TEST(WireTest, OneFlippedBitMakesNoOtherStatus) {
  const HopStatus all[] = {HopStatus::kOk, HopStatus::kBadRow, HopStatus::kBadHop};
  for (const HopStatus one : all) {
    for (const HopStatus other : all) {
      if (one == other) continue;
      EXPECT_GE(std::popcount(static_cast<unsigned>(one) ^ static_cast<unsigned>(other)), 2);
    }
  }
}

TEST(WireTest, ShortDurationsAreCloseEnough) {
  for (uint64_t ns = 0; ns < 2048; ++ns) EXPECT_EQ(ShortDuration::FromNs(ns).ToNs(), ns);
  std::mt19937_64 random(2);
  uint64_t last = 0;
  for (int bits = 12; bits <= 42; ++bits) {
    for (int i = 0; i < 1000; ++i) {
      const uint64_t ns = (random() | uint64_t{1} << 63) >> (64 - bits);
      const double error = static_cast<double>(ShortDuration::FromNs(ns).ToNs()) - static_cast<double>(ns);
      EXPECT_LE(std::abs(error), static_cast<double>(ns) / 4096) << ns;
    }
    const uint64_t power = uint64_t{1} << (bits - 1);
    EXPECT_GT(ShortDuration::FromNs(power).ToNs(), last);
    last = ShortDuration::FromNs(power).ToNs();
  }
  EXPECT_EQ(ShortDuration::FromNs(~uint64_t{0}).bits(), 0xffff);
}

}  // namespace
}  // namespace fastdecode
