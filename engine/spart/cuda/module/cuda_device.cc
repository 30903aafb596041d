#include "engine/spart/cuda/module/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/spart/cuda/module/cuda_status.h"
#include "kernels/cuda/launch_kernels.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr int kMajorMin = 8;        // what the kernels are compiled for
constexpr int kStreamsUnasked = 6;  // CUDA has 8 queues; its own streams and those that load and choose have some
// From Hopper on: a kernel that waits leaves a large GEMM's block no room beside it, and blocks come in clusters of two
// and more.
constexpr int kMajorOfClusters = 9, kMultiprocessorsOfAWait = 2;
constexpr int kMajorOfOverlaps = 9;  // from Hopper on a kernel may begin before the one before has ended

std::string VersionText(int version) { return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10); }

// Why CUDA counts no GPU, and what to do.
absl::Status DescribeNoGpu(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);  // 0: there is none
  cudaRuntimeGetVersion(&runtime);
  const absl::Status status = CudaStatus(error, "no GPU");
  std::string advice;
  if (error == cudaErrorInsufficientDriver && driver == 0) {
    advice =
        "NVIDIA's driver (libcuda.so.1) is not there: install it; a container has the host's (--gpus all, NVIDIA's "
        "container toolkit)";
  } else if (error == cudaErrorInsufficientDriver) {
    advice = absl::StrFormat(
        "NVIDIA's driver is for CUDA %s, and the module of this program needs %s: install a newer "
        "driver, or build with an older CUDA",
        VersionText(driver), VersionText(runtime));
  } else if (error == cudaErrorNoDevice) {
    advice =
        "'nvidia-smi -L' lists those that the driver knows; CUDA_VISIBLE_DEVICES hides all that it does not name, and "
        "none is left if it is empty";
  }
  return advice.empty() ? status : absl::Status(status.code(), absl::StrCat(status.message(), "; ", advice));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SPartDevice>> CudaDevice::Open(const DeviceOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(options));
  if (absl::Status bad = device->Start(); !bad.ok()) return bad;
  return device;
}

absl::Status CudaDevice::Start() {
  // A queue of the device's for each stream: one would wait behind another one's wait. CUDA reads this once.
  if (options_.streams > kStreamsUnasked) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return DescribeNoGpu(error);
  if (options_.index >= count) {
    return absl::NotFoundError(absl::StrFormat(
        "--gpu: there is no GPU %d, CUDA counts %d, from 0 on, of those that CUDA_VISIBLE_DEVICES names "
        "where it is set",
        options_.index, count));
  }
  // Before a context takes some of the GPU's memory, for good.
  if (absl::Status bad = CheckDevice(); !bad.ok()) return bad;
  absl::StatusOr<std::unique_ptr<PrimaryContext>> context = PrimaryContext::Open(options_.index);
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  const PrimaryContext::Scope scope(*context_);
  absl::StatusOr<std::unique_ptr<LtGemm>> gemm = LtGemm::Create(options_.batch_invariant, MultiprocessorsOfAGemm());
  if (!gemm.ok()) return gemm.status();
  gemm_ = *std::move(gemm);
  return absl::OkStatus();
}

absl::Status CudaDevice::CheckDevice() {
  cudaDeviceProp properties;
  if (absl::Status bad = CudaStatus(cudaGetDeviceProperties(&properties, options_.index), "cudaGetDeviceProperties");
      !bad.ok()) {
    return bad;
  }
  int driver = 0, runtime = 0, host_pointers = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceGetAttribute(&host_pointers, cudaDevAttrCanUseHostPointerForRegisteredMem, options_.index);
  description_ = absl::StrFormat("%s (GPU %d, sm_%d%d, %.1f GiB, driver for CUDA %s, CUDA %s, cuBLASLt %d)",
                                 properties.name, options_.index, properties.major, properties.minor,
                                 static_cast<double>(properties.totalGlobalMem) * 0x1p-30, VersionText(driver),
                                 VersionText(runtime), cublasLtGetVersion());
  if (properties.major < kMajorMin) {
    return absl::FailedPreconditionError(absl::StrFormat("--gpu: %s is too old, sm_80 is needed", description_));
  }
  kernels_overlap_ = properties.major >= kMajorOfOverlaps;
  if (properties.unifiedAddressing == 0 || host_pointers == 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("--gpu: %s does not reach the host's memory by the host's addresses", description_));
  }
  return absl::OkStatus();
}

// While the steps of all other streams wait. 0: all.
int CudaDevice::MultiprocessorsOfAGemm() const {
  int all = 0, major = 0;
  cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, options_.index);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options_.index);
  if (options_.streams < 2 || major < kMajorOfClusters) return 0;
  return std::max(all / 2, all - kMultiprocessorsOfAWait * (options_.streams - 1));
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;  // it was not opened
  const PrimaryContext::Scope scope(*context_);
  cudaDeviceSynchronize();
  for (const CudaGraph& graph : graphs_) cudaGraphExecDestroy(graph.graph);
  for (const CudaStream& stream : streams_) cudaStreamDestroy(stream.stream);
  gemm_.reset();
  for (std::byte* memory : memory_) cudaFree(memory);
  for (std::byte* memory : pinned_) cudaFreeHost(memory);
}

