#include "engine/text/split_regex.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(SplitRegex, TranslatesWhatPcre2ReadsOtherwise) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\s+(?!\S)|\s+)", R"(\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)"},
      {R"([^\s\p{L}])", R"([^\p{White_Space}\p{L}])"},
      {R"(\w\W[\w])",
       R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}][^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2})"
       R"(\x{B3}\x{B9}\x{BC}-\x{BE}][\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])"},
      {R"(\v)", R"(\x0B)"},
      {R"(\p{Han}\P{Han}\p{^Han}\P{^Han})", R"(\p{sc:Han}\P{sc:Han}\P{sc:Han}\p{sc:Han})"},
      {R"(\p{L}\p{^Lu})", R"(\p{L}\P{Lu})"},
      {R"(\u00e9\x{1F600}\x41)", R"(\x{E9}\x{1F600}\x{41})"},
      {R"(a{2}b{2,}c{2,3}[{]\{)", R"(a{2}b{2,}c{2,3}[{]\{)"},
      {R"((?i:'s|'t)\-\\\[)", R"((?i:'s|'t)\-\\\[)"},
      // What is possessive or lazy in PCRE2 is not in Ruby's syntax.
      {R"(\d{1,3}+)", R"((?:\d{1,3})+)"},
      {R"(xa{2}?)", R"(x(?:a{2})?)"},
      {R"(xa{2,3}?)", R"(xa{2,3}?)"},
      {R"(é{,3})", R"(é{0,3})"},
      {R"((a|[^b]){2}+[\d]{,2}+)", R"((?:(a|[^b]){2})+(?:[\d]{0,2})+)"},
      {R"(\p{N}?+[ab]++)", R"(\p{N}?+[ab]++)"},
      // PCRE2 has neither intersections nor negated classes in classes.
      {R"([a-z&&[^b]])", R"((?:(?=[^b])(?:[a-z])))"},
      {R"([^a-z&&[^b]])", R"((?:(?!(?=[^b])(?:[a-z]))(?s:.)))"},
      {R"([a[^b]])", R"((?:(?:[a]|[^b])))"},
  };
  for (const auto& [from, to] : cases) {
    const auto translated = TranslateOnigurumaPattern(from);
    ASSERT_TRUE(translated.ok()) << from << ": " << translated.status();
    EXPECT_EQ(*translated, to) << from;
    EXPECT_TRUE(SplitRegex::Compile(from).ok()) << SplitRegex::Compile(from).status();
  }
}

TEST(SplitRegex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {R"([\b])",    R"(\h)",         R"(\K)",          R"(\R)",        R"(\X)",
                              R"((a)\1)",   R"([a&&])",      R"([[:alpha:]])", R"([\W])",      R"(a{,})",
                              R"(a{)",      R"((?<name>a))", R"((?m:a))",      R"(a(?i)b)",    R"((*UTF)a)",
                              R"(\xE9)",    R"([]a])",       R"((?#c))",       R"([\z])",      R"([a&&[[:alpha:]]])",
                              R"([a&&^b])", R"({2}+)",       R"([&&a])",       R"([a[^b]&&])", R"([^[:alpha:]&&b])"}) {
    EXPECT_EQ(SplitRegex::Compile(pattern).status().code(), absl::StatusCode::kUnimplemented)
        << pattern << ": " << SplitRegex::Compile(pattern).status();
  }
}

// Oniguruma takes some of these.
TEST(SplitRegex, RefusesWhatPcre2DoesNotTake) {
  for (const char* pattern : {"(", "a)", "[a", "a**", R"(\p)", R"(\pL)", R"(\p{L)", R"(\p{NoSuchScript})", R"(\x{)",
                              R"(\x1)", R"(\u12)", R"(\x{110000})", "(?<=a+)b"}) {
    EXPECT_EQ(SplitRegex::Compile(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
}

TEST(SplitRegex, NamesWhatIsWrong) {
  EXPECT_EQ(SplitRegex::Compile("\\").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SplitRegex::Compile(std::string(70'000, 'a')).ok());
  EXPECT_FALSE(SplitRegex::CompileLiteral("").ok());
}

TEST(SplitRegex, PartitionsTheWholeText) {
  const auto regex = SplitRegex::Compile(R"(\d*)");
  ASSERT_TRUE(regex.ok()) << regex.status();
  for (const std::string text : {"", "1", "é1", "12é3", "éé"}) {
    std::vector<RegexSpan> spans;
    regex->Partition(text, &spans);
    size_t covered = 0;
    for (const RegexSpan& span : spans) {
      EXPECT_EQ(span.begin, covered);
      covered = span.end;
    }
    EXPECT_EQ(covered, text.size());
  }
}

TEST(SplitRegex, GroupsThatCaptureSplitAsOthers) {
  const auto capturing = SplitRegex::Compile(R"((\p{L})+|(\d)(\d)?)");
  const auto plain = SplitRegex::Compile(R"((?:\p{L})+|(?:\d)(?:\d)?)");
  ASSERT_TRUE(capturing.ok() && plain.ok()) << capturing.status() << plain.status();
  std::vector<RegexSpan> spans, expected;
  capturing->Partition("one 234é", &spans);
  plain->Partition("one 234é", &expected);
  ASSERT_EQ(spans.size(), 5u);
  ASSERT_EQ(expected.size(), spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].begin, expected[i].begin) << i;
    EXPECT_EQ(spans[i].end, expected[i].end) << i;
    EXPECT_EQ(spans[i].matched, expected[i].matched) << i;
  }
}

// Deep backtracking leaves the JIT's stack, then meets the match limit: slow patterns end, with the text in one span.
TEST(SplitRegex, BoundsBacktracking) {
  const auto regex = SplitRegex::Compile("(?:a|aa)+x");
  ASSERT_TRUE(regex.ok()) << regex.status();
  std::vector<RegexSpan> spans;
  const std::string text(200, 'a');
  regex->Partition(text, &spans);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].end, text.size());
  EXPECT_FALSE(spans[0].matched);

  const auto deep = SplitRegex::Compile("(?:a|b)+");
  ASSERT_TRUE(deep.ok()) << deep.status();
  const std::string long_text(300'000, 'a');
  deep->Partition(long_text, &spans);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_TRUE(spans[0].matched);
  EXPECT_EQ(spans[0].end, long_text.size());
}

TEST(SplitRegex, MongolianVowelSeparatorIsNoSpace) {
  const auto regex = SplitRegex::Compile("\\s");
  ASSERT_TRUE(regex.ok()) << regex.status();
  std::vector<RegexSpan> spans;
  regex->Partition("\u180e", &spans);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_FALSE(spans[0].matched);
}

}  // namespace
}  // namespace fastdecode
