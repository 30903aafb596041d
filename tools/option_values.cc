#include "tools/option_values.h"

namespace fastdecode {

std::vector<std::string> SplitAtCommas(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void RefuseEmptyValues(CLI::App& program) {
  for (CLI::Option* option : program.get_options()) {
    if (option->check_lname("prompt") || option->get_items_expected_min() == 0) continue;
    option->check([](const std::string& value) { return std::string(value.empty() ? "the value '' is empty" : ""); });
  }
  for (CLI::App* command : program.get_subcommands([](CLI::App*) { return true; })) RefuseEmptyValues(*command);
}

}  // namespace fastdecode
