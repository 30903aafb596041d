#ifndef FASTDECODE_TOOLS_UNKNOWN_OPTION_H_
#define FASTDECODE_TOOLS_UNKNOWN_OPTION_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

// What is wrong with the first word of a command line that begins with a dash, stands where an option may, and is none:
// in one line that says what there is in its place. Empty: there is no such word, or help is asked for. It looks at
// the words before they are parsed, since the parser takes -ngl for -n with the value gl. `words`: without the
// program's.
std::string DescribeUnknownOption(const CLI::App& program, const std::vector<std::string>& words);

// ", did you mean --model?", or nothing if none of the known words is near.
std::string Suggestion(const std::string& given, const std::vector<std::string>& known);

// The command's options, each by all of its names and with their dashes.
std::vector<std::string> OptionNames(const CLI::App& command);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_UNKNOWN_OPTION_H_
