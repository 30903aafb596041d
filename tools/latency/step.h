#ifndef FASTDECODE_TOOLS_LATENCY_STEP_H_
#define FASTDECODE_TOOLS_LATENCY_STEP_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyStep(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_STEP_H_
