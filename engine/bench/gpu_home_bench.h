#ifndef FASTDECODE_ENGINE_BENCH_GPU_HOME_BENCH_H_
#define FASTDECODE_ENGINE_BENCH_GPU_HOME_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/bench/gpu_bench.h"
#include "kernels/sampler.h"
#include "numa/log.h"
#include "rdma/link.h"

namespace fastdecode {

// A GPU as the home of KV, for measuring: the attention of decode steps alone, and prompts beside their GEMMs.
// Owns: the S-Part, the link to its memory as a home, a step table. Thread: one at a time, which plays the pipeline
// thread.
class GpuHomeBench {
 public:
  // Up to sequences_max sequences in a step, or one prompt's chunk. `cores`: to read weights with. As
  // LoadGpuBenchSPart.
  static absl::StatusOr<std::unique_ptr<GpuHomeBench>> Create(const std::map<std::string, std::string>& options,
                                                              int sequences_max, int chunk,
                                                              const std::vector<int>& cores, Logger* log);

  // Puts `sequences` sequences of `context` tokens into the home, instead of what was there, and takes a step with the
  // last token of each. Errors: ResourceExhausted if there is no room.
  absl::Status Place(int sequences, int context);
  // The R-Part of that step in all layers, alone, on average over `times`, in ns.
  absl::StatusOr<double> RunAttention(int times);
  // Bytes of KV that its queries see, rounded up to pages.
  uint64_t kv_bytes(int sequences, int context) const;

  // A prompt of so many tokens, chunk by chunk up to its first sampled one, in ns; and the GEMMs of these steps, alone.
  // `pushed`: its K and V leave for another home, to which they are posted as the pipeline does it, by a segment a
  // turn; a chunk begins when those of the one before are posted. That home always has room.
  absl::StatusOr<uint64_t> RunPrompt(int tokens, bool pushed = false);
  absl::StatusOr<double> RunPromptGemms(int tokens);

  int layers() const { return static_cast<int>(loaded_.shape.layers); }
  int max_context() const { return static_cast<int>(loaded_.shape.max_context); }
  // Of the device's memory, by copies within it, in bytes a second.
  double read_rate() const { return read_rate_; }
  // What the matrices that a prompt of so many tokens is multiplied by ask for: the head for each chunk's last row.
  double prompt_flop(int tokens) const;
  std::string Describe() const { return loaded_.spart->Describe(); }

 private:
  GpuHomeBench(GpuBenchSPart loaded, int chunk);
  absl::Status Send(const void* message, size_t bytes);
  absl::Status Clear();
  absl::Status SendRoster(int sequences, uint32_t position, uint32_t rows);
  void PutRow(int row, int position);
  void SampleRow(int row, int position);
  bool PushSegment(int layers);

  const GpuBenchSPart loaded_;
  CudaProbe probe_{loaded_.spart.get()};
  const int chunk_;
  std::unique_ptr<EngineLink> home_;
  double read_rate_ = 0;
  SamplingParams greedy_;
  StepTable table_;
  uint32_t roster_version_ = 0;
  uint64_t sequences_ = 0;  // at the home: 0, 1, ...
  uint64_t drawn_ = 0;
  // Of the step that runs: what has been posted, and of the layer after that. A link's segments in turn.
  int pushed_layers_ = 0, pushed_rows_ = 0;
  std::vector<std::vector<std::byte>> segments_;
  size_t segment_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_GPU_HOME_BENCH_H_
