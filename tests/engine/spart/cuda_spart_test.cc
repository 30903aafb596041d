// CudaSPart on the software GPU, and on a real one where there is one: what it computes is what CpuSPart computes, and
// nothing hangs.
#include "engine/spart/cuda/cuda_spart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/spart/cpu/cpu_spart.h"
#include "engine/spart/cuda/device_module.h"
#include "engine/spart/cuda/gpu_weights.h"
#include "engine/spart/cuda/row_buckets.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/clock.h"
#include "tests/engine/model/scratch_dir.h"
#include "tests/engine/spart/soft_device.h"
#include "tests/engine/spart/spart_rig.h"
#include "tests/tests_folder.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

constexpr int kRowsMax = 40, kMicroBatches = 2;
constexpr uint64_t kWaitNs = 2'000'000'000;

enum class Gpu { kSoftware, kReal };

class CudaSPartTest : public testing::TestWithParam<Gpu> {
 protected:
  explicit CudaSPartTest(int rows_max = kRowsMax)
      : model_(scratch_.path() + "/model", ElementType::kF32, rows_max, kMicroBatches) {}

  void SetUp() override {
    if (GetParam() == Gpu::kSoftware) return;
    if (CudaModule(CUDA_MODULE).empty()) GTEST_SKIP() << "built without CUDA";
    const absl::Status there = OpenDevice(CudaModule(CUDA_MODULE), DeviceOptions()).status();
    if (absl::IsNotFound(there)) GTEST_SKIP() << there.message();
    ASSERT_TRUE(there.ok()) << there;
  }

  std::unique_ptr<SPartDevice> MakeDevice() const {
    DeviceOptions options;
    options.batch_invariant = batch_invariant_;
    if (GetParam() == Gpu::kReal) return *OpenDevice(CudaModule(CUDA_MODULE), options);
    return std::make_unique<SoftDevice>(SoftDevice::Options());
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

std::string GpuName(const testing::TestParamInfo<Gpu>& info) { return info.param == Gpu::kReal ? "Real" : "Software"; }
INSTANTIATE_TEST_SUITE_P(On, CudaSPartTest, testing::Values(Gpu::kSoftware, Gpu::kReal), GpuName);

void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
  }
}

void ExpectSame(const SPartRig::Outcome& got, const SPartRig::Outcome& expected, float tolerance) {
  ASSERT_FALSE(got.failed);
  ASSERT_EQ(got.sent.size(), expected.sent.size());
  for (size_t layer = 0; layer < got.sent.size(); ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    ExpectClose(got.sent[layer], expected.sent[layer], tolerance);
  }
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) ExpectClose(got.logits[i], expected.logits[i], tolerance);
}

// The tokens are those that the CPU's sampler draws from the GPU's logits.
void ExpectSampled(const SPartRig::Outcome& outcome, const SamplingParams& params) {
  for (size_t i = 0; i < outcome.samples.size(); ++i) {
    SampleScratch scratch(static_cast<int>(outcome.logits[i].size()));
    SampleArgs args = {};
    args.logits = outcome.logits[i].data();
    args.vocab = static_cast<int>(outcome.logits[i].size());
    args.params = &params;
    args.position = i + 1;
    args.scratch = &scratch;
    const SampleResult expected = Sample(args);
    EXPECT_EQ(outcome.samples[i].outcome, expected.outcome);
    EXPECT_EQ(outcome.samples[i].token, expected.token);
  }
}

TEST_P(CudaSPartTest, ComputesWhatTheCpuComputes) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 3, 7), on_cpu(model_, cpu.get(), 3, 7);
  for (const int rows : {1, 2, 3, 5, 8, 9, 17, 40}) {
    SPartRig::Ask ask;
    ask.micro_batch = rows % kMicroBatches;
    ask.rows = rows;
    ask.logit_rows = std::min(rows, 8);
    ask.sampling.temperature = 0.8f;
    ask.sampling.seed = static_cast<uint64_t>(rows);
    const SPartRig::Outcome outcome = on_gpu.Step(ask);
    ExpectSame(outcome, on_cpu.Step(ask), 2e-4f);
    ExpectSampled(outcome, ask.sampling);
  }
}

