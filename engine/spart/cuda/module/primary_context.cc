#include "engine/spart/cuda/module/primary_context.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "absl/strings/str_format.h"
#include "engine/spart/cuda/module/cuda_status.h"

namespace fastdecode {

namespace {

template <class Call>
absl::Status FindCall(void* driver, const char* name, Call* call) {
  *call = reinterpret_cast<Call>(dlsym(driver, name));
  if (*call == nullptr) return absl::FailedPreconditionError(absl::StrFormat("CUDA's driver has no %s", name));
  return absl::OkStatus();
}

absl::Status DriverStatus(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: error %d of CUDA's driver", call, static_cast<int>(result)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrimaryContext>> PrimaryContext::Open(int gpu) {
  // The runtime says better what is wrong.
  if (absl::Status bad = CudaStatus(cudaInitDevice(gpu, 0, 0), "cudaInitDevice"); !bad.ok()) return bad;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // where the runtime has it from
  if (driver == nullptr) return absl::FailedPreconditionError(absl::StrFormat("CUDA's driver: %s", dlerror()));
  std::unique_ptr<PrimaryContext> context(new PrimaryContext);
  decltype(&cuDeviceGet) get = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  absl::Status status = FindCall(driver, "cuDeviceGet", &get);
  status.Update(FindCall(driver, "cuDevicePrimaryCtxRetain", &retain));
  status.Update(FindCall(driver, "cuDevicePrimaryCtxRelease_v2", &context->release_));
  status.Update(FindCall(driver, "cuCtxPushCurrent_v2", &context->push_));
  status.Update(FindCall(driver, "cuCtxPopCurrent_v2", &context->pop_));
  if (!status.ok()) return status;
  if (absl::Status bad = DriverStatus(get(&context->device_, gpu), "cuDeviceGet"); !bad.ok()) return bad;
  const CUresult retained = retain(&context->context_, context->device_);
  if (absl::Status bad = DriverStatus(retained, "cuDevicePrimaryCtxRetain"); !bad.ok()) {
    context->context_ = nullptr;
    return bad;
  }
  return context;
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) release_(device_);
}

PrimaryContext::Scope::Scope(const PrimaryContext& context)
    : context_(context), pushed_(context.push_(context.context_) == CUDA_SUCCESS) {}

PrimaryContext::Scope::~Scope() {
  CUcontext popped = nullptr;
  if (pushed_) context_.pop_(&popped);
}

}  // namespace fastdecode
