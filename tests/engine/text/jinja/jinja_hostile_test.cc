// Templates and variables that are made to crash, or to take what no limit counts.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"

namespace fastdecode::jinja {
namespace {

constexpr uint64_t kLongNs = 600'000'000'000;
constexpr Limits kWide = {
    .steps = 1ull << 40, .bytes = 1ull << 40, .output_bytes = 1ull << 30, .depth = 1000, .cpu_ns = kLongNs};

absl::StatusOr<Text> RenderWith(const std::string& source, const Dict& variables, const Limits& limits = kWide) {
  const auto parsed = Template::Parse("t", source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(variables, 0, limits);
}

// What it prints, or what is wrong.
std::string Rendered(const std::string& source, const Dict& variables = Dict(), const Limits& limits = kWide) {
  const absl::StatusOr<Text> text = RenderWith(source, variables, limits);
  return text.ok() ? text->bytes() : std::string(text.status().message());
}

std::string TimesOver(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

Dict With(const std::string& name, Value value) {
  Dict dict;
  dict.Set(Value::String(name), std::move(value));
  return dict;
}

TEST(JinjaHostile, DeepTreesAreNoTemplates) {
  const auto code = [](const std::string& source) { return RenderWith(source, Dict()).status().code(); };
  for (const char* const tag : {"{% for ", "{% set ", "{% with "}) {
    const std::string names = TimesOver("(", 300'000) + "x" + TimesOver(")", 300'000);
    const std::string end = std::string(tag) == "{% for " ? " in [1] %}{% endfor %}" : " = 1 %}";
    EXPECT_EQ(code(tag + names + end), absl::StatusCode::kInvalidArgument) << tag;
  }
  // Long chains in parentheses in long chains.
  for (const auto& [begin, link] : {std::pair<const char*, const char*>{"(", " + 1"},
                                    {"(", "|trim"},
                                    {"(", ".a"},
                                    {"(", " or 1"},
                                    {"(", " * 1"},
                                    {"(", "()"},
                                    {"f(", "|trim"}}) {
    std::string source = "x";
    for (int i = 0; i < 50; ++i) source = begin + source + TimesOver(link, 900) + ")";
    EXPECT_NE(Rendered("{{ " + source + " }}").find("parts that need one another"), std::string::npos) << begin << link;
  }
  EXPECT_EQ(Rendered("{{ 1" + TimesOver(" + 1", 900) + " }}"), "901");
  EXPECT_EQ(Rendered("{% for ((x)), (((y))) in [(1, 2)] %}{{ x }}{{ y }}{% endfor %}"), "12");
}

// What holds values is destroyed with them, one in the other.
TEST(JinjaHostile, DeepValuesAreRefused) {
  for (const char* const grown :
       {"[ns.v]|reverse", "[ns.v]|batch(1)", "[ns.v].count", "{1: ns.v}.values()", "cycler(ns.v)", "cycler(ns.v).next",
        "joiner(ns.v)", "[(1, ns.v)]|groupby(0)|first", "[ns.v]|select('defined')", "(ns.v,)", "{1: ns.v}"}) {
    const std::string source = std::string("{% set ns = namespace(v=1) %}{% for i in range(90000) %}{% set ns.v = ") +
                               grown + " %}{% endfor %}";
    EXPECT_EQ(RenderWith(source, Dict()).status().code(), absl::StatusCode::kResourceExhausted) << grown;
  }
  // These give up what they hold before they are destroyed.
  EXPECT_EQ(Rendered("{% set ns = namespace(v=1) %}{% for i in range(90000) %}{% set ns.v = namespace(v=[ns.v]) %}"
                     "{% endfor %}x"),
            "x");
  EXPECT_EQ(Rendered("{% set ns = namespace(v=1) %}{% for i in range(90000) %}{% for j in [ns.v] %}"
                     "{% set ns.v = [loop] %}{% endfor %}{% endfor %}x"),
            "x");
}

TEST(JinjaHostile, FiltersThatCallThemselvesEnd) {
  for (const int count : {1000, 5000, 100'000}) {
    const std::string source = "{{ 'a'|map('map'" + TimesOver(", 'map'", count) + ")|list }}";
    EXPECT_EQ(RenderWith(source, Dict(), {.cpu_ns = kLongNs}).status().code(), absl::StatusCode::kResourceExhausted)
        << count;
  }
}

TEST(JinjaHostile, IntegersStayInTheirBits) {
  const std::string too_wide = "needs more than 128 bits";
  const std::string max = "(2 ** 126 - 1 + 2 ** 126)", min = "(-(2 ** 126) * 2)";
  const std::pair<std::string, std::string> cases[] = {
      {"[1, 2, 3][1::" + max + "]", "[2]"},
      {"'abc'[1::" + max + "]", "b"},
      {"[1, 2, 3][1::" + min + "]", "[2]"},
      {"[1, 2, 3][" + min + ":" + max + "]", "[1, 2, 3]"},
      {"'{}'.format(" + min + ")", "-170141183460469231731687303715884105728"},
      {"'{:x}'.format(" + min + ")", "-80000000000000000000000000000000"},
      {"'%d' % " + min, "-170141183460469231731687303715884105728"},
      {"range(5, 3, " + min + ")|list", "[5]"},
      {"range(" + min + ", " + min + " + 2)|length", "2"},
      {"range(" + max + ", " + min + ")|length", "0"},
      {"'abcdefgh'|truncate(" + max + ", leeway=" + max + ")", "abcdefgh"},
      {"''.ljust(0, 'x') ~ 'x'.ljust(" + min + ")", "x"},
      {"8|round(-40)", "0"},
      {min + " % 3", "1"},
      {min + " // 3", "-56713727820156410577229101238628035243"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(Rendered("{{ " + source + " }}"), expected) << source;
  for (const std::string source :
       {"'%d' % 1e300", "'%d' % -1e39", "1e39|int", "-2 * 2 ** 126 * -1", "(2 ** 126 - 1 + 2 ** 126)|round(-1)",
        "(-(2 ** 126) * 2)|round(-38)", "-(-(2 ** 126) * 2)", "(-(2 ** 126) * 2)|abs"}) {
    EXPECT_NE(Rendered("{{ " + std::string(source) + " }}").find(too_wide), std::string::npos) << source;
  }
  EXPECT_NE(Rendered("{{ range(" + min + ", " + max + ") }}").find("Range too big"), std::string::npos);
  EXPECT_NE(Rendered("{{ '%d' % 1e400 }}").find("cannot convert float inf"), std::string::npos);

  const auto load = [](const std::string& json) {
    try {
      return Rendered("{{ x }}", With("x", LoadJson(json, true)));
    } catch (const Failure& failure) {
      return failure.message;
    }
  };
  EXPECT_EQ(load("170141183460469231731687303715884105727"), "170141183460469231731687303715884105727");
  EXPECT_EQ(load("-170141183460469231731687303715884105728"), "-170141183460469231731687303715884105728");
  EXPECT_NE(load("170141183460469231731687303715884105728").find(too_wide), std::string::npos);
  EXPECT_NE(load("-170141183460469231731687303715884105729").find(too_wide), std::string::npos);
}

// Two texts of 16 bytes with one hash under libstdc++'s std::hash, which is Murmur with a fixed seed: a request could
// bring thousands of such names.
std::pair<std::string, std::string> CollidingTexts() {
  constexpr uint64_t kFactor = 0xc6a4a7935bd1e995;
  uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto block = [&](uint64_t mixed) {
    const uint64_t shifted = mixed * inverse;
    const uint64_t word = (shifted ^ (shifted >> 47)) * inverse;
    std::string bytes(sizeof(word), 0);
    std::memcpy(bytes.data(), &word, sizeof(word));
    return bytes;
  };
  constexpr uint64_t kTop = 1ull << 63;
  return {block(1) + block(2), block(1 ^ kTop) + block(2 ^ kTop)};
}

TEST(JinjaHostile, NamesThatCollideElsewhereDoNotCollideInADict) {
  const auto [a, b] = CollidingTexts();
  ASSERT_NE(a, b);
  ASSERT_EQ(std::hash<std::string>()(a), std::hash<std::string>()(b));
  const decltype(Dict::index)::hasher hash = {};
  EXPECT_NE(hash(a), hash(b));
}

TEST(JinjaHostile, ReadingJsonCounts) {
  const auto kind = [](const std::string& json, uint64_t bytes) {
    Budget budget({.steps = 1 << 30, .bytes = bytes, .cpu_ns = kLongNs});
    const Spending spending(&budget);
    try {
      LoadJson(json, true);
      return std::string("read");
    } catch (const Failure& failure) {
      return failure.message;
    }
  };
  const int count = 100'000;
  for (const char* const item : {"[]", "{}", "\"\"", "1", "null"}) {
    const std::string list = "[" + std::string(item) + TimesOver("," + std::string(item), count) + "]";
    EXPECT_EQ(kind(list, 4 << 20), "rendering takes more than 4 MiB of memory") << item;
    EXPECT_EQ(kind(list, 64 << 20), "read") << item;
  }
  std::string names = "{\"\":1";
  for (int i = 0; i < count; ++i) names += ",\"" + std::to_string(i) + "\":1";
  EXPECT_EQ(kind(names + "}", 16 << 20), "rendering takes more than 16 MiB of memory");
  EXPECT_EQ(kind("\"" + std::string(2 << 20, 'x') + "\"", 1 << 20), "rendering takes more than 1 MiB of memory");
}

// One result fits, and several do not.
TEST(JinjaHostile, LargeResultsCount) {
  const size_t size = 1'000'000;
  const Dict variables = With("s", Value::String(std::string(size, 'x')));
  const Limits limits = {.steps = 1 << 30, .bytes = 8 << 20, .cpu_ns = kLongNs};
  for (const char* const made : {"'x'.zfill(1000000)",
                                 "'x'.ljust(1000000)",
                                 "'x'.center(1000000)",
                                 "s.removeprefix('y')",
                                 "s.removesuffix('y')",
                                 "s|safe",
                                 "s|e",
                                 "s|forceescape",
                                 "s|truncate(900000, true)",
                                 "s|truncate(900000)",
                                 "s|urlencode",
                                 "s|indent",
                                 "s|title",
                                 "s|upper",
                                 "s.capitalize()",
                                 "s.casefold()",
                                 "s.strip('y')",
                                 "s|replace('y', 'z')",
                                 "s.replace('x', 'z', 1)",
                                 "s ~ ''",
                                 "s + ''",
                                 "s * 1",
                                 "s[1:]",
                                 "s[:-1:1]",
                                 "[s]|join",
                                 "''.join([s])",
                                 "'%s' % s",
                                 "'{}'.format(s)",
                                 "s.format()",
                                 "s % ()",
                                 "[1, 2]|tojson(separators=[s, s])",
                                 "s|tojson",
                                 "[[]]|tojson(indent=s)",
                                 "[s]|string",
                                 "{s: 1}",
                                 "namespace(a=s)|string",
                                 "s.split('y')|first",
                                 "s.splitlines()|first",
                                 "dict(**{s: 1})|string"}) {
    const std::string once = std::string("{% set r = (") + made + ") %}", often = TimesOver(once, 20);
    EXPECT_EQ(Rendered(once, variables, limits), "") << made;
    EXPECT_NE(Rendered(often, variables, limits).find("rendering takes more than 8 MiB of memory"), std::string::npos)
        << made;
  }
}

TEST(JinjaHostile, SmallValuesCountForWhatTheyTake) {
  const Dict variables = With("s", Value::String(TimesOver("a,", 10'000)));
  const Limits limits = {.steps = 1 << 30, .bytes = 1 << 20, .cpu_ns = kLongNs};
  for (const char* const made : {"s.split(',')", "s.rsplit(',')", "s.replace(',', ' ').split()", "s|list",
                                 "s.replace(',', '\n').splitlines()", "range(10000)|map('string')|list"}) {
    EXPECT_NE(Rendered(std::string("{% set r = ") + made + " %}", variables, limits).find("1 MiB of memory"),
              std::string::npos)
        << made;
  }
}

// What is only read is not copied.
TEST(JinjaHostile, PartsOfLargeListsAreCheap) {
  std::vector<Value> items(100'000, Value::Int(1));
  items.push_back(Value::Int(2));
  const Dict variables = With("l", Value::List(std::move(items)));
  const Limits limits = {.steps = 1 << 30, .bytes = 1 << 20, .cpu_ns = kLongNs};
  for (const auto& [source, expected] : {std::pair<const char*, const char*>{"l[100000:]", "[2]"},
                                         {"l[-1:]", "[2]"},
                                         {"l[::100000]", "[1, 2]"},
                                         {"2 in l", "True"},
                                         {"3 in l", "False"},
                                         {"l|first", "1"},
                                         {"l|last", "2"},
                                         {"l|sum", "100002"},
                                         {"l|max", "2"}}) {
    EXPECT_EQ(Rendered(std::string("{{ ") + source + " }}", variables, limits), expected) << source;
  }
  EXPECT_EQ(Rendered("{% for i in l %}{% if loop.last %}{{ loop.index }}{% endif %}{% endfor %}", variables,
                     {.steps = 1 << 30, .bytes = 16 << 20, .cpu_ns = kLongNs}),
            "100001");
}

// Each would take hours if its time grew with the product of the sizes.
TEST(JinjaHostile, SearchesTakeTimeForTheSumOfTheSizes) {
  Dict variables;
  const std::string many(4'000'000, 'a');
  variables.Set(Value::String("text"), Value::String(many));
  variables.Set(Value::String("after"), Value::String(many.substr(0, many.size() / 2) + "b"));
  variables.Set(Value::String("before"), Value::String("b" + many.substr(0, many.size() / 2)));
  variables.Set(Value::String("dots"), Value::String(std::string(1'000'000, '.')));
  Dict names;
  for (int i = 0; i < 200'000; ++i) names.Set(Value::String("k" + std::to_string(i)), Value::Int(i));
  variables.Set(Value::String("names"), Value::OfDict(std::move(names)));
  const std::pair<const char*, const char*> cases[] = {
      {"after in text", "False"},
      {"before in text", "False"},
      {"text.find(after)", "-1"},
      {"text.rfind(before)", "-1"},
      {"text.rfind(after)", "-1"},
      {"text.count(after)", "0"},
      {"(text|replace(after, ''))|length", "4000000"},
      {"text.split(after)|length", "1"},
      {"text.rsplit(before)|length", "1"},
      {"text.rpartition(before)|length", "3"},
      {"[]|sort(attribute=dots)", "[]"},
      {"dict(**names)|length", "200000"},
      {"('{k199999}' * 100000).format(**names)|length", "600000"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_EQ(Rendered(std::string("{{ ") + source + " }}", variables), expected) << source;
  }
}

TEST(JinjaHostile, TextsAreFoundWhereTheyAre) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    const auto make = [&](size_t most) {
      std::string text(random() % (most + 1), 0);
      for (char& c : text) c = static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::string text = make(40), sought = make(6);
    const size_t begin = random() % (text.size() + 1);
    ASSERT_EQ(FindFirst(text, sought, begin), std::string_view(text).find(sought, begin)) << text << " " << sought;
    ASSERT_EQ(FindLast(text, sought), std::string_view(text).rfind(sought)) << text << " " << sought;
  }
}

TEST(JinjaHostile, LimitsGrowWithTheInput) {
  const Limits limits = LimitsFor(0);
  EXPECT_EQ(limits.cpu_ns, 500'000'000u);
  EXPECT_EQ(limits.steps, 20'000'000u);
  const Limits of_a_mib = LimitsFor(1 << 20);
  EXPECT_GT(of_a_mib.cpu_ns, 4'000'000'000u);
  EXPECT_GT(of_a_mib.steps, 8 * limits.steps);
  EXPECT_EQ(of_a_mib.bytes, limits.bytes);
  EXPECT_EQ(LimitsFor(SIZE_MAX).cpu_ns, 5'000'000'000u);
}

}  // namespace
}  // namespace fastdecode::jinja
