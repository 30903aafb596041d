// A library with the names of CUDA's driver, each call returning a number of its own; MADE_UP_LIBCUDA_LACKS_* leave
// calls out, as older drivers do.

#define CALL(name, number) \
  int name() { return number; }

extern "C" {
CALL(cuInit, 1)
CALL(cuGetErrorName, 2)
CALL(cuGetErrorString, 3)
CALL(cuDeviceGetCount, 4)
CALL(cuDeviceGet, 5)
CALL(cuDeviceGetName, 6)
CALL(cuDeviceGetPCIBusId, 7)
CALL(cuDeviceGetAttribute, 8)
CALL(cuDevicePrimaryCtxRetain, 9)
CALL(cuDevicePrimaryCtxRelease_v2, 10)
CALL(cuCtxPushCurrent_v2, 11)
CALL(cuCtxPopCurrent_v2, 12)
CALL(cuMemAlloc_v2, 13)
CALL(cuMemFree_v2, 14)
CALL(cuMemsetD8_v2, 15)
CALL(cuMemcpyHtoD_v2, 16)
CALL(cuMemcpyDtoH_v2, 17)
CALL(cuPointerSetAttribute, 18)
#ifndef MADE_UP_LIBCUDA_LACKS_DMA_BUF
CALL(cuMemGetHandleForAddressRange, 19)
#endif
CALL(cuMemHostRegister_v2, 20)
CALL(cuMemHostUnregister, 21)
#ifndef MADE_UP_LIBCUDA_LACKS_HOST_POINTER
CALL(cuMemHostGetDevicePointer_v2, 22)
#endif
#ifndef MADE_UP_LIBCUDA_LACKS_DMA_BUF
CALL(cuFlushGPUDirectRDMAWrites, 23)
#endif
}
