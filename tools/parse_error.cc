#include "tools/parse_error.h"

#include <algorithm>
#include <vector>

namespace fastdecode {

namespace {

std::vector<const CLI::App*> Children(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

// Insertions, deletions and replacements that turn one word into the other.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// "; did you mean --model?", or nothing if no word is near.
std::string Suggestion(const std::string& given, const std::vector<std::string>& known) {
  if (given.size() < 3) return "";  // near to every other letter
  std::string best;
  size_t best_distance = std::max<size_t>(2, given.size() / 4) + 1;
  for (const std::string& word : known) {
    const bool begins = given.size() > 2 && word.compare(0, given.size(), given) == 0;
    const size_t distance = begins ? 1 : EditDistance(given, word);
    if (distance >= best_distance || distance >= given.size()) continue;
    best = word;
    best_distance = distance;
  }
  return best.empty() ? "" : ", did you mean " + best + "?";
}

std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string CommandList(const CLI::App& command) {
  std::string list;
  for (const CLI::App* child : Children(command)) list += (list.empty() ? "" : ", ") + child->get_name();
  return list;
}

}  // namespace

std::string DescribeParseError(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* command = &program;
  std::string path;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += (path.empty() ? "" : " ") + command->get_name();
  }
  const std::string where = path.empty() ? "" : path + ": ";
  std::vector<std::string> unknown = program.remaining(/*recurse=*/true);
  std::erase(unknown, "--");  // what was to stand behind it is missing
  if (!unknown.empty()) {
    const std::string name = unknown.front().substr(0, unknown.front().find('='));
    if (name.size() > 1 && name[0] == '-') {
      const std::vector<std::string> known = OptionNames(*command);
      if (std::find(known.begin(), known.end(), name) != known.end()) {
        return where + name + " has to stand behind '" + command->get_name() + "'";
      }
      return where + "unknown option " + name + Suggestion(name, known);
    }
    std::vector<std::string> names;
    for (const CLI::App* child : Children(*command)) names.push_back(child->get_name());
    if (names.empty()) return where + "unexpected argument '" + unknown.front() + "'";
    const std::string suggestion = Suggestion(unknown.front(), names);
    return where + "unknown command '" + unknown.front() + "'" +
           (suggestion.empty() ? ", there are " + CommandList(*command) : suggestion);
  }
  if (command->get_require_subcommand_min() > 0 && command->get_subcommands().empty()) {
    return where + "a command is needed: " + CommandList(*command);
  }
  return where + error.what();
}

}  // namespace fastdecode
