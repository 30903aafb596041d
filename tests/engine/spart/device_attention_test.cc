// Attention of a GPU's home, by the device alone and no GEMM beside it, against its definition in double: on the
// software GPU, and on a real one where there is one.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "numa/check.h"
#include "tests/engine/spart/cuda_spart_fixture.h"
#include "tests/kernels/cuda/kernel_host.h"
#include "tests/kernels/cuda/kv_expectation.h"
#include "tests/kernels/cuda/kv_rig.h"

namespace fastdecode {
namespace {

// Copies what kernels are to reach into pinned memory, kBytes at once at most, and runs each kernel as a graph of its
// own. The memory and the graphs are the device's, which outlives it. Thread: one.
class DeviceHost : public KernelHost {
 public:
  explicit DeviceHost(SPartDevice* device)
      : device_(device), stream_(*device->MakeStream()), memory_(*device->AllocatePinned(kBytes)) {}

  const std::byte* Show(const std::byte* data, size_t bytes) override { return Copy(data, nullptr, bytes); }
  std::byte* Share(std::byte* data, size_t bytes) override { return Copy(data, data, bytes); }
  void Run(const TakeKvStepArgs& args, uint64_t) override { RunAlone(args); }
  void Run(const AppendKvArgs& args, uint64_t) override { RunAlone(args); }
  void Run(const AttendKvArgs& args, uint64_t) override { RunAlone(args); }

 private:
  static constexpr size_t kBytes = size_t{64} << 20, kAligned = 256;
  struct Reached {
    const std::byte* data;
    std::byte* back;  // null: it is shown alone
    std::byte* copy;
    size_t bytes;
  };

  std::byte* Copy(const std::byte* data, std::byte* back, size_t bytes) {
    std::byte* const copy = memory_ + used_;
    used_ += (bytes + kAligned - 1) / kAligned * kAligned;
    FD_CHECK(used_ <= kBytes, "a kernel of this test needs more memory");
    if (bytes > 0) std::memcpy(copy, data, bytes);
    reached_.push_back({data, back, copy, bytes});
    return copy;
  }
  void RunAlone(const DeviceWork& work) {
    const std::vector<Reached> reached = std::exchange(reached_, {});
    used_ = 0;
    ASSERT_TRUE(device_->BeginGraph(stream_, "a kernel").ok());
    ASSERT_TRUE(device_->Add(work).ok());
    const absl::StatusOr<SPartDevice::Graph> graph = device_->EndGraph();
    ASSERT_TRUE(graph.ok()) << graph.status();
    device_->Launch(*graph);
    const absl::Status over = device_->Synchronize();
    ASSERT_TRUE(over.ok()) << over;
    for (const auto& [data, back, copy, bytes] : reached) {
      if (bytes == 0) continue;
      if (back != nullptr) {
        std::memcpy(back, copy, bytes);
      } else {
        EXPECT_EQ(std::memcmp(data, copy, bytes), 0) << "changed by a kernel";
      }
    }
  }

  SPartDevice* const device_;
  const SPartDevice::Stream stream_;
  std::byte* const memory_;
  size_t used_ = 0;
  std::vector<Reached> reached_;
};

class DeviceAttentionTest : public testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    const absl::Status there = LookForGpu(GetParam());
    if (absl::IsNotFound(there)) GTEST_SKIP() << there.message();
    ASSERT_TRUE(there.ok()) << there;
    device_ = OpenGpu(GetParam(), DeviceOptions());
    host_ = std::make_unique<DeviceHost>(device_.get());
  }

  // Sequences with one query and with many, of one cut and of several, and a fork of the last one, which copies a page.
  void ExpectStepsNearTheReference(const KvCase& c) {
    SCOPED_TRACE(Describe(c));
    struct Tokens {
      int context, queries;
    };
    constexpr Tokens kTokens[] = {{1, 1}, {700, 1}, {1100, 1}, {600, 90}};
    KvRig rig(c, std::size(kTokens) + 1, 100, 5, host_.get());
    std::vector<KvRig::Part> parts;
    for (const auto& [context, queries] : kTokens) {
      parts.push_back({rig.Add(context, queries, static_cast<uint64_t>(context)), queries});
      if (HasFatalFailure()) return;
    }
    parts.push_back({rig.Fork(parts.back().sequence), parts.back().rows});
    const std::vector<std::vector<float>> outputs = rig.Step(parts, {.blocks = 11});
    for (size_t p = 0; p < parts.size(); ++p) {
      ASSERT_NO_FATAL_FAILURE(KvExpectation(rig, parts[p].sequence).ExpectNear(0, outputs[p]));
    }
    EXPECT_EQ(outputs.back(), outputs[outputs.size() - 2]);
  }

  std::unique_ptr<SPartDevice> device_;
  std::unique_ptr<DeviceHost> host_;
};

KvCase CaseOf(KvType kv, int head_dim) {
  KvCase c;
  c.kv = kv;
  c.head_dim = c.padded_head_dim = head_dim;
  c.group = head_dim == 80 ? 12 : 4;
  c.max_context = 1200;
  c.window = head_dim == 64 ? 800 : 0;
  c.wire = kv == KvType::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  return c;
}

TEST_P(DeviceAttentionTest, IsNearTheReference) {
  ExpectStepsNearTheReference(CaseOf(KvType::kF32, 128));
  ExpectStepsNearTheReference(CaseOf(KvType::kInt8, 80));
}

TEST_P(DeviceAttentionTest, ByTensorCoresIsNearTheReference) {
  for (const KvType kv : {KvType::kBf16, KvType::kFp16, KvType::kInt8}) {
    for (const int head_dim : {64, 80, 128, 256}) {
      if (kv == KvType::kFp16 && head_dim != 128) continue;  // as bf16, but for how products round
      KvCase c = CaseOf(kv, head_dim);
      c.tensor_cores = true;
      ExpectStepsNearTheReference(c);
      c.of_chunks = true;
      if (head_dim <= 128) ExpectStepsNearTheReference(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, DeviceAttentionTest, testing::Values(Gpu::kSoftware, Gpu::kReal), GpuName);

}  // namespace
}  // namespace fastdecode
