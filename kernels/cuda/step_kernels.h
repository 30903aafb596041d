#ifndef FASTDECODE_KERNELS_CUDA_STEP_KERNELS_H_
#define FASTDECODE_KERNELS_CUDA_STEP_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/launch.h"
#include "kernels/elementwise.h"
#include "kernels/float_types.h"

namespace fastdecode {

// The S-Part's kernels besides GEMMs, by what each is given. One launch works on all rows of a step of one micro-batch;
// it is sized for a bucket of rows, and rows beyond the step's own are left alone. `T` is the compute type (`type`),
// `W` the type of rows on the wire. The residual stream x is f32. A row's results depend on nothing but that row.
//
// Memory: `device` is the GPU's own; `pinned` is the host's, which kernels reach under the same address. Areas may be
// either, as the link has them.

// ---- What host and GPU tell each other about the steps of one micro-batch

// When the parts of a stage began or were over, by the device's clock: the GEMMs lie between.
struct StageStamps {
  uint64_t begun = 0;          // stage 0: its first kernel began; others: the wait for o was over
  uint64_t gathered = 0;       // o of all homes lies together. From here GEMM o...
  uint64_t projected = 0;      // ...until here
  uint64_t mlp_normed = 0;     // from here GEMM gate/up and the activation...
  uint64_t activated = 0;      // ...until here, and from here GEMM down...
  uint64_t mlp_projected = 0;  // ...until here
  uint64_t normed = 0;         // from here GEMM qkv, or all of the logits...
  uint64_t qkv = 0;            // ...until here; of the last stage until `published`
  uint64_t published = 0;      // just before it says that it is over
};

// Where a kernel says when it began and when it was over: in the micro-batch's StageStamps. Device; null: nowhere.
struct KernelStamps {
  uint64_t* begin = nullptr;
  uint64_t* end = nullptr;
};

// What the host says of a step before it begins.
struct StepHeader {
  uint64_t first = 0;
  uint32_t rows = 0, logit_rows = 0;
  uint32_t all_here = 0;       // all rows have their home on this GPU: no stage waits
  uint32_t timed = 0;          // not 0: the step's stages say in `times` where their time went
  uint32_t areas_version = 0;  // below kAreasVersions
};

// Stages are numbered on over all steps, from 1: stage l of a step is step.first + l. The host fills in a step's words,
// rows and areas and starts its work; from then on it stores `release` to let a stage run, and looks at `ready`.
// Pinned; each word that one side waits for has a cache line of its own.
struct StepBoard {
  alignas(64) uint64_t ready = 0;      // the GPU's: the stage that is over. Release, system scope
  alignas(64) uint64_t release = 0;    // the host's: stages up to one may run (ReleaseWord). Release
  alignas(64) uint64_t gave_up = 0;    // the GPU's: the stage that was waited for in vain; 0: none
  alignas(64) StepHeader step = {};    // the host's
  alignas(64) StageStamps times = {};  // the GPU's, of the stage that is over
};

// Stages up to `stage` may run, and the areas are those of this version: so who waits reads areas, which are as far as
// the host is, only when they have changed.
inline constexpr int kReleaseStageBits = 48;
inline constexpr uint32_t kAreasVersions = 1u << (64 - kReleaseStageBits);
constexpr uint64_t ReleaseWord(uint64_t stage, uint32_t areas_version) {
  return stage | uint64_t{areas_version} << kReleaseStageBits;
}
constexpr uint64_t ReleasedStage(uint64_t word) { return word & ((uint64_t{1} << kReleaseStageBits) - 1); }
constexpr uint32_t ReleasedAreas(uint64_t word) { return static_cast<uint32_t>(word >> kReleaseStageBits); }

// One row of a step. The host's, unchanged while the step runs.
inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr uint32_t kNoPush = UINT32_MAX;
inline constexpr uint32_t kNoCopy = UINT32_MAX;
struct StepRow {
  int32_t token = 0;
  int32_t position = 0;
  uint32_t home = 0;            // index into the areas
  uint32_t home_row = 0;        // within that home's area
  uint32_t slot = kNoSlot;      // of the page tables, if its home is this GPU (attention_kernels.h)
  uint32_t push_row = kNoPush;  // then: where its k and v go besides
  // Then: the page that the row's page gets the tokens before the row from (AppendKvArgs); the two are no longer
  // shared.
  uint32_t copied_page = kNoCopy;
  uint32_t reserved = 0;  // so that a TakenRow has no gaps
};

// What a block of the first kernel takes from the host, in its shared memory.
struct TakenRow {
  StepHeader step;
  StepRow row;
};

// Where the rows of one home lie. Null: the home is lost; nothing is sent and o counts as zero. The host's may change
// between a stage's `ready` and the next one's `release`; the GPU has a copy of its own.
struct StepArea {
  std::byte* send = nullptr;
  const std::byte* receive = nullptr;
};
// All of them, and the GPU's copy.
struct StepAreas {
  const StepArea* board = nullptr;  // pinned [homes]
  StepArea* here = nullptr;         // device [homes]
  unsigned homes = 0;
};

// What kernels of a step know of it. Device; zeros before the first step.
struct StepState {
  uint64_t first = 0;
  uint32_t rows = 0, logit_rows = 0;
  uint32_t all_here = 0;     // as the host says
  uint32_t gave_up = 0;      // a wait was in vain: nothing is sent or published any more in this step
  uint32_t blocks_over = 0;  // of the kernel that publishes last; zero between kernels
  uint32_t timed = 0;        // as the host says
  uint32_t areas_version = 0;
};

// ---- Kernels

// Of a block.
inline constexpr unsigned kNormThreadsMax = 512, kSendThreadsMax = 512;
// Of a bucket, beyond which not all rows' blocks find room at once on GPUs of today if each has all that it can use.
inline constexpr unsigned kManyRows = 256;

// RowNorm with arrays of the device.
struct DeviceNorm {
  RowNorm::Kind kind = RowNorm::Kind::kNone;
  const float* weight = nullptr;  // [hidden]; null: none
  const float* bias = nullptr;    // [hidden]; null: none
  float epsilon = 0;
};

// Stage 0: takes the step from the board, x = scale * embedding of its tokens (+ those of their positions), normed =
// norm(x), or x itself without one. One kernel for RMS norms with weights and nothing besides, another for the rest.
struct EmbedNormArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepBoard* board = nullptr;     // pinned
  const StepRow* board_rows = nullptr;  // pinned [bucket]
  StepAreas areas;
  StepState* state = nullptr;
  StepRow* rows = nullptr;          // device [bucket]
  const void* embedding = nullptr;  // T [vocab][hidden]
  float scale = 1;
  const float* positions = nullptr;  // [..][hidden], a token's at its position + position_offset; null: none
  int position_offset = 0;
  DeviceNorm norm;
  int hidden = 0;          // a multiple of 4
  float* x = nullptr;      // [bucket][hidden]
  void* normed = nullptr;  // T [bucket][hidden]
  KernelStamps stamps = {};
};

