#ifndef FASTDECODE_TOOLS_BENCH_GPU_H_
#define FASTDECODE_TOOLS_BENCH_GPU_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `gpu` to the `bench` command.
void AddBenchGpu(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_GPU_H_
