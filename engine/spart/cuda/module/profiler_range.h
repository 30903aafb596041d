#ifndef FASTDECODE_ENGINE_SPART_CUDA_MODULE_PROFILER_RANGE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_MODULE_PROFILER_RANGE_H_

#include <string>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define FASTDECODE_HAS_NVTX 1
#endif

namespace fastdecode {

// Ranges by NVTX, which Nsight Systems shows beside the GPU's work. Without a profiler that asks for them a range costs
// some nanoseconds; where CUDA came without NVTX's header, there are none.

// A name that ranges have again and again. Value type; what it stands for lives as long as the process. Thread: any.
class ProfilerName {
 public:
  ProfilerName() = default;
#ifdef FASTDECODE_HAS_NVTX
  explicit ProfilerName(const std::string& name) : name_(nvtxDomainRegisterStringA(Domain(), name.c_str())) {}

 private:
  friend class ProfilerRange;
  static nvtxDomainHandle_t Domain() {
    static const nvtxDomainHandle_t domain = nvtxDomainCreateA("FastDecode");
    return domain;
  }
  nvtxStringHandle_t name_ = nullptr;
#else
  explicit ProfilerName(const std::string&) {}
#endif
};

// From here to the end of the scope, on this thread. Allocates nothing.
class ProfilerRange {
 public:
#ifdef FASTDECODE_HAS_NVTX
  explicit ProfilerRange(const ProfilerName& name) {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = name.name_;
    nvtxDomainRangePushEx(ProfilerName::Domain(), &attributes);
  }
  ~ProfilerRange() { nvtxDomainRangePop(ProfilerName::Domain()); }
#else
  explicit ProfilerRange(const ProfilerName&) {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_MODULE_PROFILER_RANGE_H_
