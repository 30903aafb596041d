#include "engine/rpart/read_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace fastdecode {
namespace {

constexpr size_t kBytes = 8 << 20;

class ReadRateTest : public testing::Test {
 protected:
  ReadRateTest() : memory_(static_cast<std::byte*>(std::aligned_alloc(64, kBytes)), std::free) {
    std::fill_n(memory_.get(), kBytes, std::byte{1});
  }
  std::span<const std::byte> First(size_t bytes) const { return {memory_.get(), bytes}; }

  const std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

TEST_F(ReadRateTest, IsThatOfAllCores) {
  for (const std::vector<int>& cores : {std::vector<int>{-1}, {-1, -1, -1}}) {
    const double rate = MeasureReadRate(First(kBytes), cores);
    EXPECT_GT(rate, 1e6) << "no memory is so slow";
    EXPECT_LT(rate, 1e12 * static_cast<double>(cores.size())) << "no core is so fast";
  }
}

TEST_F(ReadRateTest, OfTooLittleMemoryNothingIsKnown) {
  EXPECT_EQ(MeasureReadRate(First(100 << 10), {-1}), 0);
  EXPECT_EQ(MeasureReadRate(First(1 << 20), std::vector<int>(100, -1)), 0);
}

}  // namespace
}  // namespace fastdecode
