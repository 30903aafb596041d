#ifndef FASTDECODE_ENGINE_SPART_SPART_H_
#define FASTDECODE_ENGINE_SPART_SPART_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/fastdecode.h"
#include "kernels/sampler.h"

namespace fastdecode {

// One row of logits that a step has to produce: sampled, copied out, or both.
struct LogitRow {
  uint32_t row = 0;                     // of the step
  bool sample = true;
  SampleArgs args;                      // args.logits and args.scratch are set by the S-Part
  SampleResult result;                  // written by stage L
  float* logits_out = nullptr;          // [vocab], or null
};

// Where the rows of one home lie in this step. Null areas: the home is lost; nothing is sent and o counts as zero.
struct HomeArea {
  std::byte* send = nullptr;            // hop rows, as RPartShape says
  const std::byte* receive = nullptr;   // reply rows
};

// Where the time of one stage went, for whoever records it.
struct StageTrace {
  static constexpr int kPartsMax = 16;
  struct Part {
    fd_stage_part what;
    int layer;          // whose weights
    uint64_t start_ns;  // NowNs
    uint64_t end_ns;
  };

  void Add(const Part& part) {
    if (count < kPartsMax) parts[count++] = part;
  }

  int count = 0;
  Part parts[kPartsMax];
};

// One step of one micro-batch, as the S-Part sees it: sized once for the most rows, refilled at each step boundary by the
// pipeline thread, unchanged while the step runs.
struct StepTable {
  int rows = 0;
  std::vector<int32_t> tokens;          // [rows]
  std::vector<int32_t> positions;       // [rows]
  std::vector<uint16_t> homes;          // [rows] index into home_areas
  std::vector<uint32_t> home_rows;      // [rows] row within that home's area
  int logit_rows = 0;
  std::vector<LogitRow> logits;         // [logit_rows], ascending by row
  std::vector<HomeArea> home_areas;     // [homes]
  StageTrace* trace = nullptr;          // to be filled in during a stage; null: nobody asks
};

// The S-Part of a model: everything but attention. Stage 0 embeds and makes q, k, v of layer 0; stage l takes o of layer
// l-1 and ends with q, k, v of layer l; stage L takes the last o and ends with logits and sampled tokens.
// Owns the packed weights, the residual stream of every micro-batch, and its own threads or streams.
// Thread: the pipeline thread calls everything. No call allocates, locks or enters the kernel once the backend is made.
class SPart {
 public:
  virtual ~SPart() = default;

  // Starts stage `stage` of a micro-batch. The table stays unchanged until StageDone() says true. The cpu backend does the
  // whole stage inside this call, with the calling thread as the first of its threads.
  virtual void StartStage(int micro_batch, int stage, StepTable& table) = 0;
  virtual bool StageDone(int micro_batch) = 0;

  // No step will start until the next StartStage: helper threads may sleep.
  virtual void Park() = 0;

  // For people: "cpu, bf16, avx512bf16 + oneDNN 2.6.3, 1 thread on core 0, weights 2.1 GiB".
  virtual std::string Describe() const = 0;
  // Bytes of weights that one decode step reads, for GB/s figures.
  virtual uint64_t weight_bytes() const = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_SPART_H_
