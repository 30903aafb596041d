#include "engine/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

StopMatcher MakeMatcher(const std::vector<std::string>& stops, bool include_stop = false) {
  auto matcher = StopMatcher::Create(stops, include_stop);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher = MakeMatcher({"END", "stop here"});
  EXPECT_EQ(matcher.Feed("the s"), "the ");
  EXPECT_EQ(matcher.Feed("t"), "");
  EXPECT_EQ(matcher.Feed("ep E"), "step ");
  EXPECT_EQ(matcher.Feed("N"), "");
  EXPECT_FALSE(matcher.match().has_value());
  EXPECT_EQ(matcher.Feed("D and more"), "");
  ASSERT_TRUE(matcher.match().has_value());
  EXPECT_EQ(matcher.match()->stop_index, 0u);
  EXPECT_EQ(matcher.match()->begin_bytes, 9u);
  EXPECT_EQ(matcher.match()->end_bytes, 12u);
  EXPECT_EQ(matcher.Feed("ignored"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, IncludesTheStopIfAsked) {
  StopMatcher matcher = MakeMatcher({"\n\n"}, true);
  EXPECT_EQ(matcher.Feed("a\n"), "a");
  EXPECT_EQ(matcher.Feed("\nb"), "\n\n");
  EXPECT_TRUE(matcher.match().has_value());
}

TEST(StopMatcher, FinishGivesWhatWasHeldBack) {
  StopMatcher matcher = MakeMatcher({"abcd"});
  EXPECT_EQ(matcher.Feed("xabc"), "x");
  EXPECT_EQ(matcher.Finish(), "abc");
  EXPECT_FALSE(matcher.match().has_value());
}

TEST(StopMatcher, WithoutStopsPassesAll) {
  StopMatcher matcher = MakeMatcher({});
  EXPECT_EQ(matcher.Feed("anything"), "anything");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, TakesTheStopThatEndsFirstAndThenTheLongest) {
  StopMatcher inner = MakeMatcher({"xabcx", "bc"});
  EXPECT_EQ(inner.Feed("_xabcx"), "_xa");
  EXPECT_EQ(inner.match()->stop_index, 1u);
  StopMatcher longest = MakeMatcher({"c", "bc", "abc"});
  EXPECT_EQ(longest.Feed("_abc"), "_");
  EXPECT_EQ(longest.match()->stop_index, 2u);
}

TEST(StopMatcher, RefusesBadStops) {
  EXPECT_FALSE(StopMatcher::Create({"ok", ""}, false).ok());
  EXPECT_FALSE(StopMatcher::Create({"\xE2\x82"}, false).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(StopMatcher::kStopBytesMax + 1, 'a')}, false).ok());
  EXPECT_TRUE(StopMatcher::Create({std::string(StopMatcher::kStopBytesMax, 'a')}, false).ok());
}

// The first end of any stop in the whole text, and there the longest.
std::optional<StopMatch> FindNaively(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<StopMatch> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      const size_t begin = end - stops[i].size();
      if (!best.has_value() || begin < best->begin_bytes) best = StopMatch{i, begin, end};
    }
    if (best.has_value()) return best;
  }
  return std::nullopt;
}

TEST(StopMatcher, DoesNotDependOnWhereThePiecesAreCut) {
  std::mt19937 rng(3);
  const std::vector<std::string> letters = {"a", "b", "é", "😀"};
  const auto random_text = [&](size_t length_max) {
    std::string text;
    for (size_t i = 1 + rng() % length_max; i > 0; --i) text += letters[rng() % letters.size()];
    return text;
  };
  int matched = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = rng() % 4; i > 0; --i) stops.push_back(random_text(5));
    const std::string text = random_text(30);
    const bool include_stop = rng() % 2 == 0;
    const std::optional<StopMatch> expected = FindNaively(stops, text);
    StopMatcher matcher = MakeMatcher(stops, include_stop);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      for (size_t characters = rng() % 6; characters > 0 && end < text.size(); --characters) {
        end += NextUtf8(std::string_view(text).substr(end)).bytes;
      }
      const std::string piece = matcher.Feed(std::string_view(text).substr(at, end - at));
      EXPECT_TRUE(IsValidUtf8(piece));
      out += piece;
      at = end;
    }
    out += matcher.Finish();
    ASSERT_EQ(matcher.match().has_value(), expected.has_value()) << text;
    if (!expected.has_value()) {
      EXPECT_EQ(out, text);
      continue;
    }
    ++matched;
    EXPECT_EQ(matcher.match()->begin_bytes, expected->begin_bytes);
    EXPECT_EQ(matcher.match()->end_bytes, expected->end_bytes);
    EXPECT_EQ(stops[matcher.match()->stop_index], stops[expected->stop_index]);
    EXPECT_EQ(out, text.substr(0, include_stop ? expected->end_bytes : expected->begin_bytes));
  }
  EXPECT_GT(matched, 500);
}

}  // namespace
}  // namespace fastdecode
