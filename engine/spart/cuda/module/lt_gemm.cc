#include "engine/spart/cuda/module/lt_gemm.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/spart/cuda/module/cuda_status.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr int kCandidatesMax = 8;
constexpr int kMeasuredRuns = 5;  // of which the quickest counts, after one that warms up
// The shape by which an algorithm for all numbers of rows is chosen: decode batches are about as large.
constexpr unsigned kInvariantRows = 64;

cudaDataType_t CudaType(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return CUDA_R_32F;
    case ElementType::kBf16:
      return CUDA_R_16BF;
    case ElementType::kFp16:
      return CUDA_R_16F;
  }
  FD_CHECK(false, "no element type");
}

std::string Describe(const DeviceGemm& gemm) {
  return absl::StrFormat("%d rows by a matrix [%d][%d] of %s into %s", gemm.rows, gemm.n, gemm.k,
                         ElementName(gemm.type), ElementName(gemm.out));
}

}  // namespace

// The library is column-major: what is W [n][k] here is a k by n matrix there, to be transposed; x and y are k by rows
// and n by rows.
struct LtGemm::Plan {
  ~Plan() {
    if (y != nullptr) cublasLtMatrixLayoutDestroy(y);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (weights != nullptr) cublasLtMatrixLayoutDestroy(weights);
    if (matmul != nullptr) cublasLtMatmulDescDestroy(matmul);
  }

