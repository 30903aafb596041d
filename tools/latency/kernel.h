#ifndef FASTDECODE_TOOLS_LATENCY_KERNEL_H_
#define FASTDECODE_TOOLS_LATENCY_KERNEL_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyKernel(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_KERNEL_H_
