#ifndef FASTDECODE_TOOLS_BENCH_STEP_H_
#define FASTDECODE_TOOLS_BENCH_STEP_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `step` to the `bench` command.
void AddBenchStep(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_STEP_H_
