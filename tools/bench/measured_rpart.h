#ifndef FASTDECODE_TOOLS_BENCH_MEASURED_RPART_H_
#define FASTDECODE_TOOLS_BENCH_MEASURED_RPART_H_

#include <cstdint>
#include <string>

#include "engine/bench/rpart_bench.h"
#include "nlohmann/json.hpp"
#include "numa/topology.h"

namespace fastdecode {

// The R-Part that a benchmark ran: what is said of it whatever was measured.
struct MeasuredRPart {
  // REQUIRES: a step was run.
  explicit MeasuredRPart(RPartBench& bench);
  MeasuredRPart() = default;

  std::string kernel;
  std::string memory;
  double huge_share = 0;
  uint32_t sequences = 0;
  RPartBench::PageUse pages;  // of a step
};

// With what the options say of machine and shape, but for rows and context.
nlohmann::json ToJson(const MeasuredRPart& measured, const RPartBenchOptions& options, const Topology& topology);
// "1408 pages: 105 used, 39 held unused (2.8 %)"
std::string PagesText(const MeasuredRPart& measured);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_MEASURED_RPART_H_