// The steps of two micro-batches run side by side.
TEST_P(CudaSPartTest, SamplesWithoutShowingLogits) {
  const auto gpu = MakeOnGpu();
  SPartRig shown(model_, gpu.get(), 2, 3), hidden(model_, gpu.get(), 2, 3);
  for (int step = 0; step < 4; ++step) {
    SPartRig::Ask ask;
    ask.rows = 8;
    ask.logit_rows = 8;
    const SPartRig::Outcome with = shown.Step(ask);
    ask.micro_batch = 1;
    ask.show_logits = false;
    const SPartRig::Outcome without = hidden.Step(ask);
    for (size_t i = 0; i < with.samples.size(); ++i) EXPECT_EQ(with.samples[i].token, without.samples[i].token);
  }
}

TEST_P(CudaSPartTest, ALostHomesRowsAreZerosAndGetNothing) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 2, 5), on_cpu(model_, cpu.get(), 2, 5);
  for (const int stage : {0, 1, 2, 3}) {
    SPartRig::Ask ask;
    ask.rows = 12;
    ask.logit_rows = 8;
    ask.lose_home_at = stage;
    ExpectSame(on_gpu.Step(ask), on_cpu.Step(ask), 2e-4f);
  }
}

TEST_P(CudaSPartTest, SixteenBitsAreCloseAndFp16IsCloser) {
  const auto cpu = MakeOnCpu();
  const auto error = [&](ElementType type) {
    const auto gpu = MakeOnGpu(type);
    SPartRig on_gpu(model_, gpu.get(), 2, 11), on_cpu(model_, cpu.get(), 2, 11);
    SPartRig::Ask ask;
    ask.rows = 16;
    ask.logit_rows = 8;
    const SPartRig::Outcome got = on_gpu.Step(ask), expected = on_cpu.Step(ask);
    double squares = 0, all = 0;
    for (size_t i = 0; i < got.logits.size(); ++i) {
      for (size_t j = 0; j < got.logits[i].size(); ++j) {
        squares += std::pow(got.logits[i][j] - expected.logits[i][j], 2);
        all += std::pow(expected.logits[i][j], 2);
      }
    }
    return std::sqrt(squares / all);
  };
  const double bf16 = error(ElementType::kBf16), fp16 = error(ElementType::kFp16);
  EXPECT_LT(bf16, 0.03);
  EXPECT_GT(bf16, 1e-4);
  EXPECT_LT(fp16, bf16 / 3) << "three bits are a factor of eight";
  EXPECT_GT(fp16, 1e-5);
}

// To the bit, with --batch-invariant.
TEST_P(CudaSPartTest, ARowIsTheSameInAnyCompany) {
  batch_invariant_ = true;
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    const auto gpu = MakeOnGpu(type);
    SPartRig::Ask ask;
    ask.rows = ask.logit_rows = kRowsMax;
    const SPartRig::Outcome all = SPartRig(model_, gpu.get(), 2, 47).Step(ask);
    for (const int rows : {1, 3, 8, 17, 33}) {
      ask.rows = ask.logit_rows = rows;
      const SPartRig::Outcome some = SPartRig(model_, gpu.get(), 2, 47).Step(ask);
      for (size_t layer = 0; layer < some.sent.size(); ++layer) {
        const auto end = all.sent[layer].begin() + static_cast<ptrdiff_t>(some.sent[layer].size());
        EXPECT_TRUE(std::equal(all.sent[layer].begin(), end, some.sent[layer].begin())) << rows << " rows, " << layer;
      }
      for (size_t row = 0; row < some.logits.size(); ++row) EXPECT_EQ(some.logits[row], all.logits[row]) << rows;
    }
  }
}

// More logits than are computed at once.
class CudaSPartTileTest : public CudaSPartTest {
 protected:
  CudaSPartTileTest() : CudaSPartTest(300) {}
};

INSTANTIATE_TEST_SUITE_P(On, CudaSPartTileTest, testing::Values(Gpu::kSoftware, Gpu::kReal), GpuName);

