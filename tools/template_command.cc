// fastdecode template: what a chat template makes of variables, for people who write templates.
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>

#include "tools/commands.h"
#include "tools/option_values.h"
#include "tools/output.h"
#include "tools/read_file.h"

namespace fastdecode {

namespace {

struct TemplateFlags {
  std::string file;
  std::string context;  // empty: there are no variables
  std::string now;      // empty: the clock's
};

// Seconds since 1970 of "2026-01-15T12:34:56", in the time zone of this process. False: it is no such time.
bool ReadLocalTime(const std::string& text, int64_t* seconds) {
  std::tm read = {};
  const char* const end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &read);
  if (end == nullptr || *end != '\0') return false;
  std::tm made = read;
  made.tm_isdst = -1;
  *seconds = std::mktime(&made);
  // A 30th of February becomes another day.
  return *seconds >= 0 && made.tm_mday == read.tm_mday && made.tm_mon == read.tm_mon;
}

// -1, which is the clock's, for no text.
int64_t ReadNow(const std::string& text) {
  int64_t seconds = -1;
  if (text.empty() || (ParseNumber(text, &seconds) && seconds >= 0) || ReadLocalTime(text, &seconds)) return seconds;
  throw Error(FD_INVALID_ARGUMENT,
              "--now: '" + text + "' is neither seconds since 1970 nor a local time such as 2026-01-15T12:34:56");
}

// What is wrong with the context, by the name of its file.
std::string WithContextName(const std::string& message, const std::string& file) {
  constexpr std::string_view kBegin = "context: ";
  return message.starts_with(kBegin) ? "--context: " + file + ": " + message.substr(kBegin.size()) : message;
}

void Render(const TemplateFlags& flags) {
  if (flags.file == "-" && flags.context == "-") {
    throw Error(FD_INVALID_ARGUMENT, "--context: '-': standard input is the template already");
  }
  const int64_t now_s = ReadNow(flags.now);
  const std::string source = ReadFile(flags.file);
  const std::string context = flags.context.empty() ? "{}" : ReadFile(flags.context);
  std::string text;
  try {
    text = RenderTemplate(flags.file == "-" ? "standard input" : flags.file, source, context, now_s);
  } catch (const Error& error) {
    throw Error(error.code(), WithContextName(error.what(), flags.context));
  }
  WriteOut(text);
}

}  // namespace

void AddTemplate(CLI::App& program) {
  auto flags = std::make_shared<TemplateFlags>();
  CLI::App* command = program.add_subcommand("template", "Print what a chat template makes of variables");
  command->add_option("FILE", flags->file, "the template, in Jinja (-: stdin)")->required()->type_name("");
  command->add_option("--context", flags->context, "a JSON object of all variables, such as messages (-: stdin)")
      ->type_name("FILE.json");
  command
      ->add_option("--now", flags->now,
                   "what strftime_now tells: seconds since 1970, or a local time such as 2026-01-15T12:34:56 [now]")
      ->type_name("TIME");
  command->callback([flags] { Render(*flags); });
}

}  // namespace fastdecode
