#ifndef FASTDECODE_TOOLS_LATENCY_FABRIC_H_
#define FASTDECODE_TOOLS_LATENCY_FABRIC_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyFabric(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FABRIC_H_