TEST_P(CudaSPartTileTest, ShowsTheLogitsOfEveryRow) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 1, 13), on_cpu(model_, cpu.get(), 1, 13);
  SPartRig::Ask ask;
  ask.rows = ask.logit_rows = 290;
  const SPartRig::Outcome outcome = on_gpu.Step(ask);
  ExpectSame(outcome, on_cpu.Step(ask), 2e-4f);
  ExpectSampled(outcome, ask.sampling);
  ask.show_logits = false;
  ask.rows = ask.logit_rows = 20;
  EXPECT_EQ(on_gpu.Step(ask).samples.size(), 20u);
}

TEST_P(CudaSPartTest, AStageThatIsStartedTooLateEndsInAnErrorAndTheNextStepIsGood) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 2, 17), on_cpu(model_, cpu.get(), 2, 17);
  SPartRig::Ask ask;
  ask.rows = 4;
  for (const int late : {1, 3}) {
    SPartRig::Ask late_ask = ask;
    late_ask.before_start = [&](int stage) {
      if (stage != late) return;
      EXPECT_TRUE(device_->Synchronize().ok());  // it has given up
    };
    EXPECT_TRUE(on_gpu.Step(late_ask).failed);
    EXPECT_THAT(gpu->failure(), HasSubstr("waited 2.0 s in vain"));
    on_cpu.Step(ask);  // the seed goes on
    ExpectSame(on_gpu.Step(ask), on_cpu.Step(ask), 2e-4f);
  }
}

// Homes come and go by a thread that registers memory, which CUDA may let wait for all that runs, and launches for it
// (the software GPU does): the step that runs goes on, and the next one begins when the thread has done.
TEST_P(CudaSPartTest, AreasComeAndGoBetweenSteps) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 2, 29), on_cpu(model_, cpu.get(), 2, 29);
  ArenaOptions area;
  area.bytes = 1 << 20;
  const Arena memory = *Arena::Create(area);
  std::byte* const data = reinterpret_cast<std::byte*>(memory.data());
  for (int round = 0; round < 10; ++round) {
    std::jthread control;
    SPartRig::Ask ask;
    ask.rows = 4;
    ask.before_start = [&](int stage) {
      if (stage != 1) return;
      std::binary_semaphore begun(0);
      control = std::jthread([&] {
        begun.release();
        EXPECT_TRUE(gpu->RegisterAreas(data, memory.bytes()).ok());
        gpu->UnregisterAreas(data);
      });
      begun.acquire();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    const SPartRig::Outcome first = on_gpu.Step(ask);
    SPartRig::Ask next;
    next.micro_batch = 1;
    next.rows = 5;
    const SPartRig::Outcome second = on_gpu.Step(next);
    ask.before_start = [](int) {};
    ExpectSame(first, on_cpu.Step(ask), 2e-4f);
    ExpectSame(second, on_cpu.Step(next), 2e-4f);
  }
}

TEST_P(CudaSPartTest, AStepBeginsWhenNobodyHoldsStepsAnyMore) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig on_gpu(model_, gpu.get(), 2, 31), on_cpu(model_, cpu.get(), 2, 31);
  std::shared_ptr<void> hold = gpu->HoldSteps();
  std::atomic<bool> held = true;
  const std::jthread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held = false;
    hold.reset();
  });
  const SPartRig::Outcome got = on_gpu.Step({});
  EXPECT_FALSE(held);
  ExpectSame(got, on_cpu.Step({}), 2e-4f);
}

