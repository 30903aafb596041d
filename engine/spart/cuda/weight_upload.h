#ifndef FASTDECODE_ENGINE_SPART_CUDA_WEIGHT_UPLOAD_H_
#define FASTDECODE_ENGINE_SPART_CUDA_WEIGHT_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/checkpoint.h"
#include "engine/model/weight_view.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

struct UploadOptions {
  ElementType type = ElementType::kF32;
  std::vector<int> cores;  // threads that read, convert and upload, pinned there: the first 32; none: the caller's
  // Bytes of matrices on the device; may be empty. Any of the threads calls it, one at a time.
  std::function<void(uint64_t done, uint64_t total)> progress;
  size_t chunk_bytes = size_t{1} << 20;  // of a pinned buffer; each thread has two
};

// A matrix, and where it goes in the device's memory.
struct UploadJob {
  const WeightView* tensor;
  std::byte* to;
};

// Reads every tensor once, in the files' order, and gives its pages back. When it returns, no copy is under way and
// nothing is pinned. Errors: the first of any thread, of which some tensors may be there.
absl::Status UploadTensors(const Checkpoint& checkpoint, std::vector<UploadJob> jobs, const UploadOptions& options,
                           SPartDevice* device);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_WEIGHT_UPLOAD_H_
