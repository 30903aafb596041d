#include "engine/spart/cuda/module/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace fastdecode {

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return absl::OkStatus();
  std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (error == cudaErrorLaunchTimeout)
    text += "; a GPU that drives a display ends kernels that wait some seconds for a hop";
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return absl::NotFoundError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status CublasStatus(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cublasLtGetStatusName(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

}  // namespace fastdecode
