#ifndef FASTDECODE_TOOLS_BENCH_GEMM_H_
#define FASTDECODE_TOOLS_BENCH_GEMM_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Adds `gemm` to the `bench` command.
void AddBenchGemm(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_GEMM_H_