uint64_t CudaDevice::free_bytes() const {
  const PrimaryContext::Scope scope(*context_);
  size_t free = 0, all = 0;
  return cudaMemGetInfo(&free, &all) == cudaSuccess ? free : 0;
}

absl::StatusOr<std::byte*> CudaDevice::Allocate(size_t bytes) {
  const PrimaryContext::Scope scope(*context_);
  std::byte* memory = nullptr;
  absl::Status status = CudaStatus(cudaMalloc(reinterpret_cast<void**>(&memory), bytes),
                                   absl::StrFormat("cudaMalloc of %.2f GiB", static_cast<double>(bytes) * 0x1p-30));
  if (!status.ok()) return status;
  memory_.push_back(memory);
  status = CudaStatus(cudaMemset(memory, 0, bytes), "cudaMemset");
  status.Update(CudaStatus(cudaStreamSynchronize(cudaStreamLegacy), "cudaMemset"));  // others do not wait for it
  if (!status.ok()) return status;
  return memory;
}

absl::StatusOr<std::byte*> CudaDevice::AllocatePinned(size_t bytes) {
  const PrimaryContext::Scope scope(*context_);
  std::byte* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(reinterpret_cast<void**>(&memory), bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (absl::Status bad = CudaStatus(error, absl::StrFormat("cudaHostAlloc of %d bytes", bytes)); !bad.ok()) return bad;
  std::memset(memory, 0, bytes);
  const std::lock_guard<std::mutex> lock(pinned_mutex_);
  pinned_.insert(memory);
  return memory;
}

void CudaDevice::FreePinned(std::byte* memory) {
  const PrimaryContext::Scope scope(*context_);
  {
    const std::lock_guard<std::mutex> lock(pinned_mutex_);
    pinned_.erase(memory);
  }
  cudaFreeHost(memory);
}

absl::Status CudaDevice::Register(std::byte* memory, size_t bytes) {
  const PrimaryContext::Scope scope(*context_);
  return CudaStatus(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                    absl::StrFormat("cudaHostRegister of a link's %d bytes", bytes));
}

void CudaDevice::Unregister(std::byte* memory) {
  const PrimaryContext::Scope scope(*context_);
  cudaHostUnregister(memory);
}

absl::StatusOr<SPartDevice::UploadHandle> CudaDevice::BeginUpload(std::byte* to, const std::byte* pinned,
                                                                  size_t bytes) {
  const PrimaryContext::Scope scope(*context_);
  cudaEvent_t over = nullptr;
  absl::Status status = CudaStatus(cudaEventCreateWithFlags(&over, cudaEventDisableTiming), "cudaEventCreate");
  if (!status.ok()) return status;
  status =
      CudaStatus(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread), "cudaMemcpyAsync");
  if (status.ok()) status = CudaStatus(cudaEventRecord(over, cudaStreamPerThread), "cudaEventRecord");
  if (status.ok()) return over;
  cudaStreamSynchronize(cudaStreamPerThread);  // nobody else can wait for it
  cudaEventDestroy(over);
  return status;
}

absl::Status CudaDevice::AwaitUpload(UploadHandle upload) {
  const PrimaryContext::Scope scope(*context_);
  auto* const over = static_cast<cudaEvent_t>(upload);
  absl::Status status = CudaStatus(cudaEventSynchronize(over), "cudaEventSynchronize");
  cudaEventDestroy(over);
  return status;
}

absl::StatusOr<double> CudaDevice::MeasureReadRate() {
  const PrimaryContext::Scope scope(*context_);
  const size_t bytes = std::min<size_t>(free_bytes() / 4, size_t{512} << 20) / 2 * 2;
  std::byte* memory = nullptr;
  const absl::Status bad = CudaStatus(cudaMalloc(reinterpret_cast<void**>(&memory), bytes), "cudaMalloc");
  if (!bad.ok()) return bad;
  absl::StatusOr<double> rate = TimeCopies(memory, bytes);
  cudaFree(memory);
  return rate;
}

