#include "tools/unknown_option.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string_view>

#include "tools/foreign_options.h"

namespace fastdecode {

namespace {

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

size_t Dashes(std::string_view word) { return std::min(word.find_first_not_of('-'), word.size()); }

bool Has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool BeginsWithLetter(std::string_view text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
}

// How the words of a command line are to be taken, one after the other, as the parser does it.
class WordReader {
 public:
  explicit WordReader(const CLI::App& program) : command_(&program) {}

  void Read(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
      const std::string& word = words[i];
      if (unknown_.empty() && IsUnknownCommand(word)) return;  // which is what has to be said
      if (const CLI::App* child = Child(word)) {
        command_ = child;
        path_ += (path_.empty() ? "" : " ") + word;
      } else if (word.starts_with("--")) {
        i += ReadLong(word);
      } else if (word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) == 0) {
        i += ReadShort(word);
      }
    }
  }

  const CLI::App& command() const { return *command_; }
  // "bench step: ", or nothing.
  std::string where() const { return path_.empty() ? "" : path_ + ": "; }
  // Without a value. Empty: every option is one.
  const std::string& unknown() const { return unknown_; }
  bool asks_for_help() const { return asks_for_help_; }

 private:
  const CLI::App* Child(const std::string& name) const {
    const auto children = command_->get_subcommands([&](const CLI::App* child) { return child->get_name() == name; });
    return children.empty() ? nullptr : children.front();
  }

  bool IsUnknownCommand(const std::string& word) const {
    const bool has_children = !command_->get_subcommands([](const CLI::App*) { return true; }).empty();
    return has_children && !word.starts_with("-") && Child(word) == nullptr;
  }

  void TakeUnknown(const std::string& name) {
    if (unknown_.empty()) unknown_ = name;
  }

  // How many words behind an option are its values, whatever they look like.
  static size_t Values(const CLI::Option& option) {
    return static_cast<size_t>(std::max(0, std::min(option.get_type_size_min(), option.get_items_expected_min())));
  }

  void Note(const CLI::Option& option) {
    asks_for_help_ = asks_for_help_ || option.check_lname("help") || option.check_lname("version");
  }

  // How many words behind this one go with it.
  size_t ReadLong(const std::string& word) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(2, equals - 2);
    for (const CLI::Option* option : command_->get_options()) {
      if (!option->check_lname(name)) continue;
      Note(*option);
      return equals + 1 < word.size() ? 0 : Values(*option);
    }
    TakeUnknown(word.substr(0, equals));
    return 0;
  }

  // One dash, and one letter or several: -n, -n5, -qv, or what other programs call -ngl.
  size_t ReadShort(const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    const bool is_long = name.size() > 3 && Has(OptionNames(*command_), "-" + name);
    if (name.size() > 2 && (is_long || !ForeignOptionAnswer(name).empty())) {
      TakeUnknown(name);
      return 0;
    }
    for (size_t letter = 1; letter < word.size(); ++letter) {
      const CLI::Option* const option = FindShort(word[letter]);
      const std::string_view rest = std::string_view(word).substr(letter + 1);
      if (option == nullptr || (IsNumber(*option) && BeginsWithLetter(rest))) {
        TakeUnknown(name);
        return 0;
      }
      Note(*option);
      const size_t values = Values(*option);
      if (values > 0) return rest.empty() ? values : 0;
    }
    return 0;
  }

  const CLI::Option* FindShort(char letter) const {
    for (const CLI::Option* option : command_->get_options()) {
      if (option->check_sname(std::string(1, letter))) return option;
    }
    return nullptr;
  }

  // Whether no value of it begins with a letter.
  static bool IsNumber(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    return type == "N" || type.starts_with("N:") || type.starts_with("TOKENS");
  }

  const CLI::App* command_;
  std::string path_;
  std::string unknown_;
  bool asks_for_help_ = false;
};

void CollectCommandsWith(const CLI::App& command, const std::string& path, const std::string& option,
                         std::vector<std::string>* paths) {
  if (!path.empty() && Has(OptionNames(command), option)) paths->push_back(path);
  for (const CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
    CollectCommandsWith(*child, path + (path.empty() ? "" : " ") + child->get_name(), option, paths);
  }
}

// ": it is an option of generate, chat and others", or nothing.
std::string OtherCommands(const CLI::App& program, const std::string& option) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> paths;
  CollectCommandsWith(program, "", option, &paths);
  if (paths.empty()) return "";
  if (paths.size() > kNamed) paths = {paths[0], paths[1], "others"};
  std::string text = ": it is an option of " + paths[0];
  for (size_t i = 1; i < paths.size(); ++i) text += (i + 1 == paths.size() ? " and " : ", ") + paths[i];
  return text;
}

// How the options of requests are called, which `serve` gets over HTTP.
bool IsOfRequests(const CLI::App& program, const std::string& option) {
  const CLI::Option* const found = program.get_subcommand("generate")->get_option_no_throw(option);
  return found != nullptr && (found->get_group() == "Sampling" || found->get_group() == "Prompts");
}

// The same word in the way options are written here: --max_tokens, -max-tokens, --Max-Tokens. One letter is what it is.
std::string WrittenOurWay(std::string word) {
  if (word.size() < 3) return word;
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return c == '_' ? '-' : std::tolower(c); });
  return Dashes(word) == 1 ? "-" + word : word;
}

}  // namespace

std::string Suggestion(const std::string& given, const std::vector<std::string>& known) {
  const size_t letters = given.size() - Dashes(given);
  if (letters < 2) return "";  // near to every other letter
  std::string best;
  size_t best_distance = (letters < 4 ? 1 : std::max<size_t>(2, given.size() / 4)) + 1;
  for (const std::string& word : known) {
    if (Dashes(word) != Dashes(given)) continue;
    const bool begins = letters > 2 && word.starts_with(given);
    const size_t distance = begins ? 1 : EditDistance(given, word);
    if (distance >= best_distance || distance >= letters) continue;
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

std::string DescribeUnknownOption(const CLI::App& program, const std::vector<std::string>& words) {
  WordReader reader(program);
  reader.Read(words);
  const std::string& name = reader.unknown();
  if (name.empty() || reader.asks_for_help()) return "";
  const std::vector<std::string> known = OptionNames(reader.command());
  if (Has(known, name)) return reader.where() + name + " has to stand behind '" + reader.command().get_name() + "'";
  const std::string unknown = reader.where() + "unknown option " + name;
  const std::string ours = WrittenOurWay(name);
  if (Has(known, ours)) return unknown + ", did you mean " + ours + "?";
  const std::string_view answer = ForeignOptionAnswer(name);
  if (!answer.empty()) {
    // The beginning of a name is meant as that, unless the answer is about it as well.
    const auto begun = std::find_if(known.begin(), known.end(), [&](const std::string& word) {
      return word.starts_with(ours + "-") && answer.find(word) == std::string_view::npos;
    });
    return begun == known.end() ? unknown + ": " + std::string(answer) : unknown + ", did you mean " + *begun + "?";
  }
  if (reader.command().get_name() == "serve" && IsOfRequests(program, ours)) {
    return unknown + ": each request says it, or else the model's generation_config.json (docs/SERVING.md)";
  }
  if (Has(OptionNames(program), ours)) return unknown + ": it goes without a command: fastdecode " + ours;
  const std::string elsewhere = OtherCommands(program, ours);
  return unknown + (elsewhere.empty() ? Suggestion(ours, known) : elsewhere);
}

}  // namespace fastdecode
