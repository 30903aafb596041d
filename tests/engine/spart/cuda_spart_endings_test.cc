// Steps that fail, wait for each other or for a GPU that is broken: nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

#include "numa/arena.h"
#include "numa/clock.h"
#include "tests/engine/spart/cuda_spart_fixture.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

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
    EXPECT_THAT(gpu->failure(), HasSubstr("waited 2.0 s (--gpu-wait-ms) in vain"));
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
        EXPECT_TRUE(gpu->areas()->RegisterAreas(data, memory.bytes()).ok());
        gpu->areas()->UnregisterAreas(data);
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
  std::shared_ptr<void> hold = gpu->areas()->HoldSteps();
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
  stage_bound_ns_ = 60'000'000'000;
  const auto gpu = MakeOnGpu();
  SPartRig on_gpu(model_, gpu.get(), 2, 37);
  SPartRig::Ask ask;
  ask.before_start = [&](int stage) {
    if (stage == 1) {
      EXPECT_TRUE(device_->Synchronize().ok());  // it has given up
    }
  };
  EXPECT_TRUE(on_gpu.Step(ask).failed);
  const uint64_t start_ns = NowNs();
  EXPECT_NE(gpu->areas()->HoldSteps(), nullptr);
  EXPECT_LT(NowNs() - start_ns, stage_bound_ns_);  // not as long as a step that nobody goes on with
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
  // What of the step still runs may write pages that others have by then: nothing is begun any more, and nobody waits.
  device->Break("");
  EXPECT_TRUE(rig.Step(ask).failed);
  EXPECT_EQ(gpu->areas()->HoldSteps(), nullptr);
  EXPECT_THAT(gpu->failure(), HasSubstr("an illegal memory access was encountered")) << "still";
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
  stage_bound_ns_ = 2'000'000'000;
  auto gpu = MakeOnGpu(ElementType::kF32, /*wait_ns=*/60'000'000'000);
  auto* const device = static_cast<SoftDevice*>(device_);
  void* const block = gpu->sampling_memory()->allocate(100);
  SPartRig rig(model_, gpu.get(), 2, 37);
  SPartRig::Ask ask;
  ask.rows = 4;
  ask.patient = true;
  ASSERT_FALSE(rig.Step(ask).failed);
  ask.before_start = [&](int stage) {
    if (stage != 2) return;
    device->Hang();
    ask.patient = false;
  };
  const uint64_t start_ns = NowNs();
  EXPECT_TRUE(rig.Step(ask).failed);
  EXPECT_GE(NowNs() - start_ns, stage_bound_ns_);
  EXPECT_THAT(gpu->failure(), HasSubstr("the GPU is given up: it has not ended stage 2 in"));
  for (int step = 0; step < 10; ++step) {
    SPartRig::Ask next;
    next.micro_batch = step % kMicroBatches;
    EXPECT_TRUE(rig.Step(next).failed);
  }
  ArenaOptions area;
  area.bytes = 1 << 20;
  const Arena memory = *Arena::Create(area);
  const absl::Status registered = gpu->areas()->RegisterAreas(reinterpret_cast<std::byte*>(memory.data()), memory.bytes());
  EXPECT_TRUE(absl::IsFailedPrecondition(registered)) << registered;
  EXPECT_EQ(gpu->areas()->HoldSteps(), nullptr);
  gpu->sampling_memory()->deallocate(block, 100);
  void* const large = gpu->sampling_memory()->allocate(1 << 26);
  std::memset(large, 1, 1 << 26);
  gpu->sampling_memory()->deallocate(large, 1 << 26);
  EXPECT_THAT(gpu->failure(), HasSubstr("the GPU is given up: it has not ended stage 2 in")) << "still";
}

// As where CUDA's call that registers memory hangs: what waits for it to return are steps.
TEST_P(CudaSPartTest, StepsThatAreHeldForTooLongEndInAnError) {
  if (GetParam() == Gpu::kReal) GTEST_SKIP() << "gives up the GPU";
  stage_bound_ns_ = 1'000'000'000;
  const auto gpu = MakeOnGpu();
  SPartRig rig(model_, gpu.get(), 2, 41);
  std::shared_ptr<void> hold = gpu->areas()->HoldSteps();
  EXPECT_TRUE(rig.Step({}).failed);
  EXPECT_THAT(gpu->failure(), HasSubstr("given up: CUDA has not registered, pinned or freed memory in"));
  hold.reset();
  EXPECT_TRUE(rig.Step({}).failed) << "whatever the call does later";
}

// A step of one row, whose home is lost.
StepTable TableOfOneRow() {
  StepTable table;
  table.rows = 1;
  table.tokens = table.positions = {0};
  table.homes = {0};
  table.home_rows = {0};
  table.home_areas.resize(1);
  return table;
}

// From stage 0 on, which was started.
void ExpectToEnd(CudaSPart* gpu, int micro_batch, StepTable* table) {
  for (int stage = 0; stage <= gpu->layers(); ++stage) {
    if (stage > 0) gpu->StartStage(micro_batch, stage, *table);
    ASSERT_EQ(AwaitPatiently(gpu, micro_batch), StageState::kDone) << gpu->failure();
  }
}

// Whoever wants to hold steps waits for one that runs, however long; a step that waits for both is not lost.
TEST_P(CudaSPartTest, AStepMayWaitLongForAnotherToEnd) {
  stage_bound_ns_ = 2'000'000'000;
  const auto gpu = MakeOnGpu(ElementType::kF32, /*wait_ns=*/60'000'000'000);
  SPartRig rig(model_, gpu.get(), 2, 43);
  StepTable other = TableOfOneRow();
  std::jthread control;
  SPartRig::Ask ask;
  ask.patient = true;
  ask.before_start = [&](int stage) {
    if (stage != 1) return;
    control = std::jthread([&] { gpu->areas()->HoldSteps(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gpu->StartStage(/*micro_batch=*/1, /*stage=*/0, other);
    for (const uint64_t start_ns = NowNs(); NowNs() - start_ns < stage_bound_ns_ + stage_bound_ns_ / 4;) {
      ASSERT_EQ(gpu->PollStage(1), StageState::kRunning);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_FALSE(rig.Step(ask).failed);
  ExpectToEnd(gpu.get(), 1, &other);
}

// Nobody looked: it may have been stopped, or its machine.
TEST_P(CudaSPartTest, AProcessThatStoodStillGivesNothingUp) {
  stage_bound_ns_ = 1'000'000'000;
  const auto gpu = MakeOnGpu(ElementType::kF32, /*wait_ns=*/60'000'000'000);
  StepTable table = TableOfOneRow();
  std::shared_ptr<void> hold = gpu->areas()->HoldSteps();
  gpu->StartStage(0, 0, table);
  std::this_thread::sleep_for(std::chrono::nanoseconds(stage_bound_ns_ + stage_bound_ns_ / 4));
  EXPECT_EQ(gpu->PollStage(0), StageState::kRunning);
  hold.reset();
  ExpectToEnd(gpu.get(), 0, &table);
}

}  // namespace
}  // namespace fastdecode
