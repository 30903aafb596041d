#ifndef FASTDECODE_ENGINE_SPART_CPU_CPU_SPART_H_
#define FASTDECODE_ENGINE_SPART_CPU_CPU_SPART_H_

#include <climits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/rpart/messages.h"
#include "engine/spart/cpu/onednn_gemm.h"
#include "engine/spart/cpu/packed_weights.h"
#include "engine/spart/forward_pass.h"
#include "engine/spart/rope_table.h"
#include "engine/spart/spart.h"
#include "kernels/elementwise.h"
#include "kernels/isa.h"
#include "numa/ticket_team.h"

namespace fastdecode {

struct CpuSPartOptions {
  ElementType type = ElementType::kF32;
  Isa isa = Isa::kNone;
  bool batch_invariant = false;  // one order of summation for every batch size: our own GEMM for all of them
  int micro_batches = 2;
  int rows_max = 0;        // of one step of one micro-batch
  std::vector<int> cores;  // [0] is the pipeline thread's
  PollMode poll = PollMode::kSpin;
  int stage_homes_max = 0;  // homes that these threads may attend to, besides; 0: homes have threads of their own
};

// The S-Part on the CPU: a stage runs start to end inside StartStage, on the pipeline thread and its helpers. Each
// thread owns a range of every matrix's panels; rows of the element-wise parts are shared out; barriers lie between.
// GEMMs: our own kernel in f32, for few rows, and where results must not depend on the batch; oneDNN for many rows in
// bf16 without tiles. Both read the same single copy of the weights.
//
// With stage homes the same threads attend to what lies there at the beginning of the stage behind, or, where other
// homes have hops then, while these are out (decision 0029).
// Owns: weights, scratch, the residual streams, the helper threads. Thread: see SPart.
class CpuSPart : public SPart, private StageHomes {
 public:
  // `shape` is what rows on the wire look like.
  static absl::StatusOr<std::unique_ptr<CpuSPart>> Create(const ModelSpec& spec, const RPartShape& shape,
                                                          PackedWeights weights, const CpuSPartOptions& options);

  void StartStage(int micro_batch, int stage, StepTable& table) override;
  StageState PollStage(int micro_batch) override { return StageState::kDone; }
  void AttendMeanwhile(int micro_batch, int stage, StepTable& table) override;
  void Park() override { team_.Park(); }
  StageHomes* stage_homes() override { return stage_homes_.empty() ? nullptr : this; }
  std::string Describe() const override;
  uint64_t weight_bytes() const override { return weights_.matrix_bytes; }

 private:
  // Rows of activations in the compute type, padded to a multiple of 32 columns that stay zero.
  struct Activations {
    std::vector<std::byte> bytes;
    int64_t stride = 0;  // elements
    int64_t row_bytes = 0;
    std::byte* row(int64_t r) { return bytes.data() + r * row_bytes; }
  };
  struct Range {
    int begin, end;
  };
  // An operation with what it needs of the weights.
  struct Step {
    StageOp op;
    const float* bias = nullptr;  // kJoin: of what is added
    RowNorm after, sum, next;     // kJoin
    bool by_rows = false;         // each thread does all of some rows, in which no other one has a part
  };

  // A home that the team attends to.
  struct Attended {
    StageHome* home = nullptr;
    std::vector<int> member;  // [thread of the team]: its number among those that attend there; -1: it does not
  };
  // What one step of a micro-batch has at such homes.
  struct StepAttention {
    struct Rows {
      int home;  // of the table
      uint32_t rows;
    };
    std::vector<Rows> homes;
    int done_layers = 0;
  };

  // StageHomes.
  TicketTeam* team() override { return &team_; }
  void Put(int index, StageHome* home, const std::vector<int>& threads) override;

  CpuSPart(const ModelSpec& spec, const RPartShape& shape, PackedWeights weights, const CpuSPartOptions& options);
  void MakeSteps();
  Step MakeStep(const StageOp& op) const;
  RowNorm NormOf(const NormPlace& place) const;
  void MakePrimitives();
  Activations MakeActivations(int rows, int64_t columns) const;

  // --- attention at stage homes (cpu_attention_fastpath.cc)
  void FindStageRows(int micro_batch, const StepTable& table);
  bool BeginAttention(int micro_batch, int layer, const StepTable& table);
  static void AttendWork(void* self, int t, int n);
  void AttendShare(int t);
  void EndAttention(int micro_batch, int layer);

  // --- one stage, thread t of n
  static void StageWork(void* self, int t, int n);
  void RunStage(int t, int n);
  void RunStep(const Step& step, Range rows, int t, int n);
  void Embed(Range rows);
  void GatherOutputs(Range rows);
  void Join(const Step& step, Range rows);
  void Mlp(int layer, int t, int n);
  void RotateAndSend(int layer, Range rows);
  void NormHeads(const LayerVectorsOf<const float*>& vectors, float* row);
  void Finish(int t, int n);
  void SampleRows(int first, Range rows, int t);
  // y = x * W for this thread's share of W's panels.
  void Multiply(const PackedMatrix& matrix, Activations& x, int rows, float* y, int64_t y_stride, int t, int n);
  void MultiplyPanels(const PackedMatrix& matrix, Range panels, Activations& x, int first_row, int rows, float* y,
                      int64_t y_stride, int t);
  // `unit` panels stay together.
  static Range Share(int count, int t, int n, int unit = 1);

  // Constant after construction.
  const ModelSpec spec_;
  const RPartShape shape_;
  const CpuSPartOptions options_;
  PackedWeights weights_;
  ModelVectorsOf<const float*> vectors_;  // of weights_
  const std::string weights_memory_;      // said once: it takes long
  GemmKernels gemm_;
  ElementwiseKernels ops_;
  const RopeTables ropes_;  // [max_context]
  const float embedding_scale_;
  std::vector<std::vector<Step>> steps_;  // [stage]
  std::unique_ptr<OneDnnGemm> onednn_;    // null: our own kernel does all
  int own_rows_max_ = INT_MAX;            // up to so many rows our own kernel is the faster one

  // The stage that runs.
  int micro_batch_ = 0;
  int stage_ = 0;
  StepTable* table_ = nullptr;
  bool attends_ = false;  // before anything else

  // The homes that the team attends to. The control thread puts them into places that no table names yet.
  std::vector<Attended> stage_homes_;          // [home of the tables]
  std::vector<StepAttention> step_attention_;  // [micro-batch]
  std::vector<const Attended*> attending_;     // those of the layer in work

  // Written and read by the team, between barriers.
  std::vector<std::vector<float>> residual_;                    // [micro-batch][rows_max * hidden]
  Activations normed_;                                          // [rows_max][hidden]
  Activations attended_;                                        // [rows_max][heads * head_dim]
  Activations activated_;                                       // [rows_max][intermediate]
  std::vector<float> projected_;                                // [rows_max][max(qkv, hidden)]
  std::vector<std::vector<float>> gate_up_;                     // [thread][kTileRows * its gate_up columns]
  Activations logit_inputs_;                                    // [kLogitRows][hidden]
  std::vector<float> logits_;                                   // [kLogitRows][vocab]
  std::vector<std::unique_ptr<SampleScratch>> sample_scratch_;  // [thread]

  TicketTeam team_;  // last: its threads end first
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CPU_CPU_SPART_H_