  absl::Status Describe(const DeviceGemm& gemm) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const auto rows = static_cast<uint64_t>(gemm.rows), n = static_cast<uint64_t>(gemm.n);
    const auto k = static_cast<uint64_t>(gemm.k);
    const cublasStatus_t results[] = {
        cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        matmul == nullptr
            ? CUBLAS_STATUS_NOT_INITIALIZED
            : cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
        cublasLtMatrixLayoutCreate(&weights, CudaType(gemm.type), k, n, gemm.k),
        cublasLtMatrixLayoutCreate(&x, CudaType(gemm.type), k, rows, gemm.k),
        cublasLtMatrixLayoutCreate(&y, CudaType(gemm.out), n, rows, gemm.n),
    };
    for (const cublasStatus_t result : results) {
      if (absl::Status bad = CublasStatus(result, "describing a GEMM to cuBLASLt"); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

namespace {

// What an algorithm may be.
class Preference {
 public:
  ~Preference() {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  }
  absl::Status Make(bool split_sums) {
    if (absl::Status bad = CublasStatus(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
        !bad.ok()) {
      return bad;
    }
    const size_t workspace = split_sums ? LtGemm::kWorkspaceBytes : 0;
    absl::Status status = Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    if (!split_sums) {
      const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
      status.Update(Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, none));
    }
    return status;
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class Value>
  absl::Status Set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    return CublasStatus(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
                        "cublasLtMatmulPreferenceSetAttribute");
  }

  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LtGemm>> LtGemm::Create(bool batch_invariant) {
  std::unique_ptr<LtGemm> gemm(new LtGemm());
  gemm->batch_invariant_ = batch_invariant;
  absl::Status status = CublasStatus(cublasLtCreate(&gemm->handle_), "cublasLtCreate");
  status.Update(CudaStatus(cudaMalloc(reinterpret_cast<void**>(&gemm->workspace_), kWorkspaceBytes), "cudaMalloc"));
  status.Update(CudaStatus(cudaStreamCreateWithFlags(&gemm->stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  status.Update(CudaStatus(cudaEventCreate(&gemm->begin_), "cudaEventCreate"));
  status.Update(CudaStatus(cudaEventCreate(&gemm->end_), "cudaEventCreate"));
  if (!status.ok()) return status;
  return gemm;
}

LtGemm::~LtGemm() {
  plans_.clear();
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::Status LtGemm::Prepare(std::span<const DeviceGemm> gemms) {
  std::map<Shape, std::vector<DeviceGemm>> by_shape;
  for (const DeviceGemm& gemm : gemms) {
    if (!plans_.contains(ShapeOf(gemm))) by_shape[ShapeOf(gemm)].push_back(gemm);
  }
  for (const auto& [shape, same] : by_shape) {
    auto plan = std::make_unique<Plan>();
    if (absl::Status bad = plan->Describe(same[0]); !bad.ok()) return bad;
    const absl::Status chosen =
        batch_invariant_ ? ChooseInvariant(same[0], plan.get()) : ChooseQuickest(same, plan.get());
    if (!chosen.ok()) return chosen;
    plans_.emplace(shape, std::move(plan));
  }
  return absl::OkStatus();
}

absl::Status LtGemm::ChooseQuickest(std::span<const DeviceGemm> gemms, Plan* plan) {
  Preference preference;
  if (absl::Status bad = preference.Make(/*split_sums=*/true); !bad.ok()) return bad;
  cublasLtMatmulHeuristicResult_t candidates[kCandidatesMax];
  int count = 0;
  const cublasStatus_t asked =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->matmul, plan->weights, plan->x, plan->y, plan->y, preference.get(),
                                     kCandidatesMax, candidates, &count);
  float least_ms = std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) {
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const absl::StatusOr<float> ms = Measure(gemms, *plan, candidates[i].algo);
    if (!ms.ok()) return ms.status();
    if (*ms >= least_ms) continue;
    least_ms = *ms;
    plan->algorithm = candidates[i].algo;
  }
  if (least_ms < std::numeric_limits<float>::infinity()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrFormat("cuBLASLt has no algorithm for %s: %s", Describe(gemms[0]), cublasLtGetStatusName(asked)));
}

absl::Status LtGemm::ChooseInvariant(const DeviceGemm& gemm, Plan* plan) {
  const auto matrix = std::make_tuple(gemm.type, gemm.out, gemm.n, gemm.k);
  if (const auto known = invariant_.find(matrix); known != invariant_.end()) {
    plan->algorithm = known->second;
  } else {
    DeviceGemm usual = gemm;
    usual.rows = kInvariantRows;
    Plan of_usual;
    if (absl::Status bad = of_usual.Describe(usual); !bad.ok()) return bad;
    Preference preference;
    if (absl::Status bad = preference.Make(/*split_sums=*/false); !bad.ok()) return bad;
    cublasLtMatmulHeuristicResult_t best;
    int count = 0;
    const cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(handle_, of_usual.matmul, of_usual.weights, of_usual.x, of_usual.y, of_usual.y,
                                       preference.get(), 1, &best, &count);
    if (count == 0) {
      return absl::UnimplementedError(absl::StrFormat("cuBLASLt has no algorithm that splits no sums for %s: %s",
                                                      Describe(usual), cublasLtGetStatusName(asked)));
    }
    plan->algorithm = best.algo;
    invariant_.emplace(matrix, best.algo);
  }
  cublasLtMatmulHeuristicResult_t checked;
  const cublasStatus_t fits = cublasLtMatmulAlgoCheck(handle_, plan->matmul, plan->weights, plan->x, plan->y, plan->y,
                                                      &plan->algorithm, &checked);
  return CublasStatus(fits, absl::StrFormat("--batch-invariant: the algorithm for %d rows does not do %s",
                                            kInvariantRows, Describe(gemm)));
}

absl::StatusOr<float> LtGemm::Measure(std::span<const DeviceGemm> gemms, const Plan& plan,
                                      const cublasLtMatmulAlgo_t& algorithm) {
  float least_ms = std::numeric_limits<float>::infinity();
  for (int run = 0; run <= kMeasuredRuns; ++run) {
    const DeviceGemm& gemm = gemms[runs_++ % gemms.size()];
    if (absl::Status bad = CudaStatus(cudaEventRecord(begin_, stream_), "cudaEventRecord"); !bad.ok()) return bad;
    if (!Run(gemm, plan, algorithm, workspace_, stream_).ok()) return least_ms;  // this candidate is none after all
    float ms = 0;
    absl::Status status = CudaStatus(cudaEventRecord(end_, stream_), "cudaEventRecord");
    status.Update(CudaStatus(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    status.Update(CudaStatus(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    if (!status.ok()) return status;
    if (run > 0) least_ms = std::min(least_ms, ms);
  }
  return least_ms;
}

absl::Status LtGemm::Multiply(const DeviceGemm& gemm, std::byte* workspace, cudaStream_t stream) const {
  const auto plan = plans_.find(ShapeOf(gemm));
  FD_CHECK(plan != plans_.end(), "a GEMM that was not prepared");
  return Run(gemm, *plan->second, plan->second->algorithm, workspace, stream);
}

absl::Status LtGemm::Run(const DeviceGemm& gemm, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                         std::byte* workspace, cudaStream_t stream) const {
  const float one = 1, zero = 0;
  return CublasStatus(cublasLtMatmul(handle_, plan.matmul, &one, gemm.weights, plan.weights, gemm.x, plan.x, &zero,
                                     gemm.y, plan.y, gemm.y, plan.y, &algorithm, workspace, kWorkspaceBytes, stream),
                      "cublasLtMatmul: " + Describe(gemm));
}

}  // namespace fastdecode
