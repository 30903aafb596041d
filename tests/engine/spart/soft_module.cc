// A module for --cuda-module: the software GPU.
#include <memory>

#include "engine/spart/cuda/device_module.h"
#include "tests/engine/spart/soft_device.h"

namespace {

absl::StatusOr<std::unique_ptr<fastdecode::SPartDevice>> Open(const fastdecode::DeviceOptions& options) {
  if (options.index != 0) return absl::NotFoundError("--gpu: the software GPU has the number 0");
  return std::make_unique<fastdecode::SoftDevice>(fastdecode::SoftDevice::Options());
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const fastdecode::DeviceModuleTable fastdecode_device_module = {fastdecode::DeviceModuleTable::kVersion, &Open};