TEST_P(CudaSPartTest, AFailedStepHoldsNobodyUp) {
  if (GetParam() == Gpu::kReal) GTEST_SKIP() << "breaks the GPU";
  const auto gpu = MakeOnGpu(ElementType::kF32, /*wait_ns=*/60'000'000'000);
  SPartRig on_gpu(model_, gpu.get(), 2, 37);
  static_cast<SoftDevice*>(device_)->Break("out of order");
  EXPECT_TRUE(on_gpu.Step({}).failed);
  const uint64_t start_ns = NowNs();
  const std::shared_ptr<void> hold = gpu->HoldSteps();
  EXPECT_LT(NowNs() - start_ns, 20'000'000'000u);  // not as long as a step that nobody goes on with
}

std::vector<fd_stage_part> KindsOf(const StageTrace& trace) {
  std::vector<fd_stage_part> kinds;
  for (int i = 0; i < trace.count; ++i) kinds.push_back(trace.parts[i].what);
  return kinds;
}

// All of a stage, in order and within it, although the device has a clock of its own.
TEST_P(CudaSPartTest, SaysWhereTheTimeOfAStageWent) {
  const auto gpu = MakeOnGpu();
  SPartRig rig(model_, gpu.get(), 2, 23);
  for (const int rows : {1, 12, 40, 3}) {
    SPartRig::Ask ask;
    ask.rows = rows;
    ask.micro_batch = rows % kMicroBatches;
    ask.show_logits = rows == 40;  // these make a further launch behind the last stage
    ask.trace_from = 0;
    const SPartRig::Outcome outcome = rig.Step(ask);
    for (int stage = 0; stage <= model_.spec.layers; ++stage) {
      SCOPED_TRACE("rows " + std::to_string(rows) + ", stage " + std::to_string(stage));
      const SPartRig::Outcome::Stage& traced = outcome.stages[static_cast<size_t>(stage)];
      std::vector<fd_stage_part> kinds = {FD_STAGE_SIGNAL};
      if (stage > 0) kinds.insert(kinds.end(), {FD_STAGE_O, FD_STAGE_GATE_UP, FD_STAGE_DOWN});
      kinds.insert(kinds.end(), {stage == model_.spec.layers ? FD_STAGE_LOGITS : FD_STAGE_QKV, FD_STAGE_SIGNAL});
      ASSERT_EQ(KindsOf(traced.trace), kinds);
      uint64_t at_ns = traced.start_ns;
      for (int i = 0; i < traced.trace.count; ++i) {
        const StageTrace::Part& part = traced.trace.parts[i];
        EXPECT_GE(part.start_ns, at_ns) << i;
        EXPECT_GE(part.end_ns, part.start_ns) << i;
        const bool of_layer_before =
            part.what == FD_STAGE_O || part.what == FD_STAGE_GATE_UP || part.what == FD_STAGE_DOWN;
        EXPECT_EQ(part.layer, of_layer_before ? stage - 1 : stage);
        EXPECT_TRUE(part.what == FD_STAGE_SIGNAL || part.end_ns > part.start_ns) << "a GEMM takes some time";
        at_ns = part.end_ns;
      }
      EXPECT_LE(at_ns, traced.end_ns);
    }
  }
}

// Stamps of another step would be lies.
TEST_P(CudaSPartTest, WhoComesInTheMiddleOfAStepSeesThePartsOfTheNext) {
  const auto gpu = MakeOnGpu();
  SPartRig rig(model_, gpu.get(), 2, 29);
  SPartRig::Ask ask;
  ask.rows = 4;
  ask.trace_from = 2;
  for (const SPartRig::Outcome::Stage& stage : rig.Step(ask).stages) EXPECT_EQ(stage.trace.count, 0);
  ask.trace_from = 0;
  for (const SPartRig::Outcome::Stage& stage : rig.Step(ask).stages) EXPECT_GT(stage.trace.count, 0);
  ask.trace_from = -1;
  for (const SPartRig::Outcome::Stage& stage : rig.Step(ask).stages) EXPECT_EQ(stage.trace.count, 0);
}

// Measured alone, the way there writes what the last step wrote and nothing beyond, also where its rows fill no bucket;
// and the next step is none the worse.
TEST_P(CudaSPartTest, WaysAloneAreThoseOfAStep) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig gpu_rig(model_, gpu.get(), /*homes=*/1, 5), cpu_rig(model_, cpu.get(), 1, 5);
  SPartRig::Ask ask;
  ask.rows = 5;
  gpu_rig.Step(ask);
  cpu_rig.Step(ask);
  std::byte* const area = gpu_rig.send_area(0, 0);
  std::vector<std::byte> sent(area, area + 5 * model_.shape.hop_row_bytes());
  sent.resize(sent.size() + model_.shape.hop_row_bytes(), std::byte{0xab});  // left alone
  for (const bool by_copies : {false, true}) {
    std::fill_n(area, sent.size(), std::byte{0xab});
    ASSERT_TRUE(gpu->MeasureCrossing(5, 2, Way::kThere, by_copies).ok());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), area)) << (by_copies ? "by copies" : "by kernels");
    ASSERT_TRUE(gpu->MeasureCrossing(5, 2, Way::kBack, by_copies).ok());
  }
  ExpectSame(gpu_rig.Step(ask), cpu_rig.Step(ask), 2e-5f);
}

