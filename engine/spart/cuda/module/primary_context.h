#ifndef FASTDECODE_ENGINE_SPART_CUDA_MODULE_PRIMARY_CONTEXT_H_
#define FASTDECODE_ENGINE_SPART_CUDA_MODULE_PRIMARY_CONTEXT_H_

#include <cuda.h>

#include <memory>

#include "absl/status/statusor.h"

namespace fastdecode {

// The context of a GPU in which CUDA's runtime works. It is made current by the driver's calls, not by cudaSetDevice,
// which cannot be taken back: for a thread that has used no GPU yet the runtime names GPU 0, and setting that would
// make a context there. (rdma/gpu has such a scope, too; the module is linked with nothing of rdma.)
// Owns: a reference to the context. Thread: any.
class PrimaryContext {
 public:
  // Makes the context if it is not there: some seconds, and some hundred MiB of the GPU's memory. Errors: those of the
  // calls.
  static absl::StatusOr<std::unique_ptr<PrimaryContext>> Open(int gpu);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  // The calling thread works with this GPU while it lives, and then with what it did before. Does not allocate.
  class Scope {
   public:
    explicit Scope(const PrimaryContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const PrimaryContext& context_;
    const bool pushed_;
  };

 private:
  PrimaryContext() = default;

  // The module is not linked with the driver, which hosts without a GPU lack.
  decltype(&cuDevicePrimaryCtxRelease_v2) release_ = nullptr;
  decltype(&cuCtxPushCurrent_v2) push_ = nullptr;
  decltype(&cuCtxPopCurrent_v2) pop_ = nullptr;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_MODULE_PRIMARY_CONTEXT_H_
