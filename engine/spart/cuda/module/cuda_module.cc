// What OpenDevice finds in libfastdecode_cuda.so.
#include "engine/spart/cuda/device_module.h"
#include "engine/spart/cuda/module/cuda_device.h"

extern "C" __attribute__((visibility("default"))) const fastdecode::DeviceModuleTable fastdecode_device_module = {
    fastdecode::DeviceModuleTable::kVersion, &fastdecode::CudaDevice::Open};
