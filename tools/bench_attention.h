#ifndef FASTDECODE_TOOLS_BENCH_ATTENTION_H_
#define FASTDECODE_TOOLS_BENCH_ATTENTION_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `attention` to the `bench` command.
void AddBenchAttention(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_ATTENTION_H_
