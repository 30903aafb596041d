// Renders templates for programs that judge the result: each line of standard input is a JSON object with template,
// context and now, and each line of standard output one with text and foreign, or with error.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"

namespace fastdecode::jinja {
namespace {

nlohmann::json Answer(const nlohmann::ordered_json& asked) {
  const auto parsed = Template::Parse("template", asked.at("template").get<std::string>());
  if (!parsed.ok()) return {{"error", std::string(parsed.status().message())}};
  const Value context = LoadJson(asked.at("context").dump(), /*foreign=*/true);
  const absl::StatusOr<Text> text = (*parsed)->Render(context.dict(), asked.at("now").get<int64_t>());
  if (!text.ok()) return {{"error", std::string(text.status().message())}};
  nlohmann::json foreign = nlohmann::json::array();
  for (const Text::Span& span : text->foreign()) foreign.push_back({span.begin, span.end});
  return {{"text", text->bytes()}, {"foreign", foreign}};
}

}  // namespace
}  // namespace fastdecode::jinja

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << fastdecode::jinja::Answer(nlohmann::ordered_json::parse(line)).dump() << std::endl;
  }
}