// Both micro-batches' next steps are none the worse for what waited in their streams.
TEST_P(CudaSPartTest, GemmsBesideWaitsEnd) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  SPartRig gpu_rig(model_, gpu.get(), 2, 5), cpu_rig(model_, cpu.get(), 2, 5);
  for (int round = 0; round < 3; ++round) {
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      SPartRig::Ask ask;
      ask.micro_batch = micro_batch;
      ask.rows = 5;
      ExpectSame(gpu_rig.Step(ask), cpu_rig.Step(ask), 2e-4f);
    }
    ASSERT_TRUE(gpu->MeasureGemms(5, 2).ok());
    const absl::StatusOr<double> beside = gpu->MeasureGemmsBesideWaits(5, 2);
    ASSERT_TRUE(beside.ok()) << beside.status();
    EXPECT_GT(*beside, 0);
  }
}

TEST_P(CudaSPartTest, ABrokenDeviceEndsInItsOwnWords) {
  const auto gpu = MakeOnGpu();
  SPartRig rig(model_, gpu.get(), 2, 19);
  SPartRig::Ask ask;
  ask.rows = 4;
  EXPECT_FALSE(rig.Step(ask).failed);
  auto* const device = dynamic_cast<SoftDevice*>(device_);
  if (device == nullptr) GTEST_SKIP() << "a real GPU is not broken for a test";
  device->Break("an illegal memory access was encountered");
  EXPECT_TRUE(rig.Step(ask).failed);
  EXPECT_THAT(gpu->failure(), HasSubstr("an illegal memory access was encountered"));
}

// Nor does destroying what was made of it by then.
TEST_P(CudaSPartTest, AGpuThatBeginsNothingEndsTheStart) {
  if (GetParam() == Gpu::kReal) GTEST_SKIP() << "begins what it is given";
  SoftDevice::Options options;
  options.begins_nothing = true;
  const OverlapBounds overlap = {/*wait_ns=*/50'000'000, /*begin_ns=*/50'000'000};
  const absl::Status status =
      TryMakeOnGpu(std::make_unique<SoftDevice>(options), ElementType::kF32, kWaitNs, overlap).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the GPU began nothing in 0.1 s"));
}

// In the middle of a stage. Nobody waits for it after that: its other steps, whoever registers or frees memory, the
// end.
TEST_P(CudaSPartTest, AGpuThatHangsIsGivenUp) {
  if (GetParam() == Gpu::kReal) GTEST_SKIP() << "a real GPU is not made to hang for a test";
  stage_bound_ns_ = 400'000'000;
  auto gpu = MakeOnGpu();
  auto* const device = static_cast<SoftDevice*>(device_);
  void* const block = gpu->sampling_memory()->allocate(100);
  SPartRig rig(model_, gpu.get(), 2, 37);
  SPartRig::Ask ask;
  ask.rows = 4;
  ASSERT_FALSE(rig.Step(ask).failed);
  ask.before_start = [&](int stage) {
    if (stage == 2) device->Hang();
  };
  uint64_t start_ns = NowNs();
  EXPECT_TRUE(rig.Step(ask).failed);
  EXPECT_GE(NowNs() - start_ns, stage_bound_ns_);
  EXPECT_THAT(gpu->failure(), HasSubstr("the GPU is given up: it has not ended stage 2 in 0."));
  start_ns = NowNs();
  for (int step = 0; step < 10; ++step) {
    SPartRig::Ask next;
    next.micro_batch = step % kMicroBatches;
    EXPECT_TRUE(rig.Step(next).failed);
  }
  ArenaOptions area;
  area.bytes = 1 << 20;
  const Arena memory = *Arena::Create(area);
  const absl::Status registered = gpu->RegisterAreas(reinterpret_cast<std::byte*>(memory.data()), memory.bytes());
  EXPECT_TRUE(absl::IsFailedPrecondition(registered)) << registered;
  EXPECT_EQ(gpu->HoldSteps(), nullptr);
  gpu->sampling_memory()->deallocate(block, 100);
  EXPECT_THROW(static_cast<void>(gpu->sampling_memory()->allocate(1 << 26)), std::bad_alloc);
  EXPECT_LT(NowNs() - start_ns, stage_bound_ns_) << "at once";
  EXPECT_THAT(gpu->failure(), HasSubstr("the GPU is given up: it has not ended stage 2 in 0."));
}

