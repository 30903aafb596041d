#ifndef FASTDECODE_TESTS_ENGINE_SPART_SPART_RIG_H_
#define FASTDECODE_TESTS_ENGINE_SPART_SPART_RIG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "engine/rpart/messages.h"
#include "engine/spart/spart.h"

namespace fastdecode {

// A model in memory for S-Parts to be made from.
struct RigModel {
  // Synthesises a checkpoint in `dir`.
  RigModel(const std::string& dir, ElementType wire, int rows_max, int micro_batches);

  ModelSpec spec;
  Checkpoint checkpoint;
  ModelWeights weights;
  RPartShape shape;
};

// How a stage ends, of a GPU whose threads may stand still for 10 seconds on a busy machine. Each look at a stage comes
// later than the one before: it counts for little towards the bound after which the GPU is given up, which need not be
// longer than that.
StageState AwaitPatiently(SPart* spart, int micro_batch);

// Plays the pipeline and the homes to an S-Part: steps with random rows, o that is random but depends on the seed
// alone. Owns: tables and areas. Thread: one.
class SPartRig {
 public:
  SPartRig(const RigModel& model, SPart* spart, int homes, uint64_t seed);
  ~SPartRig();

  // What came out of a step.
  struct Outcome {
    bool failed = false;
    std::vector<std::vector<float>> sent;    // [layer] of all rows, row after row as on the wire
    std::vector<std::vector<float>> logits;  // of rows that asked for them
    std::vector<SampleResult> samples;
    std::vector<std::vector<TokenLogprob>> most_likely;  // of each sample
    struct Stage {
      uint64_t start_ns = 0, end_ns = 0;
      StageTrace trace;
    };
    std::vector<Stage> stages;  // as whoever records it sees them
  };
  struct Ask {
    int micro_batch = 0;
    int rows = 1;
    int logit_rows = 1;  // the last ones; all sampled
    bool show_logits = true;
    int lose_home_at = -1;  // its areas vanish before this stage
    int trace_from = -1;    // from this stage on somebody records; -1: nobody
    bool patient = false;   // AwaitPatiently
    SamplingParams sampling;
    std::vector<int32_t> allowed = {};  // the one token that may be drawn, of each logit row; empty: all may
    std::function<void(int stage)> before_start = [](int) {};  // of each stage
  };
  // Rows and o are drawn from the seed and the number of the step, each row's whatever rows follow.
  Outcome Step(const Ask& ask);
  // Where q, k and v of a home's rows come.
  std::byte* send_area(int micro_batch, int home) const {
    return send_[static_cast<size_t>(micro_batch)][static_cast<size_t>(home)];
  }

 private:
  void FillTable(const Ask& ask, StepTable* table, Outcome* outcome);
  void FillReceiveAreas(const Ask& ask, int stage, StepTable* table);
  std::vector<float> TakeSent(const StepTable& table) const;

  const RigModel& model_;
  SPart* const spart_;
  const int homes_;
  const uint64_t seed_;
  uint64_t steps_ = 0;
  std::vector<StepTable> tables_;                        // [micro-batch]
  std::vector<std::vector<std::byte*>> send_, receive_;  // [micro-batch][home]
  std::pmr::vector<int32_t> allowed_;                    // of the running step
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_SPART_RIG_H_
