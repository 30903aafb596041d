#ifndef FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_DEVICE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/spart/cuda/module/lt_gemm.h"
#include "engine/spart/cuda/module/primary_context.h"
#include "engine/spart/cuda/module/profiler_range.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// SPartDevice on CUDA's runtime. What goes into a graph is collected first and captured at its end, because choosing
// algorithms allocates and waits, which a capture forbids. All kernels are loaded once Create's graphs have been
// uploaded, so that none is loaded (which waits for the GPU) while another waits for the host.
// Whatever GPU the calling thread worked with before a call it works with afterwards.
// Owns, Thread: see SPartDevice.
class CudaDevice final : public SPartDevice {
 public:
  // Errors: NotFound without a GPU of that number or a driver; FailedPrecondition for one that is too old.
  // Sets CUDA_DEVICE_MAX_CONNECTIONS for many streams, where it is not set.
  static absl::StatusOr<std::unique_ptr<SPartDevice>> Open(const DeviceOptions& options);
  ~CudaDevice() override;

  std::string Describe() const override { return description_; }
  uint64_t free_bytes() const override;
  absl::StatusOr<std::byte*> Allocate(size_t bytes) override;
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory) override;
  absl::Status Register(std::byte* memory, size_t bytes) override;
  void Unregister(std::byte* memory) override;
  absl::StatusOr<UploadHandle> BeginUpload(std::byte* to, const std::byte* pinned, size_t bytes) override;
  absl::Status AwaitUpload(UploadHandle upload) override;
  absl::StatusOr<double> MeasureReadRate() override;
  absl::StatusOr<Stream> MakeStream() override;
  absl::Status BeginGraph(Stream stream, const std::string& name) override;
  absl::Status Add(const DeviceWork& work) override;
  absl::StatusOr<Graph> EndGraph() override;
  void Launch(Graph graph) override;
  absl::Status Check() override;
  absl::Status Synchronize() override;

 private:
  struct CudaStream {
    cudaStream_t stream = nullptr;
    std::byte* workspace = nullptr;
  };
  struct CudaGraph {
    cudaGraphExec_t graph = nullptr;
    cudaStream_t stream = nullptr;
    ProfilerName name;
  };

  explicit CudaDevice(const DeviceOptions& options) : options_(options) {}
  absl::Status Start();
  absl::Status CheckDevice();
  int MultiprocessorsOfAGemm() const;
  absl::StatusOr<double> TimeCopies(std::byte* memory, size_t bytes) const;
  absl::Status Capture(const CudaStream& stream, cudaGraph_t* graph);

  const DeviceOptions options_;
  std::unique_ptr<PrimaryContext> context_;  // null: it could not be opened
  std::string description_;
  bool kernels_overlap_ = false;
  std::unique_ptr<LtGemm> gemm_;
  std::vector<std::byte*> memory_;
  std::mutex pinned_mutex_;
  std::set<std::byte*> pinned_;
  std::vector<CudaStream> streams_;
  std::vector<CudaGraph> graphs_;
  int making_ = -1;  // the stream of the graph that is being made
  ProfilerName making_name_;
  std::vector<DeviceWork> works_;
  std::atomic<cudaError_t> launch_error_{cudaSuccess};
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_DEVICE_H_