// As where CUDA's call that registers memory hangs: what waits for it to return are steps.
TEST_P(CudaSPartTest, StepsThatAreHeldForTooLongEndInAnError) {
  if (GetParam() == Gpu::kReal) GTEST_SKIP() << "gives up the GPU";
  stage_bound_ns_ = 300'000'000;
  const auto gpu = MakeOnGpu();
  SPartRig rig(model_, gpu.get(), 2, 41);
  std::shared_ptr<void> hold = gpu->HoldSteps();
  EXPECT_TRUE(rig.Step({}).failed);
  EXPECT_THAT(gpu->failure(), HasSubstr("given up: CUDA has not registered, pinned or freed memory in 0."));
  hold.reset();
  EXPECT_TRUE(rig.Step({}).failed) << "whatever the call does later";
}

// Whoever wants to hold steps waits for one that runs, however long; a step that waits for both is not lost.
TEST_P(CudaSPartTest, AStepMayWaitLongForAnotherToEnd) {
  stage_bound_ns_ = 300'000'000;
  const auto gpu = MakeOnGpu(ElementType::kF32, /*wait_ns=*/20'000'000'000);
  SPartRig rig(model_, gpu.get(), 2, 43);
  StepTable other;
  other.rows = 1;
  other.tokens = other.positions = {0};
  other.homes = {0};
  other.home_rows = {0};
  other.home_areas.resize(1);  // lost
  std::jthread control;
  SPartRig::Ask ask;
  ask.before_start = [&](int stage) {
    if (stage != 1) return;
    control = std::jthread([&] { gpu->HoldSteps(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gpu->StartStage(/*micro_batch=*/1, /*stage=*/0, other);
    for (const uint64_t start_ns = NowNs(); NowNs() - start_ns < 3 * stage_bound_ns_;) {
      ASSERT_EQ(gpu->PollStage(1), StageState::kRunning);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_FALSE(rig.Step(ask).failed);
  for (int stage = 0; stage <= model_.spec.layers; ++stage) {
    if (stage > 0) gpu->StartStage(1, stage, other);
    StageState state = StageState::kRunning;
    while (state == StageState::kRunning) state = gpu->PollStage(1);
    ASSERT_EQ(state, StageState::kDone) << gpu->failure();
  }
}

TEST(UploadWeightsTest, SaysWhatMemoryItNeedsAndWhatThereIs) {
  ScratchDir scratch;
  const RigModel model(scratch.path() + "/model", ElementType::kF32, kRowsMax, kMicroBatches);
  SoftDevice::Options options;
  options.memory_bytes = 100'000;
  SoftDevice device(options);
  const absl::StatusOr<GpuWeights> weights =
      UploadWeights(model.spec, model.checkpoint, model.weights, UploadOptions(), &device);
  EXPECT_TRUE(absl::IsResourceExhausted(weights.status()));
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr("the weights need 0.00 GiB as f32, the GPU has"));
}

TEST(RowBucketsTest, WasteIsBounded) {
  const std::vector<unsigned> buckets = RowBuckets(3000);
  EXPECT_LE(buckets.size(), 80u);
  for (unsigned rows = 1; rows <= 3000; ++rows) {
    const unsigned bucket = buckets[static_cast<size_t>(BucketFor(buckets, rows))];
    ASSERT_GE(bucket, rows);
    ASSERT_LE(bucket - rows, std::max(7u, rows / 8)) << rows;
  }
}

}  // namespace
}  // namespace fastdecode
