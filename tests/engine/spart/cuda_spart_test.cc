// CudaSPart on the software GPU, and on a real one where there is one: what it computes is what CpuSPart computes.
#include "engine/bench/cuda_probe.h"
#include "engine/spart/cuda/cuda_spart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "engine/spart/cuda/row_buckets.h"
#include "tests/engine/spart/cuda_spart_fixture.h"
#include "tests/logprob_check.h"

namespace fastdecode {

// Not in an unnamed namespace: its tests are in two files.
INSTANTIATE_TEST_SUITE_P(On, CudaSPartTest, testing::Values(Gpu::kSoftware, Gpu::kReal), GpuName);

namespace {

using ::testing::HasSubstr;

// The tokens, and what is said of their probabilities, are those that the CPU's sampler has for the GPU's logits.
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
    EXPECT_EQ(outcome.samples[i].logprob, expected.logprob);
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
    ask.sampling.logprobs = 0;
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

// As for the log-probabilities of a prompt's tokens: more rows are sampled than there are sequences.
TEST_P(CudaSPartTileTest, SaysOfEveryRowHowLikelyATokenIsAndWhichAreTheMost) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  for (const int top : {0, 20}) {
    SPartRig::Ask ask;
    ask.sampling.temperature = 0;
    ask.sampling.logprobs = top;
    for (const int rows : {1, 40, 290}) {
      ask.rows = ask.logit_rows = rows;
      ask.allowed.clear();
      for (int i = 0; i < rows; ++i) ask.allowed.push_back((i * 37 + 11) % model_.spec.vocab);
      ask.show_logits = true;
      const SPartRig::Outcome shown = SPartRig(model_, gpu.get(), 1, 13).Step(ask);
      ask.show_logits = false;
      for (SPart* spart : std::initializer_list<SPart*>{gpu.get(), cpu.get()}) {
        const SPartRig::Outcome outcome = SPartRig(model_, spart, 1, 13).Step(ask);
        for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
          ASSERT_EQ(outcome.samples[i].outcome, SampleOutcome::kToken);
          ASSERT_EQ(outcome.samples[i].token, ask.allowed[i]) << rows << " rows, " << i;
          ASSERT_NEAR(outcome.samples[i].logprob, shown.samples[i].logprob, 1e-3);
          ASSERT_EQ(outcome.most_likely[i].size(), static_cast<size_t>(top));
        }
      }
      for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
        ASSERT_NO_FATAL_FAILURE(
            CheckLogprobs(shown.logits[i], ask.allowed[i], shown.samples[i].logprob, shown.most_likely[i]));
      }
    }
  }
}

std::vector<StagePart> KindsOf(const StageTrace& trace) {
  std::vector<StagePart> kinds;
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
      std::vector<StagePart> kinds = {kStageSignal};
      if (stage > 0) kinds.insert(kinds.end(), {kStageO, kStageGateUp, kStageDown});
      kinds.insert(kinds.end(), {stage == model_.spec.layers ? kStageLogits : kStageQkv, kStageSignal});
      ASSERT_EQ(KindsOf(traced.trace), kinds);
      uint64_t at_ns = traced.start_ns;
      for (int i = 0; i < traced.trace.count; ++i) {
        const StageTrace::Part& part = traced.trace.parts[i];
        EXPECT_GE(part.start_ns, at_ns) << i;
        EXPECT_GE(part.end_ns, part.start_ns) << i;
        const bool of_layer_before =
            part.what == kStageO || part.what == kStageGateUp || part.what == kStageDown;
        EXPECT_EQ(part.layer, of_layer_before ? stage - 1 : stage);
        EXPECT_TRUE(part.what == kStageSignal || part.end_ns > part.start_ns) << "a GEMM takes some time";
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
  CudaProbe probe(gpu.get());
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
    ASSERT_TRUE(probe.MeasureCrossing(5, 2, Way::kThere, by_copies).ok());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), area)) << (by_copies ? "by copies" : "by kernels");
    ASSERT_TRUE(probe.MeasureCrossing(5, 2, Way::kBack, by_copies).ok());
  }
  ExpectSame(gpu_rig.Step(ask), cpu_rig.Step(ask), 2e-5f);
}

// Both micro-batches' next steps are none the worse for what waited in their streams.
TEST_P(CudaSPartTest, GemmsBesideWaitsEnd) {
  const auto gpu = MakeOnGpu();
  const auto cpu = MakeOnCpu();
  CudaProbe probe(gpu.get());
  SPartRig gpu_rig(model_, gpu.get(), 2, 5), cpu_rig(model_, cpu.get(), 2, 5);
  for (int round = 0; round < 3; ++round) {
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      SPartRig::Ask ask;
      ask.micro_batch = micro_batch;
      ask.rows = 5;
      ExpectSame(gpu_rig.Step(ask), cpu_rig.Step(ask), 2e-4f);
    }
    ASSERT_TRUE(probe.MeasureGemms(5, 2).ok());
    const absl::StatusOr<double> beside = probe.MeasureGemmsBesideWaits(5, 2);
    ASSERT_TRUE(beside.ok()) << beside.status();
    EXPECT_GT(*beside, 0);
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
