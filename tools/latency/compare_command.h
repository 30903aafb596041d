#ifndef FASTDECODE_TOOLS_LATENCY_COMPARE_COMMAND_H_
#define FASTDECODE_TOOLS_LATENCY_COMPARE_COMMAND_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyCompare(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_COMPARE_COMMAND_H_
