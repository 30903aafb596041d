// A module for --cuda-module: three software GPUs.
#include <memory>

#include "engine/spart/cuda/device_module.h"
#include "tests/engine/spart/soft_device.h"

namespace {

absl::StatusOr<std::unique_ptr<fastdecode::SPartDevice>> Open(const fastdecode::DeviceOptions& options) {
  if (options.index > 2) return absl::NotFoundError("--gpu: the software GPUs have the numbers 0 to 2");
  fastdecode::SoftDevice::Options soft;
  if (options.index == 1) soft.read_rate = 1e12;  // by which it is as a GPU beside CPUs; the others say nothing
  return std::make_unique<fastdecode::SoftDevice>(soft);
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const fastdecode::DeviceModuleTable fastdecode_device_module = {fastdecode::DeviceModuleTable::kVersion, &Open};
