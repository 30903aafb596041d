#ifndef FASTDECODE_ENGINE_SPART_CUDA_SPART_DEVICE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_SPART_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/sample_kernel.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/float_types.h"

namespace fastdecode {

// y = alpha x Wᵀ, or y += alpha x Wᵀ, for `rows` rows. x: T [rows][k], W: T [n][k], y: `out` [rows][n]; device, all
// row-major without gaps; sums in f32.
struct DeviceGemm {
  ElementType type = ElementType::kF32;
  ElementType out = ElementType::kF32;  // `type`, or kF32
  int64_t n = 0, k = 0;
  unsigned rows = 0;
  const void* weights = nullptr;
  const void* x = nullptr;
  void* y = nullptr;
  bool adds = false;
  float alpha = 1;
};

// By the GPU's copy engine, between its memory and pinned or registered memory of the host.
struct DeviceCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// A piece of work of a stream.
using DeviceWork = std::variant<EmbedNormArgs, BiasNormArgs, JoinNormArgs, ActivateArgs, QkNormArgs, RopeSendArgs,
                                TakeKvStepArgs, AppendKvArgs, AttendKvArgs, WaitArgs, GatherOutputsArgs,
                                GatherLogitRowsArgs, SoftCapArgs, SampleRowsArgs, PublishArgs, DeviceGemm, DeviceCopy>;

// One GPU, or what stands in for one: memory, streams and graphs, and the kernels of kernels/cuda on them. Implemented
// by a module that is loaded on demand (device_module.h), so that a program needs no CUDA library until it uses a GPU.
//
// Owns: all that it gives out, until it is destroyed. Thread: one at a time, except that the pipeline thread alone
// calls Launch, and that uploads, Register, Unregister, AllocatePinned and FreePinned may be any thread's. The last
// four may wait for all that was launched, and launches for them: REQUIRES that nothing that runs waits for the
// pipeline thread, nor is launched meanwhile (LaunchGate).
class SPartDevice {
 public:
  using Stream = int;
  using Graph = int;
  using UploadHandle = void*;

  virtual ~SPartDevice() = default;

  // For people: "NVIDIA H100 80GB HBM3 (sm_90, 79.1 GiB, driver 580.65, CUDA 13.0, cuBLASLt 13.0.2)".
  virtual std::string Describe() const = 0;
  virtual uint64_t free_bytes() const = 0;

  // ---- Memory. Zeroed, aligned to 256 bytes. Errors: ResourceExhausted, with how much was asked for.
  virtual absl::StatusOr<std::byte*> Allocate(size_t bytes) = 0;
  // The host's, which kernels reach under the same address.
  virtual absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;
  // Lets kernels reach memory that is somebody else's, under the same address. REQUIRES: page-aligned; no kernel uses
  // it any more when it is taken back.
  virtual absl::Status Register(std::byte* memory, size_t bytes) = 0;
  virtual void Unregister(std::byte* memory) = 0;
  // Begins to copy from pinned memory to the device. Any thread, several at once. REQUIRES: whoever got the handle
  // awaits it, once, and until then the memory is neither written to nor freed.
  virtual absl::StatusOr<UploadHandle> BeginUpload(std::byte* to, const std::byte* pinned, size_t bytes) = 0;
  // Until it is there, or an error.
  virtual absl::Status AwaitUpload(UploadHandle upload) = 0;
  absl::Status Upload(std::byte* to, const std::byte* pinned, size_t bytes) {
    const absl::StatusOr<UploadHandle> upload = BeginUpload(to, pinned, bytes);
    return upload.ok() ? AwaitUpload(*upload) : upload.status();
  }

  // How fast kernels read the device's memory, in bytes a second, measured now. Takes memory while it runs, if there is
  // some; some milliseconds. REQUIRES: nothing was launched.
  virtual absl::StatusOr<double> MeasureReadRate() = 0;

  // ---- Streams and graphs
  virtual absl::StatusOr<Stream> MakeStream() = 0;
  // What is added from here to EndGraph becomes one graph: work that is done in this order whenever it is launched.
  // Profilers show its launches under `name`.
  virtual absl::Status BeginGraph(Stream stream, const std::string& name) = 0;
  // A first GEMM of a shape chooses its algorithm, which may take milliseconds.
  virtual absl::Status Add(const DeviceWork& work) = 0;
  virtual absl::StatusOr<Graph> EndGraph() = 0;
  // After all that was launched in its stream. Does not wait, allocate or lock; what goes wrong shows in Check.
  virtual void Launch(Graph graph) = 0;
  // The first error of all that was launched so far; enters the kernel.
  virtual absl::Status Check() = 0;
  // Until all that was launched is over, or an error.
  virtual absl::Status Synchronize() = 0;

  // A claim to the GPU, which ends when the device has been destroyed.
  void Keep(std::shared_ptr<void> claim) { claim_ = std::move(claim); }

 private:
  std::shared_ptr<void> claim_;
};

struct DeviceOptions {
  int index = 0;                 // among the machine's GPUs
  int streams = 2;               // that will wait for the host side by side
  bool batch_invariant = false;  // one order of summation in a GEMM, however many rows it has
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_SPART_DEVICE_H_
