#ifndef FASTDECODE_TOOLS_LATENCY_CLOCK_H_
#define FASTDECODE_TOOLS_LATENCY_CLOCK_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyClock(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_CLOCK_H_
