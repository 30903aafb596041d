#ifndef FASTDECODE_TOOLS_BENCH_CHUNK_H_
#define FASTDECODE_TOOLS_BENCH_CHUNK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/bench/rpart_bench.h"
#include "nlohmann/json.hpp"
#include "numa/topology.h"
#include "tools/bench/measured_rpart.h"

namespace fastdecode {

// A chunk of a prompt in the R-Part: how fast its keys and values become pages beside copying as many bytes, and how
// fast its rows attend beside the instruction that does so.
struct ChunkReport {
  // Of what was measured.
  MeasuredRPart rpart;
  uint64_t packed_bytes = 0;  // of a step, read and written
  double flop = 0;            // of a step: of visible pairs of a row and a token alone
  std::string dot_instruction;
  // Of the good repetitions.
  std::vector<double> pack_ms, copy_gb_per_s, ratio_to_copy;
  std::vector<double> attend_ms, peak_gflop_per_s, ratio_to_peak;
  int discarded = 0;
};

// The chunk is the options' rows. Thread: the team's leader, pinned.
absl::StatusOr<ChunkReport> MeasureChunk(const RPartBenchOptions& options, int repetitions);

nlohmann::json ChunkFigures(const ChunkReport& report, const RPartBenchOptions& options, const Topology& topology);
std::string ChunkText(const ChunkReport& report, const RPartBenchOptions& options, const Topology& topology);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_CHUNK_H_
