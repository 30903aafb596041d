#ifndef FASTDECODE_TESTS_ENGINE_SPART_CUDA_SPART_FIXTURE_H_
#define FASTDECODE_TESTS_ENGINE_SPART_CUDA_SPART_FIXTURE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/spart/cpu/cpu_spart.h"
#include "engine/spart/cuda/cuda_spart.h"
#include "engine/spart/cuda/device_module.h"
#include "engine/spart/cuda/gpu_weights.h"
#include "kernels/isa.h"
#include "tests/engine/model/scratch_dir.h"
#include "tests/engine/spart/soft_device.h"
#include "tests/engine/spart/spart_rig.h"
#include "tests/tests_folder.h"

namespace fastdecode {

inline constexpr int kRowsMax = 40, kMicroBatches = 2;
inline constexpr uint64_t kWaitNs = 2'000'000'000;

enum class Gpu { kSoftware, kReal };

// NotFound, and why, if there is no such GPU here.
inline absl::Status LookForGpu(Gpu gpu) {
  if (gpu == Gpu::kSoftware) return absl::OkStatus();
  if (CudaModule(CUDA_MODULE).empty()) return absl::NotFoundError("built without CUDA");
  return OpenDevice(CudaModule(CUDA_MODULE), DeviceOptions()).status();
}

inline std::unique_ptr<SPartDevice> OpenGpu(Gpu gpu, const DeviceOptions& options) {
  if (gpu == Gpu::kReal) return *OpenDevice(CudaModule(CUDA_MODULE), options);
  return std::make_unique<SoftDevice>(SoftDevice::Options());
}

// The S-Part on the software GPU, and on a real one where there is one; and the CPU's, of the same model. Thread: one.
class CudaSPartTest : public testing::TestWithParam<Gpu> {
 protected:
  explicit CudaSPartTest(int rows_max = kRowsMax)
      : model_(scratch_.path() + "/model", ElementType::kF32, rows_max, kMicroBatches) {}

  void SetUp() override {
    const absl::Status there = LookForGpu(GetParam());
    if (absl::IsNotFound(there)) GTEST_SKIP() << there.message();
    ASSERT_TRUE(there.ok()) << there;
  }

  std::unique_ptr<SPartDevice> MakeDevice() const {
    DeviceOptions options;
    options.batch_invariant = batch_invariant_;
    return OpenGpu(GetParam(), options);
  }

  std::unique_ptr<CudaSPart> MakeOnGpu(ElementType type = ElementType::kF32, uint64_t wait_ns = kWaitNs) {
    absl::StatusOr<std::unique_ptr<CudaSPart>> spart = TryMakeOnGpu(MakeDevice(), type, wait_ns);
    EXPECT_TRUE(spart.ok()) << spart.status();
    return *std::move(spart);
  }

  absl::StatusOr<std::unique_ptr<CudaSPart>> TryMakeOnGpu(std::unique_ptr<SPartDevice> device,
                                                          ElementType type = ElementType::kF32,
                                                          uint64_t wait_ns = kWaitNs, OverlapBounds overlap = {}) {
    device_ = device.get();
    UploadOptions upload;
    upload.type = type;
    upload.cores = {-1, -1};
    absl::StatusOr<GpuWeights> weights =
        UploadWeights(model_.spec, model_.checkpoint, model_.weights, upload, device.get());
    EXPECT_TRUE(weights.ok()) << weights.status();
    CudaSPartOptions options;
    options.micro_batches = kMicroBatches;
    options.rows_max = static_cast<int>(model_.shape.max_rows);
    options.sequences_max = 8;
    options.homes_max = 64;
    options.wait_bound_ns = wait_ns;
    options.batch_invariant = batch_invariant_;
    options.stage_bound_ns = stage_bound_ns_;
    options.overlap = overlap;
    return CudaSPart::Create(model_.spec, model_.shape, std::move(device), *weights, options);
  }

  std::unique_ptr<CpuSPart> MakeOnCpu() {
    PackOptions pack;
    pack.cores = {-1};
    absl::StatusOr<PackedWeights> packed = PackWeights(model_.spec, model_.checkpoint, model_.weights, pack);
    EXPECT_TRUE(packed.ok()) << packed.status();
    CpuSPartOptions options;
    options.isa = DetectIsa();
    options.micro_batches = kMicroBatches;
    options.rows_max = static_cast<int>(model_.shape.max_rows);
    options.cores = {-1};
    return *CpuSPart::Create(model_.spec, model_.shape, *std::move(packed), options);
  }

  ScratchDir scratch_;
  RigModel model_;
  SPartDevice* device_ = nullptr;  // of the last that was made on it
  bool batch_invariant_ = false;
  uint64_t stage_bound_ns_ = CudaSPartOptions().stage_bound_ns;
};

inline std::string GpuName(const testing::TestParamInfo<Gpu>& info) {
  return info.param == Gpu::kReal ? "Real" : "Software";
}

inline void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
  }
}

inline void ExpectSame(const SPartRig::Outcome& got, const SPartRig::Outcome& expected, float tolerance) {
  ASSERT_FALSE(got.failed);
  ASSERT_EQ(got.sent.size(), expected.sent.size());
  for (size_t layer = 0; layer < got.sent.size(); ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    ExpectClose(got.sent[layer], expected.sent[layer], tolerance);
  }
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) ExpectClose(got.logits[i], expected.logits[i], tolerance);
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_CUDA_SPART_FIXTURE_H_
