#ifndef FASTDECODE_TOOLS_BENCH_MEMORY_H_
#define FASTDECODE_TOOLS_BENCH_MEMORY_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `memory` to the `bench` command.
void AddBenchMemory(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_MEMORY_H_
