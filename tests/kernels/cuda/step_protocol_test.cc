// What host and GPU tell each other about a step: the words of StepBoard, in the order in which they may be believed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cuda/sample_kernel.h"
#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
constexpr uint64_t kForEver = std::numeric_limits<uint64_t>::max();
constexpr int kHidden = 64, kVocab = 10;
constexpr WireRows kWire = {kF32, 2, 1, 16, 16};
constexpr int kQkv = 4 * 16, kOutput = 2 * 16;  // elements of a row
constexpr unsigned kBucket = 6;
constexpr int kHomes = 2;

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void Store(uint64_t& word, uint64_t value) { std::atomic_ref(word).store(value, std::memory_order_release); }

// A model of one layer without GEMMs: stage 0 sends q, k, v, stage 1 takes o and publishes.
class StepProtocolTest : public testing::Test {
 protected:
  StepProtocolTest() {
    embedding_.FillNormals(&random_, 1);
    norm_.FillNormals(&random_, 1);
    qkv_.FillNormals(&random_, 1);
    for (int i = 0; i < 8; ++i) {
      cosines_.Set(i, 0.6f);
      sines_.Set(i, 0.8f);
    }
  }

  // The host's part of starting a step.
  StepRows& BeginStep(uint64_t first, unsigned rows) {
    step_ = std::make_unique<StepRows>(&random_, rows, kHomes, /*positions=*/1, kF32, kQkv, kOutput);
    board_.step.first = first;
    board_.step.rows = rows;
    board_.step.logit_rows = 1;
    board_.gave_up = 0;
    for (unsigned r = 0; r < rows; ++r) board_rows_[r] = step_->rows[r];
    ++board_.step.areas_version;
    return *step_;
  }
  EmulatorOptions NextOrder() { return {.seed = ++seed_, .blocks_in_flight = 1 + static_cast<unsigned>(seed_ % 6)}; }

  // The GPU's part.
  void Embed() {
    EmulateKernel(EmbedNormArgs{.type = kF32,
                                .bucket = kBucket,
                                .board = &board_,
                                .board_rows = board_rows_,
                                .areas = Areas(),
                                .state = &state_,
                                .rows = rows_,
                                .embedding = embedding_.data(),
                                .norm = {RowNorm::Kind::kRms, norm_.floats(), nullptr, 1e-5f},
                                .hidden = kHidden,
                                .x = x_.floats(),
                                .normed = normed_.data()},
                  NextOrder());
  }
  void Send(unsigned stage, const EmulatorOptions& options) {
    EmulateKernel(RopeSendArgs{kF32, kBucket, &board_, &state_, rows_, areas_, stage, kWire, qkv_.data(), nullptr,
                               cosines_.floats(), sines_.floats(), cosines_.floats(), sines_.floats()},
                  options);
  }
  void Wait(unsigned stage, uint64_t bound_ns) {
    EmulateKernel(WaitArgs{&board_, &state_, stage, bound_ns, {}, Areas()}, NextOrder());
  }
  void Gather() {
    EmulateKernel(GatherOutputsArgs{kF32, kBucket, &state_, rows_, areas_, kWire, attended_.data()}, NextOrder());
  }
  StepAreas Areas() { return {step_->areas.data(), areas_, kHomes}; }
  void Publish(unsigned stage) { EmulateKernel(PublishArgs{&board_, &state_, stage}, NextOrder()); }

  bool AllSent() const {
    for (const auto& area : step_->send) {
      for (size_t i = 0; i < area->size(); ++i) {
        if (std::isnan((*area)[i])) return false;
      }
    }
    return true;
  }
  bool NothingSent() const {
    for (const auto& area : step_->send) {
      if (!area->untouched(0, area->size())) return false;
    }
    return true;
  }

  std::mt19937 random_{3};
  uint64_t seed_ = 0;
  StepBoard board_;
  StepState state_;
  StepRow board_rows_[kBucket], rows_[kBucket];
  StepArea areas_[kHomes];
  std::unique_ptr<StepRows> step_;
  TypedArray embedding_{kF32, kVocab*kHidden}, norm_{kF32, kHidden}, cosines_{kF32, 8}, sines_{kF32, 8};
  TypedArray x_{kF32, kBucket*kHidden}, normed_{kF32, kBucket*kHidden};
  TypedArray qkv_{kF32, kBucket*kQkv}, attended_{kF32, kBucket*kOutput};
};

TEST_F(StepProtocolTest, StepsOverTime) {
  constexpr uint64_t kSteps = 60, kStages = 2;
  std::atomic<uint64_t> begun{0};
  // The GPU: begins a step when the host launches its graph.
  std::thread gpu([&] {
    for (uint64_t s = 1; s <= kSteps; ++s) {
      while (begun.load(std::memory_order_acquire) < s) std::this_thread::yield();
      Embed();
      Send(0, NextOrder());
      Wait(1, kForEver);
      Gather();
      Publish(1);
    }
  });
  const auto wait_for_ready = [&](uint64_t stage) {
    while (Load(board_.ready) < stage) std::this_thread::yield();
    EXPECT_EQ(Load(board_.ready), stage);
  };
  for (uint64_t s = 1; s <= kSteps; ++s) {
    const uint64_t first = s * kStages;
    StepRows& step = BeginStep(first, 1 + s % kBucket);
    begun.store(s, std::memory_order_release);
    wait_for_ready(first);
    EXPECT_TRUE(AllSent());
    for (size_t r = 0; r < step.rows.size(); ++r) {
      const StepRow& place = step.rows[r];
      for (int i = 0; i < kOutput; ++i) step.receive[place.home]->Set(place.home_row * kOutput + i, 100 * r + i);
    }
    Store(board_.release, ReleaseWord(first + 1, board_.step.areas_version));
    wait_for_ready(first + 1);
    for (size_t r = 0; r < step.rows.size(); ++r) {
      for (int i = 0; i < kOutput; ++i) EXPECT_EQ(attended_[r * kOutput + i], 100 * r + i);
    }
  }
  gpu.join();
  EXPECT_EQ(board_.gave_up, 0u);
}

