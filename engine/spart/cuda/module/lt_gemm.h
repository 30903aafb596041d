#ifndef FASTDECODE_ENGINE_SPART_CUDA_MODULE_LT_GEMM_H_
#define FASTDECODE_ENGINE_SPART_CUDA_MODULE_LT_GEMM_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// GEMMs by cuBLASLt, each shape by an algorithm that is chosen once: the quickest of the library's candidates, measured
// on the operands themselves; or, where results must not depend on the number of rows, one for each matrix, which
// splits no sums, by the library's own ranking. Sums that are split are added up in f32, too. Owns: the library's
// handle, a workspace for choosing. Thread: one at a time.
class LtGemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what Hopper's algorithms like to have

  // `multiprocessors`: that a GEMM plans its blocks for; fewer than the GPU has where others are taken meanwhile, since
  // blocks that find no place begin when the rest is over. 0: all. Errors: the library's.
  static absl::StatusOr<std::unique_ptr<LtGemm>> Create(bool batch_invariant, int multiprocessors);
  ~LtGemm();
  LtGemm(const LtGemm&) = delete;
  LtGemm& operator=(const LtGemm&) = delete;

  // Chooses the algorithms of one graph's GEMMs, where it has not yet; waits for the GPU; changes all y. Layers have
  // GEMMs of the same shapes, and each run takes another layer's weights: as in a step, the cache does not hold them.
  // REQUIRES: no stream is being captured by this thread. Errors: Unimplemented, with the shape, if the library has
  // none.
  absl::Status Prepare(std::span<const DeviceGemm> gemms);
  // Into a stream, or the graph that is captured from it. `workspace`: kWorkspaceBytes of the stream's own.
  // REQUIRES: Prepare() of the same shape.
  absl::Status Multiply(const DeviceGemm& gemm, std::byte* workspace, cudaStream_t stream) const;

 private:
  using Shape = std::tuple<ElementType, ElementType, int64_t, int64_t, unsigned, bool>;  // type, out, n, k, rows, adds
  // The library's description of one shape.
  struct Plan;

  LtGemm() = default;
  static Shape ShapeOf(const DeviceGemm& gemm) { return {gemm.type, gemm.out, gemm.n, gemm.k, gemm.rows, gemm.adds}; }
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const DeviceGemm& gemm) const;
  // `gemms`: of one shape.
  absl::Status ChooseQuickest(std::span<const DeviceGemm> gemms, Plan* plan);
  absl::Status ChooseInvariant(const DeviceGemm& gemm, Plan* plan);
  absl::StatusOr<cublasLtMatmulAlgo_t> RankInvariant(const DeviceGemm& gemm) const;
  absl::Status CheckAlgorithm(const DeviceGemm& gemm, const cublasLtMatmulAlgo_t& algorithm) const;
  absl::StatusOr<float> Measure(std::span<const DeviceGemm> gemms, const Plan& plan,
                                const cublasLtMatmulAlgo_t& algorithm);
  absl::Status Run(const DeviceGemm& gemm, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                   std::byte* workspace, cudaStream_t stream) const;

  bool batch_invariant_ = false;
  int multiprocessors_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  std::byte* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  size_t runs_ = 0;  // measured so far
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::map<std::tuple<ElementType, ElementType, int64_t, int64_t>, cublasLtMatmulAlgo_t> invariant_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_MODULE_LT_GEMM_H_
