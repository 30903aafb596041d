#ifndef FASTDECODE_TOOLS_PARSE_ERROR_H_
#define FASTDECODE_TOOLS_PARSE_ERROR_H_

#include <string>

#include "CLI/CLI.hpp"

namespace fastdecode {

// What is wrong with a command line, in one line that names the argument; of something unknown also what is near to it.
std::string DescribeParseError(const CLI::App& program, const CLI::ParseError& error);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_PARSE_ERROR_H_
