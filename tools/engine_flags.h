#ifndef FASTDECODE_TOOLS_ENGINE_FLAGS_H_
#define FASTDECODE_TOOLS_ENGINE_FLAGS_H_

#include <fastdecode/fastdecode.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

// Help of this command where the table's does not say it right.
struct FlagHelp {
  const char* name;
  const char* help;
};

// The engine's options as command-line flags: every row of the library's option table becomes --NAME VALUE, some with
// the names that users of other programs know. Owns: the values given. Must outlive the parse.
class EngineFlags {
 public:
  // `names`: those of the table that this command takes.
  EngineFlags(CLI::App* command, const std::vector<std::string>& names, const std::vector<FlagHelp>& helps = {});

  // Whether the user gave it, and its value.
  bool Given(const std::string& name) const;
  const std::string& Value(const std::string& name) const { return values_.at(name); }
  // As if it had been given; what was given stays.
  void SetDefault(const std::string& name, const std::string& value);

  // Every name that has a value, given or set as default, with the value as the library takes it.
  void ForEachValue(const std::function<void(const std::string& name, const std::string& value)>& take) const;

  bool quiet() const { return quiet_; }
  // The least that is said on stderr, as fd_options_set_log counts.
  int log_level() const { return verbose_ ? 0 : quiet_ ? 2 : 1; }

  // Options with everything that was given, logging to stderr. Throws Error naming option and value.
  std::unique_ptr<EngineOptions> Build() const;

 private:
  std::string Hint(const std::string& name, const std::string& value) const;

  std::map<std::string, std::string> values_;
  std::map<std::string, std::string> value_names_;  // what the table calls them: TOKENS, GIB
  std::map<std::string, CLI::Option*> flags_;
  bool verbose_ = false;
  bool quiet_ = false;
};

// The names for a command that runs an engine.
std::vector<std::string> EngineFlagNames();
// The names for a worker.
std::vector<std::string> WorkerFlagNames();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_ENGINE_FLAGS_H_
