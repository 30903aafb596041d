#ifndef FASTDECODE_TOOLS_LATENCY_ATTACH_H_
#define FASTDECODE_TOOLS_LATENCY_ATTACH_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyAttach(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ATTACH_H_
