#ifndef FASTDECODE_TOOLS_BENCH_ACCURACY_H_
#define FASTDECODE_TOOLS_BENCH_ACCURACY_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `accuracy` to the `bench` command.
void AddBenchAccuracy(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_ACCURACY_H_