// One half to the other: as many bytes are read as written, and memory takes turns. The quickest of some copies.
absl::StatusOr<double> CudaDevice::TimeCopies(std::byte* memory, size_t bytes) const {
  constexpr int kCopies = 5;
  cudaEvent_t moments[kCopies + 1] = {};
  absl::Status status;
  for (cudaEvent_t& moment : moments) status.Update(CudaStatus(cudaEventCreate(&moment), "cudaEventCreate"));
  for (int i = 0; i <= kCopies && status.ok(); ++i) {
    status.Update(CudaStatus(cudaEventRecord(moments[i], cudaStreamPerThread), "cudaEventRecord"));
    if (i == kCopies) break;
    status.Update(CudaStatus(
        cudaMemcpyAsync(memory, memory + bytes / 2, bytes / 2, cudaMemcpyDeviceToDevice, cudaStreamPerThread),
        "cudaMemcpyAsync"));
  }
  status.Update(CudaStatus(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize"));
  float least_ms = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kCopies && status.ok(); ++i) {
    float ms = 0;
    status.Update(CudaStatus(cudaEventElapsedTime(&ms, moments[i], moments[i + 1]), "cudaEventElapsedTime"));
    least_ms = std::min(least_ms, ms);
  }
  for (const cudaEvent_t moment : moments) {
    if (moment != nullptr) cudaEventDestroy(moment);
  }
  if (!status.ok()) return status;
  return static_cast<double>(bytes) / (static_cast<double>(least_ms) * 1e-3);
}

absl::StatusOr<SPartDevice::Stream> CudaDevice::MakeStream() {
  const PrimaryContext::Scope scope(*context_);
  absl::StatusOr<std::byte*> workspace = Allocate(LtGemm::kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  CudaStream stream;
  stream.workspace = *workspace;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking);
  if (absl::Status bad = CudaStatus(error, "cudaStreamCreate"); !bad.ok()) return bad;
  streams_.push_back(stream);
  return static_cast<Stream>(streams_.size()) - 1;
}

absl::Status CudaDevice::BeginGraph(Stream stream, const std::string& name) {
  making_ = stream;
  making_name_ = ProfilerName(name);
  works_.clear();
  return absl::OkStatus();
}

absl::Status CudaDevice::Add(const DeviceWork& work) {
  works_.push_back(work);
  return absl::OkStatus();
}

absl::StatusOr<SPartDevice::Graph> CudaDevice::EndGraph() {
  const PrimaryContext::Scope scope(*context_);
  const CudaStream& stream = streams_[static_cast<size_t>(std::exchange(making_, -1))];
  std::vector<DeviceGemm> gemms;
  for (const DeviceWork& work : works_) {
    if (const auto* const gemm = std::get_if<DeviceGemm>(&work)) gemms.push_back(*gemm);
  }
  if (absl::Status bad = gemm_->Prepare(gemms); !bad.ok()) return bad;
  cudaGraph_t graph = nullptr;
  if (absl::Status bad = Capture(stream, &graph); !bad.ok()) return bad;
  CudaGraph made{nullptr, stream.stream, making_name_};
  absl::Status status = CudaStatus(cudaGraphInstantiate(&made.graph, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  if (!status.ok()) return status;
  graphs_.push_back(made);
  status = CudaStatus(cudaGraphUpload(made.graph, made.stream), "cudaGraphUpload");
  if (!status.ok()) return status;
  return static_cast<Graph>(graphs_.size()) - 1;
}

absl::Status CudaDevice::Capture(const CudaStream& stream, cudaGraph_t* graph) {
  const cudaError_t begun = cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal);
  if (absl::Status bad = CudaStatus(begun, "cudaStreamBeginCapture"); !bad.ok()) return bad;
  absl::Status status;
  bool after_kernel = false;
  for (const DeviceWork& work : works_) {
    const bool overlaps = after_kernel && kernels_overlap_;
    after_kernel = !std::holds_alternative<DeviceCopy>(work);
    status = std::visit(
        [&](const auto& args) {
          if constexpr (std::is_same_v<std::decay_t<decltype(args)>, DeviceGemm>) {
            return gemm_->Multiply(args, stream.workspace, stream.stream);
          } else if constexpr (std::is_same_v<std::decay_t<decltype(args)>, DeviceCopy>) {
            const cudaError_t added = cudaMemcpyAsync(args.to, args.from, args.bytes, cudaMemcpyDefault, stream.stream);
            return CudaStatus(added, "cudaMemcpyAsync");
          } else {
            return CudaStatus(LaunchKernel(args, overlaps, stream.stream), "launching a kernel");
          }
        },
        work);
    if (!status.ok()) break;
  }
  const absl::Status ended = CudaStatus(cudaStreamEndCapture(stream.stream, graph), "cudaStreamEndCapture");
  if (status.ok()) return ended;
  if (ended.ok()) cudaGraphDestroy(*graph);
  return status;
}

void CudaDevice::Launch(Graph graph) {
  const PrimaryContext::Scope scope(*context_);
  const CudaGraph& launched = graphs_[static_cast<size_t>(graph)];
  const ProfilerRange range(launched.name);
  const cudaError_t error = cudaGraphLaunch(launched.graph, launched.stream);
  if (error != cudaSuccess) launch_error_.store(error, std::memory_order_relaxed);
}

absl::Status CudaDevice::Check() {
  const PrimaryContext::Scope scope(*context_);
  if (absl::Status bad = CudaStatus(launch_error_.load(std::memory_order_relaxed), "cudaGraphLaunch"); !bad.ok()) {
    return bad;
  }
  for (const CudaStream& stream : streams_) {
    const cudaError_t error = cudaStreamQuery(stream.stream);
    if (error != cudaSuccess && error != cudaErrorNotReady) return CudaStatus(error, "on the GPU");
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Synchronize() {
  const PrimaryContext::Scope scope(*context_);
  return CudaStatus(cudaDeviceSynchronize(), "on the GPU");
}

}  // namespace fastdecode
