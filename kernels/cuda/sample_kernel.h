#ifndef FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_H_
#define FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/sampler.h"

namespace fastdecode {

// Sampling where the logits are: as kernels/sampler.h has it, with the same token, log-probabilities and outcome for
// the same logits, seed and position.

// One row of logits and what is wanted of it. Pinned, and so is all that it points to. The host's while no step runs.
struct SampleRow {
  bool sample = false;
  SamplingParams params;
  uint64_t position = 0;
  const uint64_t* prompt_seen = nullptr;    // [ceil(vocab / 64)]; null: no penalties
  const uint16_t* output_counts = nullptr;  // [vocab]; faster if 8-byte aligned
  const LogitBias* bias = nullptr;
  const int32_t* allowed = nullptr;
  const int32_t* banned = nullptr;
  uint32_t bias_count = 0, allowed_count = 0, banned_count = 0;
};

// The kernel's, pinned.
struct SampledRow {
  SampleOutcome outcome = SampleOutcome::kToken;
  int32_t token = -1;
  float logprob = 0;
  int32_t top_logprobs = 0;
  TokenLogprob top[kMaxLogprobs] = {};
};

// Work space of one row of up to `vocab` logits, in device memory, 16-byte aligned: a copy of them.
constexpr size_t SampleScratchBytes(int vocab) {
  return (static_cast<size_t>(vocab) * sizeof(float) + 255) / 256 * 256;
}

inline constexpr unsigned kSampleThreadsMax = 1024;
inline constexpr unsigned kSampleSharedBytes = 24976;  // checked where they are used, sample_row.cuh

// A block a row. Nothing is written for rows that are not to be sampled, and after a wait in vain.
struct SampleRowsArgs {
  unsigned bucket = 0;
  const StepState* state = nullptr;
  unsigned first = 0;               // row i of the bucket is logit row first + i of the step, if there are so many
  const SampleRow* rows = nullptr;  // pinned [state->logit_rows]
  const float* logits = nullptr;    // device [bucket][vocab]; not changed
  int vocab = 0;                    // at most 2^19
  std::byte* scratch = nullptr;     // device [bucket][SampleScratchBytes(vocab)]
  SampledRow* out = nullptr;        // pinned [state->logit_rows]
};

LaunchShape ShapeOf(const SampleRowsArgs& args);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_H_
