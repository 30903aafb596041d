// What jinja2, set up as transformers does, makes of small templates: see make_goldens.py.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"

namespace fastdecode::jinja {
namespace {

nlohmann::ordered_json ReadGoldens() {
  std::ifstream file(FASTDECODE_TESTS_DIR "/engine/text/jinja/golden.json");
  return nlohmann::ordered_json::parse(file);
}

absl::StatusOr<Text> Render(const nlohmann::ordered_json& golden) {
  const auto parsed = Template::Parse("t", golden.at("template").get<std::string>());
  if (!parsed.ok()) return parsed.status();
  const Value context = LoadJson(golden.at("context").dump(), /*foreign=*/true);
  return (*parsed)->Render(context.dict(), golden.at("now").get<int64_t>());
}

TEST(JinjaGolden, TextsAndErrorsAreThoseOfJinja2) {
  setenv("TZ", "UTC", 1);
  tzset();
  const nlohmann::ordered_json goldens = ReadGoldens();
  ASSERT_GT(goldens.size(), 1500u);
  for (const auto& golden : goldens) {
    SCOPED_TRACE(golden.at("name").get<std::string>() + ": " + golden.at("template").get<std::string>());
    const absl::StatusOr<Text> text = Render(golden);
    if (golden.contains("text")) {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(text->bytes(), golden.at("text").get<std::string>());
    } else {
      EXPECT_FALSE(text.ok()) << text->bytes() << "\nwhere jinja2 says " << golden.at("error");
    }
  }
}

// A template that cannot be compiled is refused when it is parsed, at the line that jinja2 names.
TEST(JinjaGolden, SyntaxErrorsNameTheLine) {
  size_t seen = 0;
  for (const auto& golden : ReadGoldens()) {
    if (!golden.contains("line")) continue;
    SCOPED_TRACE(golden.at("name").get<std::string>() + ": " + golden.at("template").get<std::string>());
    const auto parsed = Template::Parse("t", golden.at("template").get<std::string>());
    if (parsed.ok()) {
      ADD_FAILURE() << "it is parsed; jinja2 says " << golden.at("error");
      continue;
    }
    const std::string begin = "t:" + std::to_string(golden.at("line").get<int>()) + ":";
    EXPECT_EQ(std::string(parsed.status().message()).substr(0, begin.size()), begin) << parsed.status();
    ++seen;
  }
  EXPECT_GT(seen, 50u);
}

}  // namespace
}  // namespace fastdecode::jinja
