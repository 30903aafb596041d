#ifndef FASTDECODE_TOOLS_BENCH_GPU_HOME_H_
#define FASTDECODE_TOOLS_BENCH_GPU_HOME_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `gpu-home` to the `bench` command.
void AddBenchGpuHome(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_GPU_HOME_H_
