#ifndef FASTDECODE_ENGINE_SPART_CUDA_DEVICE_MODULE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_DEVICE_MODULE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// What a module exports, as `fastdecode_device_module`. The version is that of this interface, all classes in it
// included: program and module are of one build.
struct DeviceModuleTable {
  static constexpr uint32_t kVersion = 8;
  uint32_t version = kVersion;
  absl::StatusOr<std::unique_ptr<SPartDevice>> (*open)(const DeviceOptions& options) = nullptr;
};

// The module that comes with the file that this code is in: libfastdecode_cuda.so beside it, as in a build tree, or in
// lib/fastdecode where the program lies in bin/ or the library in lib/, as installed. NotFound names both.
absl::StatusOr<std::string> FindDeviceModule();

// Loads a module and opens a device of it. The module stays loaded for good: a driver's threads would not survive it.
// A GPU is one device's of a process at a time: another one's calls that may wait for all that runs there
// (SPartDevice) would know nothing of the first one's steps, nor these of them.
// Errors: NotFound if there is no such file; FailedPrecondition if it cannot be loaded (with the loader's own words: a
// missing CUDA library, say), is none of ours or of another version; AlreadyExists if there is such a device; and what
// opening says: NotFound without a GPU.
absl::StatusOr<std::unique_ptr<SPartDevice>> OpenDevice(const std::string& module_path, const DeviceOptions& options);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_DEVICE_MODULE_H_
