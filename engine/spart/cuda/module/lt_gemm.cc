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
// The quickest round counts, after a run that warms up. A round's runs follow each other on the GPU: one alone would
// count what the host takes to launch it.
constexpr int kRounds = 3, kRunsOfRound = 4;
// The shape by which an algorithm for all numbers of rows is chosen: decode batches are about as large. And those that
// it has to do, too, to be taken.
constexpr unsigned kInvariantRows = 64, kOtherRows[] = {1, 8, 256, 4096};

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
  return absl::StrFormat("%d rows by a matrix [%d][%d] of %s, %s %s", gemm.rows, gemm.n, gemm.k, ElementName(gemm.type),
                         gemm.adds ? "added to" : "into", ElementName(gemm.out));
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

  absl::Status Describe(const DeviceGemm& gemm, int32_t multiprocessors) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const auto rows = static_cast<uint64_t>(gemm.rows), n = static_cast<uint64_t>(gemm.n);
    const auto k = static_cast<uint64_t>(gemm.k);
    const cublasStatus_t results[] = {
        cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed),
        Set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors),
        cublasLtMatrixLayoutCreate(&weights, CudaType(gemm.type), k, n, gemm.k),
        cublasLtMatrixLayoutCreate(&x, CudaType(gemm.type), k, rows, gemm.k),
        cublasLtMatrixLayoutCreate(&y, CudaType(gemm.out), n, rows, gemm.n),
    };
    for (const cublasStatus_t result : results) {
      if (absl::Status bad = CublasStatus(result, "describing a GEMM to cuBLASLt"); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  template <class Value>
  cublasStatus_t Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    if (matmul == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    return cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof(value));
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
    // The library's default also adds up in y, or in its type.
    const uint32_t scheme = split_sums ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    status.Update(Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme));
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

absl::StatusOr<std::unique_ptr<LtGemm>> LtGemm::Create(bool batch_invariant, int multiprocessors) {
  std::unique_ptr<LtGemm> gemm(new LtGemm());
  gemm->batch_invariant_ = batch_invariant;
  gemm->multiprocessors_ = multiprocessors;
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
    absl::StatusOr<std::unique_ptr<Plan>> plan = MakePlan(same[0]);
    if (!plan.ok()) return plan.status();
    const absl::Status chosen =
        batch_invariant_ ? ChooseInvariant(same[0], plan->get()) : ChooseQuickest(same, plan->get());
    if (!chosen.ok()) return chosen;
    plans_.emplace(shape, *std::move(plan));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LtGemm::Plan>> LtGemm::MakePlan(const DeviceGemm& gemm) const {
  auto plan = std::make_unique<Plan>();
  if (absl::Status bad = plan->Describe(gemm, multiprocessors_); !bad.ok()) return bad;
  return plan;
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
  if (!invariant_.contains(matrix)) {
    const absl::StatusOr<cublasLtMatmulAlgo_t> ranked = RankInvariant(gemm);
    if (!ranked.ok()) return ranked.status();
    invariant_.emplace(matrix, *ranked);
  }
  plan->algorithm = invariant_.at(matrix);
  if (absl::Status bad = CheckAlgorithm(gemm, plan->algorithm); !bad.ok()) return bad;
  // A check does not promise that it runs.
  absl::Status status = Run(gemm, *plan, plan->algorithm, workspace_, stream_);
  status.Update(CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return status;
}

// The first in the library's order that does all numbers of rows.
absl::StatusOr<cublasLtMatmulAlgo_t> LtGemm::RankInvariant(const DeviceGemm& gemm) const {
  DeviceGemm usual = gemm;
  usual.rows = kInvariantRows;
  const absl::StatusOr<std::unique_ptr<Plan>> plan = MakePlan(usual);
  if (!plan.ok()) return plan.status();
  Preference preference;
  if (absl::Status bad = preference.Make(/*split_sums=*/false); !bad.ok()) return bad;
  cublasLtMatmulHeuristicResult_t candidates[kCandidatesMax];
  int count = 0;
  const cublasStatus_t asked =
      cublasLtMatmulAlgoGetHeuristic(handle_, (*plan)->matmul, (*plan)->weights, (*plan)->x, (*plan)->y, (*plan)->y,
                                     preference.get(), kCandidatesMax, candidates, &count);
  for (int i = 0; i < count; ++i) {
    bool does_all = candidates[i].state == CUBLAS_STATUS_SUCCESS;
    DeviceGemm other = gemm;
    for (const unsigned rows : kOtherRows) {
      other.rows = rows;
      does_all = does_all && CheckAlgorithm(other, candidates[i].algo).ok();
    }
    if (does_all) return candidates[i].algo;
  }
  return absl::UnimplementedError(absl::StrFormat(
      "--batch-invariant: cuBLASLt has no algorithm that splits no sums and does 1 to 4096 rows for %s: %s",
      Describe(usual), cublasLtGetStatusName(asked)));
}

absl::Status LtGemm::CheckAlgorithm(const DeviceGemm& gemm, const cublasLtMatmulAlgo_t& algorithm) const {
  const absl::StatusOr<std::unique_ptr<Plan>> plan = MakePlan(gemm);
  if (!plan.ok()) return plan.status();
  cublasLtMatmulHeuristicResult_t checked;
  return CublasStatus(
      cublasLtMatmulAlgoCheck(handle_, (*plan)->matmul, (*plan)->weights, (*plan)->x, (*plan)->y, (*plan)->y,
                              &algorithm, &checked),
      absl::StrFormat("--batch-invariant: the algorithm for %d rows does not do %s", kInvariantRows, Describe(gemm)));
}

// Infinity: it does not run. In ms.
absl::StatusOr<float> LtGemm::Measure(std::span<const DeviceGemm> gemms, const Plan& plan,
                                      const cublasLtMatmulAlgo_t& algorithm) {
  float least_ms = std::numeric_limits<float>::infinity();
  for (int round = 0; round <= kRounds; ++round) {
    const int runs = round == 0 ? 1 : kRunsOfRound;
    if (absl::Status bad = CudaStatus(cudaEventRecord(begin_, stream_), "cudaEventRecord"); !bad.ok()) return bad;
    for (int run = 0; run < runs; ++run) {
      if (Run(gemms[runs_++ % gemms.size()], plan, algorithm, workspace_, stream_).ok()) continue;
      cudaGetLastError();  // nobody else's concern
      return std::numeric_limits<float>::infinity();
    }
    float ms = 0;
    absl::Status status = CudaStatus(cudaEventRecord(end_, stream_), "cudaEventRecord");
    status.Update(CudaStatus(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    status.Update(CudaStatus(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    if (!status.ok()) return status;
    if (round > 0) least_ms = std::min(least_ms, ms / static_cast<float>(runs));
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
  const float beta = gemm.adds ? 1 : 0;
  return CublasStatus(
      cublasLtMatmul(handle_, plan.matmul, &gemm.alpha, gemm.weights, plan.weights, gemm.x, plan.x, &beta, gemm.y,
                     plan.y, gemm.y, plan.y, &algorithm, workspace, kWorkspaceBytes, stream),
      "cublasLtMatmul: " + Describe(gemm));
}

}  // namespace fastdecode
