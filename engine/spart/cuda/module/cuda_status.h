#ifndef FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_STATUS_H_
#define FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_STATUS_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"

namespace fastdecode {

// "cudaMalloc: out of memory", as ResourceExhausted where memory lacks, NotFound where there is no GPU, else Internal.
absl::Status CudaStatus(cudaError_t error, const std::string& what);
// "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED".
absl::Status CublasStatus(cublasStatus_t status, const std::string& what);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_MODULE_CUDA_STATUS_H_