// Whatever order blocks come in: once, and not before all rows are there.
TEST_F(StepProtocolTest, TheLastBlockPublishes) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    BeginStep(10 + trial, static_cast<unsigned>(trial % (kBucket + 1)));
    Embed();
    int published = 0;
    EmulatorOptions options = NextOrder();
    options.on_release = [&](const uint64_t* word) {
      EXPECT_EQ(word, &board_.ready);
      EXPECT_EQ(board_.ready, 10 + trial);
      EXPECT_TRUE(AllSent());
      ++published;
    };
    Send(0, options);
    EXPECT_EQ(published, 1);
    EXPECT_EQ(state_.blocks_over, 0u);
  }
}

TEST_F(StepProtocolTest, AWaitEndsWhenItsStageOrALaterOneIsReleased) {
  BeginStep(20, 2);
  Embed();
  for (const uint64_t release : {21, 22, 500}) {
    Store(board_.release, release);
    Wait(1, 0);
    EXPECT_EQ(state_.gave_up, 0u);
  }
  EXPECT_EQ(board_.gave_up, 0u);
}

// The GPU's own are as old as the last version that it was told of.
TEST_F(StepProtocolTest, AWaitTakesAreasThatHaveChanged) {
  BeginStep(20, 3);
  Embed();
  const std::vector<StepArea> before = step_->areas;
  step_->LoseHome(1);
  Store(board_.release, ReleaseWord(21, board_.step.areas_version));
  Wait(1, kForEver);
  EXPECT_EQ(areas_[1].send, before[1].send);
  Store(board_.release, ReleaseWord(22, board_.step.areas_version + 1));
  Wait(2, kForEver);
  EXPECT_EQ(areas_[0].send, before[0].send);
  EXPECT_EQ(areas_[1].send, nullptr);
  EXPECT_EQ(areas_[1].receive, nullptr);
  EXPECT_EQ(state_.areas_version, board_.step.areas_version + 1);
  EXPECT_EQ(state_.gave_up, 0u);
}

TEST_F(StepProtocolTest, AStepWithAllRowsHereWaitsForNothing) {
  BeginStep(20, 2);
  board_.step.all_here = 1;
  Embed();
  Store(board_.release, 19);
  Wait(1, kForEver);
  EXPECT_EQ(state_.gave_up, 0u);
  BeginStep(30, 2);
  board_.step.all_here = 0;
  Embed();
  Wait(1, /*bound_ns=*/1000);
  EXPECT_EQ(state_.gave_up, 1u) << "the next step waits";
}

TEST_F(StepProtocolTest, AfterAWaitInVainNothingIsSentOrPublished) {
  BeginStep(30, 3);
  Embed();
  Store(board_.release, 30);
  Store(board_.ready, 29);
  Wait(1, /*bound_ns=*/1000);
  EXPECT_EQ(board_.gave_up, 31u);
  EXPECT_EQ(state_.gave_up, 1u);

  Send(1, NextOrder());
  EXPECT_TRUE(NothingSent());
  EXPECT_EQ(state_.blocks_over, 0u);
  Wait(2, kForEver);  // comes back
  EXPECT_EQ(board_.gave_up, 31u) << "the first one counts";
  for (const auto& area : step_->receive) area->FillNormals(&random_, 1);
  Gather();
  for (unsigned i = 0; i < 3 * kOutput; ++i) EXPECT_EQ(attended_[i], 0) << "areas are no longer ours to read";
  Publish(2);
  EXPECT_EQ(board_.ready, 29u);
}

TEST_F(StepProtocolTest, AStepAfterOneThatGaveUpIsAsEver) {
  BeginStep(30, 3);
  Embed();
  Wait(1, /*bound_ns=*/1);
  Send(1, NextOrder());
  ASSERT_EQ(board_.gave_up, 31u);
  BeginStep(40, 4);
  Embed();
  Send(0, NextOrder());
  EXPECT_TRUE(AllSent());
  EXPECT_EQ(board_.ready, 40u);
  Store(board_.release, 41);
  Wait(1, kForEver);
  EXPECT_EQ(board_.gave_up, 0u);
  Publish(1);
  EXPECT_EQ(board_.ready, 41u);
}

// The rows' lists may be others' by then: null pointers would be followed.
TEST_F(StepProtocolTest, AfterAWaitInVainNothingIsSampled) {
  state_ = {.first = 1, .rows = 1, .logit_rows = 1, .gave_up = 1};
  SampledRow sampled = {.token = -7};
  EmulateKernel(SampleRowsArgs{.bucket = 1, .state = &state_, .vocab = kVocab, .out = &sampled}, NextOrder());
  EXPECT_EQ(sampled.token, -7);
  const uint32_t beyond = 1u << 30;
  TypedArray out(kF32, kHidden);
  EmulateKernel(GatherLogitRowsArgs{kF32, 1, &state_, &beyond, 0, normed_.data(), kHidden, out.data()}, NextOrder());
  EXPECT_TRUE(out.untouched(0, kHidden));
}

}  // namespace
}  // namespace fastdecode