// x += bias (may be null); normed = norm(x).
struct BiasNormArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepState* state = nullptr;
  const float* bias = nullptr;  // [hidden]
  const float* norm = nullptr;  // [hidden]
  float epsilon = 0;
  int hidden = 0;          // a multiple of 4
  float* x = nullptr;      // [bucket][hidden]
  void* normed = nullptr;  // T [bucket][hidden]
  KernelStamps stamps = {};
};

// For models that need more than that:
//   h = projected + bias;  h = branch(h);  x += scale * h;  x = sum(x);  normed = before(x)
// where norms that are none give what they were given.
struct JoinNormArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepState* state = nullptr;
  const float* projected = nullptr;  // [bucket][hidden]; null: zeros, since x has been added to already
  const float* bias = nullptr;       // [hidden]; null: zeros
  float scale = 1;
  DeviceNorm branch, sum, before;
  int hidden = 0;          // a multiple of 4
  float* x = nullptr;      // [bucket][hidden]
  void* normed = nullptr;  // T [bucket][hidden]
  KernelStamps stamps = {};
};

// out = activation(gate + gate_bias) * (up + up_bias), or activation(up + up_bias) if it is not gated; biases may be
// null. A thread takes ActivateWidth elements. One kernel for gates by SiLU, another for the rest.
struct ActivateArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepState* state = nullptr;
  Activation activation = Activation::kSilu;
  bool gated = true;
  // T [bucket][2 * intermediate]: a row's gates, then its ups; not gated: T [bucket][intermediate], its ups
  const void* gate_up = nullptr;
  const float *gate_bias = nullptr, *up_bias = nullptr;  // [intermediate]
  int intermediate = 0;                                  // a multiple of 4
  void* out = nullptr;                                   // T [bucket][intermediate]
  KernelStamps stamps = {};
};

// 16 bytes of them, or 4 if there is not a whole number of that.
inline int ActivateWidth(const ActivateArgs& args) {
  const int width = args.type == ElementType::kF32 ? 4 : 8;
  return args.intermediate % width == 0 ? width : 4;
}

