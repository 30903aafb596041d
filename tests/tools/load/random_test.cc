// Random numbers, against those of another implementation in another language (splitmix64 in Python).
#include "tools/load/random.h"

#include "gtest/gtest.h"

namespace fastdecode::load {

namespace {

TEST(Random, IsSplitmix64) {
  Random random(7);
  EXPECT_EQ(random.Bits(), 7191089600892374487u);
  EXPECT_EQ(random.Bits(), 309689372594955804u);
  EXPECT_EQ(random.Bits(), 16616101746815609346u);
}

TEST(Random, DrawsWhatOthersDraw) {
  Random random(7);
  EXPECT_DOUBLE_EQ(random.Uniform(), 0.3898297483912715);
  EXPECT_DOUBLE_EQ(random.Uniform(), 0.01678829452815611);
  EXPECT_NEAR(random.Exponential(), 2.310220978373141, 1e-12);
  EXPECT_NEAR(random.Normal(), -1.2638933287309149, 1e-12);
  EXPECT_NEAR(random.Gamma(2.5), 1.2474873546371872, 1e-12);
  EXPECT_NEAR(random.Gamma(0.25), 1.4095190007370075e-06, 1e-15);
}

TEST(Random, BetweenHasBothEnds) {
  Random random(1);
  bool first = false, last = false;
  for (int i = 0; i < 1000; ++i) {
    const int64_t drawn = random.Between(-1, 2);
    ASSERT_GE(drawn, -1);
    ASSERT_LE(drawn, 2);
    first |= drawn == -1;
    last |= drawn == 2;
  }
  EXPECT_TRUE(first && last);
}

}  // namespace

}  // namespace fastdecode::load
