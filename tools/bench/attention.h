#ifndef FASTDECODE_TOOLS_BENCH_ATTENTION_H_
#define FASTDECODE_TOOLS_BENCH_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/bench/rpart_bench.h"
#include "tools/bench/measured_rpart.h"
#include "tools/bench/memory_pass.h"

namespace fastdecode {

struct AttentionReport {
  // Of what was measured.
  MeasuredRPart rpart;
  double contiguous_kib = 0;
  uint64_t kv_bytes = 0;  // of a step
  ReadStreams streams = ReadStreams::kOne;
  // Of the good repetitions.
  std::vector<double> step_ms, gb_per_s, read_gb_per_s, ratio;
  int discarded = 0;
};

// Decode steps between read tests of the same memory. Errors: those of RPartBench; Unavailable if the machine is too
// busy. Thread: the team's leader, pinned to its core.
absl::StatusOr<AttentionReport> MeasureAttention(const RPartBenchOptions& options, int repetitions);

// Adds `attention` to the `bench` command.
void AddBenchAttention(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_ATTENTION_H_
