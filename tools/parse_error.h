#ifndef FASTDECODE_TOOLS_PARSE_ERROR_H_
#define FASTDECODE_TOOLS_PARSE_ERROR_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

// What is wrong with a command line, in one line that names the argument; of something unknown also what is near to it.
// `words`: those that were parsed, without the program's name.
std::string DescribeParseError(const CLI::App& program, const CLI::ParseError& error,
                               const std::vector<std::string>& words);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_PARSE_ERROR_H_