// Before RopeSend, which then adds no bias: to q, k and v in place the bias, then all within +-clip, then the norm of q
// and k.
struct QkNormArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepState* state = nullptr;
  enum class Norm {
    kNone,
    kHead,  // of each head: q_norm and k_norm are [head_dim]
    kRow,   // of all heads of q, and all of k: [heads * head_dim] and [kv_heads * head_dim]
  };
  Norm norm = Norm::kNone;
  int heads = 0, kv_heads = 0;
  int head_dim = 0;             // even, up to kQkHeadDimMax
  const float* bias = nullptr;  // of a row of qkv; may be null
  float clip = 0;               // 0: not
  const float *q_norm = nullptr, *k_norm = nullptr;
  float epsilon = 0;
  void* qkv = nullptr;  // T [bucket][(heads + 2 kv_heads) * head_dim]
  KernelStamps stamps = {};
};
inline constexpr int kQkHeadDimMax = 256;

// What a row looks like on the wire: heads of head_dim elements W, each padded with zeros to padded_head_dim.
struct WireRows {
  ElementType type = ElementType::kF32;
  int heads = 0, kv_heads = 0;
  int head_dim = 0, padded_head_dim = 0;
};

// q and k rotated, where there are cosines and sines, v as it is, into the send areas of their homes: a hop row is q of
// all heads, then k, then v. The last block publishes that the stage is over.
struct RopeSendArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  StepBoard* board = nullptr;  // pinned
  StepState* state = nullptr;
  const StepRow* rows = nullptr;    // device [bucket]
  const StepArea* areas = nullptr;  // device
  unsigned stage = 0;
  WireRows wire;
  const void* qkv = nullptr;    // T [bucket][(heads + 2 kv_heads) * head_dim]
  const float* bias = nullptr;  // of a row of qkv; may be null
  // [position][head_dim / 2]; pairs are (i, i + head_dim / 2). Those of q may be scaled, too. Null: not rotated.
  const float *q_cosines = nullptr, *q_sines = nullptr;
  const float *k_cosines = nullptr, *k_sines = nullptr;
  KernelStamps stamps = {};
  const StageStamps* times = nullptr;  // device; goes to the board with the stage, if it is timed
};

// One thread: waits until the stage may run, and takes the areas if they have changed; but no longer than bound_ns, not
// after another wait of the step was in vain and not if all rows are here. In vain: the board's gave_up is set, and the
// step's further kernels neither send nor publish.
struct WaitArgs {
  StepBoard* board = nullptr;  // pinned
  StepState* state = nullptr;
  unsigned stage = 0;
  uint64_t bound_ns = 0;
  KernelStamps stamps = {};
  StepAreas areas;
};

// o of all rows from the receive areas of their homes, as T; a lost home's rows are zeros. Those whose home is this GPU
// have theirs already (AttendKvArgs).
struct GatherOutputsArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;
  const StepState* state = nullptr;
  const StepRow* rows = nullptr;    // device [bucket]
  const StepArea* areas = nullptr;  // device
  WireRows wire;
  void* out = nullptr;  // T [bucket][heads * head_dim]
  KernelStamps stamps = {};
};

// The rows whose logits are wanted, one after another: those of the step's list from `first` on.
struct GatherLogitRowsArgs {
  ElementType type = ElementType::kF32;
  unsigned bucket = 0;  // of logit rows
  const StepState* state = nullptr;
  const uint32_t* logit_rows = nullptr;  // pinned [state->logit_rows] rows of the step
  unsigned first = 0;
  const void* normed = nullptr;  // T [..][hidden]
  int hidden = 0;                // a multiple of 4
  void* out = nullptr;           // T [bucket][hidden]
};

// logits = cap * tanh(logits / cap), of logit rows first to first + bucket of the step, as far as it has them.
struct SoftCapArgs {
  unsigned bucket = 0;
  const StepState* state = nullptr;
  unsigned first = 0;
  float* logits = nullptr;  // [bucket][vocab]
  int vocab = 0;
  float cap = 0;  // more than 0
};
inline constexpr unsigned kSoftCapPacks = 4;  // of four logits each, that a thread has

// One thread: says that the stage is over, after all that was launched before.
struct PublishArgs {
  StepBoard* board = nullptr;  // pinned
  const StepState* state = nullptr;
  unsigned stage = 0;
  const StageStamps* times = nullptr;  // device; goes to the board with the stage, if it is timed
};

LaunchShape ShapeOf(const EmbedNormArgs& args);
LaunchShape ShapeOf(const BiasNormArgs& args);
LaunchShape ShapeOf(const JoinNormArgs& args);
LaunchShape ShapeOf(const ActivateArgs& args);
LaunchShape ShapeOf(const QkNormArgs& args);
LaunchShape ShapeOf(const RopeSendArgs& args);
LaunchShape ShapeOf(const WaitArgs& args);
LaunchShape ShapeOf(const GatherOutputsArgs& args);
LaunchShape ShapeOf(const GatherLogitRowsArgs& args);
LaunchShape ShapeOf(const SoftCapArgs& args);
LaunchShape ShapeOf(const PublishArgs& args);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_STEP_KERNELS_H_
