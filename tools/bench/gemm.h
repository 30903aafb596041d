#ifndef FASTDECODE_TOOLS_BENCH_GEMM_H_
#define FASTDECODE_TOOLS_BENCH_GEMM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/bench/gemm_bench.h"
#include "tools/bench/memory_pass.h"

namespace fastdecode {

// One implementation with one number of rows.
struct GemmRow {
  int rows = 0;
  bool by_onednn = false;
  std::string kernel;
  // Of the good repetitions.
  std::vector<double> gb_per_s, read_gb_per_s, ratio;
  std::vector<double> gflop_per_s, peak_gflop_per_s, ratio_to_peak;
  int discarded = 0;
};

struct GemmReport {
  std::string memory;
  double huge_share = 0;
  int64_t matrices = 0;
  uint64_t weight_bytes = 0;
  ReadStreams streams = ReadStreams::kOne;
  std::string instruction;  // of the peak
  std::vector<GemmRow> rows;
};

// Our kernel and oneDNN with each number of rows, between read tests of the same weights and of the instruction that they
// multiply by. Errors: those of GemmBench. Thread: the team's leader, pinned to its core.
absl::StatusOr<GemmReport> MeasureGemm(const GemmBenchOptions& options, const std::vector<int>& rows_list,
                                       int repetitions);

// Adds `gemm` to the `bench` command.
void AddBenchGemm(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_GEMM_H_
