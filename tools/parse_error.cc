#include "tools/parse_error.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string_view>

#include "tools/foreign_options.h"
#include "tools/unknown_option.h"

namespace fastdecode {

namespace {

std::vector<const CLI::App*> Children(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::string CommandList(const CLI::App& command) {
  std::string list;
  for (const CLI::App* child : Children(command)) list += (list.empty() ? "" : ", ") + child->get_name();
  return list;
}

std::string UnknownCommand(const CLI::App& command, const std::string& word) {
  const std::string unknown = "unknown command '" + word + "'";
  // Only the first word of all may be another program's command.
  const std::string_view answer = command.get_parent() == nullptr ? ForeignCommandAnswer(word) : "";
  if (!answer.empty()) return unknown + ": " + std::string(answer);
  std::vector<std::string> names;
  for (const CLI::App* child : Children(command)) names.push_back(child->get_name());
  const std::string suggestion = Suggestion(word, names);
  return unknown + (suggestion.empty() ? ", there are " + CommandList(command) : suggestion);
}

bool IsGiven(const CLI::App& command, const char* option) {
  const CLI::Option* const found = command.get_option_no_throw(option);
  return found != nullptr && found->count() > 0;
}

// "; --json takes no value" for the word behind such an option; else nothing.
std::string StrayValue(const CLI::App& command, const std::string& word, const std::vector<std::string>& words) {
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] != word || words[i - 1].size() < 2 || words[i - 1][0] != '-') continue;
    const CLI::Option* const option = command.get_option_no_throw(words[i - 1]);
    if (option != nullptr && option->get_items_expected_max() == 0) return "; " + words[i - 1] + " takes no value";
  }
  return "";
}

// A word that no option takes, and what it may have been meant for.
std::string UnexpectedWord(const CLI::App& command, const std::string& word, const std::vector<std::string>& words) {
  const std::string unexpected = "unexpected argument '" + word + "'";
  for (const char* dash :
       {"\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212"}) {  // as text programs write them
    if (word.starts_with(dash)) return unexpected + "; options begin with the hyphen of the keyboard, -";
  }
  if (const std::string stray = StrayValue(command, word, words); !stray.empty()) return unexpected + stray;
  const bool may_be_model = command.get_option_no_throw("--model") != nullptr && !IsGiven(command, "--model");
  const CLI::Option* const prompt = command.get_option_no_throw("--prompt");
  if (prompt != nullptr && prompt->count() > 0) {
    return unexpected + "; a text with spaces stands in quotes, and each further one behind a --prompt of its own";
  }
  if (may_be_model && (prompt == nullptr || word.find('/') != std::string::npos)) {
    return unexpected + "; a model's folder is given with --model DIR";
  }
  if (prompt != nullptr) return unexpected + "; a text to go on from is given with --prompt TEXT";
  return unexpected;
}

// "5, 7 and 9"
std::string Enumerate(const std::vector<std::string>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == values.size() ? " and " : ", ") + ("'" + values[i] + "'");
  }
  return text;
}

// An option that has more values than it takes; else nothing.
std::string GivenAgain(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& values = option->results();
    const int most = option->get_items_expected_max();
    if (most < 1 || values.size() <= static_cast<size_t>(most)) continue;
    if (most == 1) return option->get_name() + ": it takes one value, and is given " + Enumerate(values);
    return option->get_name() + ": it takes " + std::to_string(most) + " values at most, and is given " +
           std::to_string(values.size());
  }
  return "";
}

// An option at the end of the command line whose value is missing; else nothing.
std::string MissingValue(const CLI::App& command, const std::vector<std::string>& words) {
  if (words.empty() || words.back().size() < 2 || words.back()[0] != '-') return "";
  const CLI::Option* const option = command.get_option_no_throw(words.back().substr(0, words.back().find('=')));
  if (option == nullptr || option->get_items_expected_min() == 0) return "";
  return words.back() + ": its value is missing (" + option->get_type_name() + ")";
}

// An option without a value that is given one which is neither true nor false; else nothing.
std::string BadTruth(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() != 0) continue;
    for (const std::string& value : option->results()) {
      try {
        CLI::detail::to_flag_value(value);
      } catch (const std::invalid_argument&) {
        return option->get_name() + ": '" + value + "' is neither true nor false; it is true by itself";
      }
    }
  }
  return "";
}

}  // namespace

std::string DescribeParseError(const CLI::App& program, const CLI::ParseError& error,
                               const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  std::string path;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += (path.empty() ? "" : " ") + command->get_name();
  }
  const std::string where = path.empty() ? "" : path + ": ";
  std::vector<std::string> left = program.remaining(/*recurse=*/true);
  std::erase(left, "--");  // what was to stand behind it is missing
  if (!left.empty()) {
    const bool has_children = !Children(*command).empty();
    return where +
           (has_children ? UnknownCommand(*command, left.front()) : UnexpectedWord(*command, left.front(), words));
  }
  if (command->get_require_subcommand_min() > 0 && command->get_subcommands().empty()) {
    return where + "a command is needed: " + CommandList(*command);
  }
  const auto is = [&error](CLI::ExitCodes code) { return error.get_exit_code() == static_cast<int>(code); };
  std::string said;
  if (is(CLI::ExitCodes::ConversionError)) said = BadTruth(*command);
  if (is(CLI::ExitCodes::ArgumentMismatch)) {
    said = GivenAgain(*command);
    if (said.empty()) said = MissingValue(*command, words);
  }
  if (!said.empty()) return where + said;
  return where + error.what();
}

}  // namespace fastdecode
