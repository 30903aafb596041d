// The calls of CUDA's driver that GPU memory is made with, on a real GPU: skipped without one. The RDMA device is made
// up, so that what is shown is that the GPU gives and maps the memory, not that a device reaches it.

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <vector>

#include "rdma/gpu/gpu_memory_probe.h"
#include "tests/rdma/verbs/fake_fabric.h"

namespace fastdecode {
namespace {

TEST(GpuDeviceTest, MemoryByEachMethodThatTheGpuHas) {
  absl::StatusOr<CudaDriver> driver = CudaDriver::Load();
  if (!driver.ok()) GTEST_SKIP() << driver.status();
  if (const auto device = GpuDevice::Open(*driver, 0); !device.ok()) GTEST_SKIP() << device.status();
  FakeFabric fabric;
  const VerbsCalls calls = fabric.Calls();
  ibv_context* const context = calls.open_device(&fabric.device(0)->base);
  ibv_pd* const domain = calls.alloc_pd(context);
  const GpuMemoryPlace place = {.driver = &*driver, .gpu = 0, .calls = &calls, .domain = domain};
  const absl::StatusOr<GpuMemoryProbe> probe = ProbeGpuMemory(place);
  ASSERT_TRUE(probe.ok()) << probe.status();
  std::cout << probe->Describe() << "\n";
  for (const GpuMemoryMethod method :
       {GpuMemoryMethod::kDmaBuf, GpuMemoryMethod::kPeerMem, GpuMemoryMethod::kHostBounce}) {
    const auto memory = GpuMemory::Create(place, method, {.bytes = 3 << 20});
    std::cout << GpuMemoryMethodName(method) << ": "
              << (memory.ok() ? (*memory)->Describe() : memory.status().ToString()) << "\n";
    if (!memory.ok()) {
      EXPECT_EQ(memory.status().code(), absl::StatusCode::kUnimplemented);
      continue;
    }
    std::vector<uint32_t> words(3 << 18, 1);
    ASSERT_TRUE((*memory)->CopyToHost(0, words.data(), 3 << 20).ok());
    EXPECT_EQ(words, std::vector<uint32_t>(words.size(), 0));
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(i * 2654435761u);
    ASSERT_TRUE((*memory)->CopyFromHost(0, words.data(), 3 << 20).ok());
    std::vector<uint32_t> back(words.size());
    ASSERT_TRUE((*memory)->CopyToHost(0, back.data(), 3 << 20).ok());
    EXPECT_EQ(back, words);
  }
  calls.dealloc_pd(domain);
  calls.close_device(context);
  EXPECT_EQ(fabric.live_objects(), 0);
}

}  // namespace
}  // namespace fastdecode
