#include "tools/latency/text/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace fastdecode {

namespace {

using ::testing::ElementsAre;

TEST(UnitsTest, Durations) {
  EXPECT_EQ(FormatNs(0), "0 ns");
  EXPECT_EQ(FormatNs(1), "1 ns");
  EXPECT_EQ(FormatNs(2.5), "2.50 ns");
  EXPECT_EQ(FormatNs(850.4), "850 ns");
  EXPECT_EQ(FormatNs(999.4), "999 ns");
  EXPECT_EQ(FormatNs(999.6), "1.00 us");
  EXPECT_EQ(FormatNs(1234), "1.23 us");
  EXPECT_EQ(FormatNs(12'345), "12.3 us");
  EXPECT_EQ(FormatNs(99'960), "100 us");
  EXPECT_EQ(FormatNs(999'600), "1.00 ms");
  EXPECT_EQ(FormatNs(12.3e6), "12.3 ms");
  EXPECT_EQ(FormatNs(75e9), "75.0 s");
  EXPECT_EQ(FormatNs(12'345e9), "12345 s");
  EXPECT_EQ(FormatNs(-12'345), "-12.3 us");
  EXPECT_EQ(FormatSignedNs(12'345), "+12.3 us");
  EXPECT_EQ(FormatSignedNs(-12'345), "-12.3 us");
  EXPECT_EQ(FormatNs(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(FormatNs(std::numeric_limits<double>::infinity()), "-");
}

TEST(UnitsTest, SharesAndCounts) {
  EXPECT_EQ(FormatShare(0), "0 %");
  EXPECT_EQ(FormatShare(0.0002), "0.02 %");
  EXPECT_EQ(FormatShare(0.001), "0.1 %");
  EXPECT_EQ(FormatShare(0.1234), "12.3 %");
  EXPECT_EQ(FormatShare(1), "100.0 %");
  EXPECT_EQ(FormatShare(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1'234'567), "1,234,567");
}

TEST(UnitsTest, AsOptionsHaveThem) {
  EXPECT_EQ(ParseNs("400ms"), 400e6);
  EXPECT_EQ(ParseNs("1.5s"), 1.5e9);
  EXPECT_EQ(ParseNs("2us"), 2000);
  EXPECT_EQ(ParseNs("7ns"), 7);
  for (const char* bad : {"", "ms", "4", "4 ms", "-4ms", "0ms", "infs", "1e3ms", "0x1s", "4.4.4ms", "90000s", "4min"}) {
    EXPECT_EQ(ParseNs(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParsePercentage("5%"), 0.05);
  EXPECT_EQ(ParsePercentage("0%"), 0);
  EXPECT_EQ(ParsePercentage("12.5%"), 0.125);
  for (const char* bad : {"", "%", "5", "-5%", "5 %", "nan%"}) EXPECT_EQ(ParsePercentage(bad), std::nullopt) << bad;
}

TEST(UnitsTest, OneUnitForAColumn) {
  // A single long one does not make the others 0.00.
  const TimeUnit unit = ChooseUnit({0, 1500, 2500, 80'000, 3e9});
  EXPECT_EQ(std::string(unit.name), "us");
  EXPECT_EQ(FormatIn(unit, 1500), "1.50");
  EXPECT_EQ(FormatIn(unit, 80'000), "80.0");
  EXPECT_EQ(FormatIn(unit, 3e9), "3000000");
  EXPECT_EQ(FormatIn(unit, 0), "0");
  EXPECT_EQ(FormatIn(unit, std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(std::string(ChooseUnit({150, 199}).name), "ns");
  EXPECT_EQ(FormatIn(ChooseUnit({150}), 5), "5");
  EXPECT_EQ(std::string(ChooseUnit({2e6, 3e6, 4e6}).name), "ms");
  EXPECT_EQ(std::string(ChooseUnit({}).name), "us");
}

TEST(UnitsTest, Wrapping) {
  EXPECT_THAT(Wrap("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(Wrap("one  two", 20), ElementsAre("one two"));
  EXPECT_THAT(Wrap("", 5), ElementsAre(""));
  EXPECT_THAT(Wrap("a 0123456789 b", 4), ElementsAre("a", "0123", "4567", "89 b"));
  EXPECT_THAT(Wrap("01234567", 4), ElementsAre("0123", "4567"));
  // Never within a character.
  EXPECT_EQ(Columns("\xc3\xa9\xc3\xa9"), 2u);
  EXPECT_THAT(Wrap("\xc3\xa9\xc3\xa9\xc3\xa9", 2), ElementsAre("\xc3\xa9\xc3\xa9", "\xc3\xa9"));
}

}  // namespace

}  // namespace fastdecode
