// fastdecode completion: a bash completion script, made from the program's own options.
#include <string>

#include "tools/commands.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

std::string OptionNames(const CLI::App* command) {
  std::string names;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names += " --" + name;
  }
  return names;
}

void AppendEntries(const CLI::App* command, const std::string& path, std::string& entries) {
  std::string words = OptionNames(command);
  for (const CLI::App* child : command->get_subcommands([](const CLI::App*) { return true; })) {
    words += " " + child->get_name();
    AppendEntries(child, path + " " + child->get_name(), entries);
  }
  entries += "    [\"" + path + "\"]=\"" + words + "\"\n";
}

}  // namespace

void AddCompletion(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("completion", "Print a bash completion script: source <(fastdecode completion)");
  command->callback([&program] {
    std::string entries;
    AppendEntries(&program, "fastdecode", entries);
    WriteOut(
        "_fastdecode() {\n"
        "  local current=${COMP_WORDS[COMP_CWORD]} path=fastdecode word words\n"
        "  local -A words_of=(\n" +
        entries +
        "  )\n"
        "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
        "    [[ ${words_of[$path $word]+known} ]] || break\n"  // an option, or a file of the command so far
        "    path+=\" $word\"\n"
        "  done\n"
        "  words=${words_of[$path]}\n"
        "  if [[ $current == -* || $COMP_CWORD -le 2 ]]; then\n"
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
        "  else\n"
        "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
        "  fi\n"
        "}\n"
        "complete -F _fastdecode fastdecode\n");
  });
}

}  // namespace fastdecode
