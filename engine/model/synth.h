#ifndef FASTDECODE_ENGINE_MODEL_SYNTH_H_
#define FASTDECODE_ENGINE_MODEL_SYNTH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "engine/model/model_spec.h"
#include "engine/model/safetensors.h"

namespace fastdecode {

struct SynthOptions {
  std::string shape;  // a name of shapes.h
  int layers = 0;     // 0: as the shape has
  uint64_t seed = 1;  // equal seeds give equal files
  DType dtype = DType::kBf16;
  // Channels of every KV head whose k is k_outlier_factor times larger, and whose q as many times smaller, so that
  // scores stay as they are without biases (bit for bit, if it is a power of two and nothing overflows): what trained
  // models have, and what coarse quantisation of K suffers from. Which pairs of rope they are is random for each layer
  // and KV head. A bias of k gets the mean k_outlier_factor there.
  int k_outliers = 0;                          // even, head_dim at most
  double k_outlier_factor = 16;                // 1 to 1024
  std::string out_dir;                         // made here; may exist if it is empty
  int64_t shard_bytes_max = int64_t{4} << 30;  // a file's tensors; one larger tensor still gets its own file
};

// Bytes written and to write. False stops: everything is removed and Cancelled returned.
using SynthProgress = std::function<bool(int64_t done_bytes, int64_t total_bytes)>;

// Writes a checkpoint of random weights, scaled so that activations stay sane: config.json and safetensors, sharded
// with an index where they are large. A weight depends on the seed, the tensor's name and its place in it only. All is
// written to a folder beside out_dir that takes its name at the very end, or to one inside it where it exists, which
// stays the folder that it is, and gets config.json at the very end: nothing half-written is ever seen under out_dir,
// and a failure removes what there is. Memory: a few MB. Thread: the caller's.
absl::Status WriteSynthetic(const SynthOptions& options, const SynthProgress& progress = nullptr);

// The same for a spec of the caller's own; options.shape and options.layers are not looked at.
absl::Status WriteSynthetic(const ModelSpec& spec, const SynthOptions& options,
                            const SynthProgress& progress = nullptr);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_SYNTH_H_
