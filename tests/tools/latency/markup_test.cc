#include "tools/latency/html/markup.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::SizeIs;

TEST(EscapedTest, LeavesNothingThatEndsATextOrAnAttribute) {
  EXPECT_EQ(Escaped("<a b='c' d=\"e\">&amp;\u00e9"), "&lt;a b=&#39;c&#39; d=&quot;e&quot;&gt;&amp;amp;\u00e9");
}

TEST(HtmlNsTest, HasARealMicroSignAndDoesNotBreak) {
  EXPECT_EQ(HtmlNs(12'300), "12.3\u00a0\u00b5s");
  EXPECT_EQ(HtmlNs(12'300'000), "12.3\u00a0ms");
  EXPECT_EQ(HtmlNs(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(TickNsTest, HasNoEmptyDecimals) {
  EXPECT_EQ(TickNs(0), "0");
  EXPECT_EQ(TickNs(5e6), "5\u00a0ms");
  EXPECT_EQ(TickNs(50e6), "50\u00a0ms");
  EXPECT_EQ(TickNs(500e6), "500\u00a0ms");
  EXPECT_EQ(TickNs(2.5e6), "2.5\u00a0ms");
  EXPECT_EQ(TickNs(100), "100\u00a0ns");
}

TEST(ScaleTest, IsEvenOrLogarithmic) {
  const Scale even = {10, 20, 100, 200};
  EXPECT_DOUBLE_EQ(even.At(10), 100);
  EXPECT_DOUBLE_EQ(even.At(15), 150);
  const Scale logarithmic = {1, 100, 300, 0, true};
  EXPECT_DOUBLE_EQ(logarithmic.At(1), 300);
  EXPECT_DOUBLE_EQ(logarithmic.At(10), 150);
  EXPECT_DOUBLE_EQ(logarithmic.At(100), 0);
}

std::vector<double> TicksOf(double low, double high, bool logarithmic, size_t most) {
  return Ticks({low, high, 0, 1, logarithmic}, most);
}

auto Near(const std::vector<double>& values) { return Pointwise(testing::DoubleNear(1e-6), values); }

TEST(TicksTest, AreRound) {
  EXPECT_THAT(TicksOf(0, 10.5, false, 6), Near({0, 2, 4, 6, 8, 10}));
  EXPECT_THAT(TicksOf(0, 9.1, false, 10), Near({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_THAT(TicksOf(0.9, 110, true, 12), Near({1, 2, 5, 10, 20, 50, 100}));
  EXPECT_THAT(TicksOf(0.9, 1.1e6, true, 12), Near({1, 10, 100, 1e3, 1e4, 1e5, 1e6}));
}

TEST(TicksTest, ThereAreSomeInANarrowLogarithmicScale) {
  EXPECT_THAT(TicksOf(1.1, 1.3, true, 6), SizeIs(testing::Ge(3u)));
  EXPECT_THAT(TicksOf(1.1, 8, true, 6), SizeIs(testing::Ge(3u)));
}

TEST(SvgTest, WritesShapesWithTitles) {
  Svg svg(100, 50, "a \"label\"");
  svg.Rect({1.25, 2}, 10, 0, "a", "<title>");
  svg.Path({{0, 1}, {2.04, 3.06}}, "b");
  svg.Path({}, "none");
  const std::string text = svg.Take();
  EXPECT_THAT(text, HasSubstr("viewBox=\"0 0 100 50\" aria-label=\"a &quot;label&quot;\""));
  EXPECT_THAT(
      text, HasSubstr("<rect class=\"a\" x=\"1.2\" y=\"2\" width=\"10\" height=\"0.5\"><title>&lt;title&gt;</title>"));
  EXPECT_THAT(text, HasSubstr("<path class=\"b\" d=\"M0,1L2,3.1\"/>"));
  EXPECT_THAT(text, Not(HasSubstr("none")));
}

TEST(ShareBarTest, StaysWithinItsCell) {
  EXPECT_THAT(ShareBar(0.25, "x"), HasSubstr("width:25%"));
  EXPECT_THAT(ShareBar(1.7, "x"), HasSubstr("width:100%"));
  EXPECT_THAT(ShareBar(-1, "x"), HasSubstr("width:0%"));
  EXPECT_THAT(ShareBar(std::numeric_limits<double>::quiet_NaN(), "x"), HasSubstr("width:0%"));
}

TEST(TableTest, AlignsFigures) {
  Table table({"name", "#count"});
  table.Row({"a", "1"});
  EXPECT_THAT(table.Take(), HasSubstr("<td>a</td><td class=\"figure\">1</td>"));
}

}  // namespace
}  // namespace fastdecode
