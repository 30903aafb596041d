#include "engine/bench/rpart_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One thread, not pinned, and memory for 16 sequences of 512 tokens.
RPartBenchOptions Options() {
  RPartBenchOptions options;
  options.kv_type = KvType::kF32;
  options.heads = 4;
  options.kv_heads = 2;
  options.head_size = 16;
  options.layers = 3;
  options.context = 512;
  options.pool_bytes = 16 * 512 * 3 * 2 * 2 * 16 * sizeof(float);
  options.cores = {-1};
  return options;
}

std::unique_ptr<RPartBench> Make(const RPartBenchOptions& options) {
  absl::StatusOr<std::unique_ptr<RPartBench>> bench = RPartBench::Create(options);
  EXPECT_TRUE(bench.ok()) << bench.status();
  return bench.ok() ? *std::move(bench) : nullptr;
}

TEST(RPartBench, EveryStepReadsAllSequences) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  RPartBenchOptions options = Options();
  options.cores = {-1, -1};
  options.pool_bytes /= 4;
  const std::unique_ptr<RPartBench> bench = Make(options);
  ASSERT_NE(bench, nullptr);
  EXPECT_EQ(bench->sequences(), 4u);
  EXPECT_EQ(bench->contiguous_bytes_mean(), 512 * 2 * 2 * 16 * sizeof(float));
  std::vector<float> first;
  for (int step = 0; step < 3; ++step) {
    const absl::StatusOr<uint64_t> ns = bench->RunStep();
    ASSERT_TRUE(ns.ok()) << ns.status();
    EXPECT_GT(*ns, 0u);
    EXPECT_EQ(bench->kv_bytes_per_step(), options.pool_bytes);
    std::vector<float> o(bench->o().size() / sizeof(float));
    ASSERT_EQ(o.size(), 4u * 4 * 16);
    std::memcpy(o.data(), bench->o().data(), bench->o().size());
    // Means of values in [-1, 1).
    for (const float value : o) EXPECT_TRUE(value != 0 && std::abs(value) < 1) << value;
    if (step == 0) first = o;
    EXPECT_EQ(o, first);
  }
}

TEST(RPartBench, FragmentedMemoryHoldsLessInSmallerPieces) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  RPartBenchOptions options = Options();
  options.pool_bytes *= 8;
  const std::unique_ptr<RPartBench> fresh = Make(options);
  options.fragmented = true;
  const std::unique_ptr<RPartBench> fragmented = Make(options);
  ASSERT_TRUE(fresh != nullptr && fragmented != nullptr);
  EXPECT_EQ(fresh->sequences(), 128u);
  EXPECT_LT(fragmented->sequences(), 128u);
  EXPECT_LT(fragmented->contiguous_bytes_mean(), fresh->contiguous_bytes_mean());
  ASSERT_TRUE(fragmented->RunStep().ok());
  EXPECT_EQ(fragmented->kv_bytes_per_step(), fragmented->sequences() * (options.pool_bytes / 128));
}

TEST(RPartBench, TakesChunksAndContextsThatEndWithinAPage) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  for (const uint32_t rows : {1u, 7u, 40u}) {
    RPartBenchOptions options = Options();
    options.context = 65;
    options.sequences = 5;
    options.rows = rows;
    const std::unique_ptr<RPartBench> bench = Make(options);
    ASSERT_NE(bench, nullptr);
    for (int step = 0; step < 2; ++step) {
      const absl::StatusOr<uint64_t> ns = bench->RunStep();
      ASSERT_TRUE(ns.ok()) << ns.status();
    }
    EXPECT_EQ(bench->kv_bytes_per_step(), 5u * 65 * 3 * 2 * 2 * 16 * sizeof(float));
  }
}

// In parts as at once, with and without tokens before the chunk.
TEST(RPartBench, ChunksInPartsGiveTheSame) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  for (const KvType kv_type : kKvTypes) {
    for (const uint32_t rows : {70u, 38u, 40u}) {
      if (kv_type == KvType::kInt4 && rows == 40) continue;  // cutting back into a page rounds what is left of it
      RPartBenchOptions options = Options();
      options.kv_type = kv_type;
      options.cores = {-1, -1};
      options.context = 70;
      options.sequences = 3;
      options.rows = rows;
      options.of_prompts = rows != 70;
      const std::unique_ptr<RPartBench> bench = Make(options);
      ASSERT_NE(bench, nullptr);
      ASSERT_TRUE(bench->RunStep().ok());
      const std::vector<std::byte> o(bench->o().begin(), bench->o().end());
      std::memset(const_cast<std::byte*>(bench->o().data()), 0, o.size());
      const absl::StatusOr<RPartBench::ChunkTimes> times = bench->RunChunks();
      ASSERT_TRUE(times.ok()) << times.status();
      EXPECT_TRUE(times->append_ns > 0 && times->attend_ns > 0);
      EXPECT_TRUE(o == std::vector<std::byte>(bench->o().begin(), bench->o().end()));
      const uint64_t elements = 3 * 3 * rows * 2 * 2 * 16, element_bytes = kv_type == KvType::kF32 ? 4 : 2;
      if (kv_type <= KvType::kFp16) {
        EXPECT_EQ(bench->appended_bytes_per_step(), 2 * elements * element_bytes);
      }
    }
  }
}

TEST(RPartBench, ASharedPrefixIsThereOnce) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  constexpr uint64_t kTokenBytes = 3 * 2 * 2 * 16 * sizeof(float);
  for (const bool fragmented : {false, true}) {
    RPartBenchOptions options = Options();
    options.cores = {-1, -1};
    options.context = 1100;
    options.shared_prefix = 1024;
    options.fragmented = fragmented;
    const std::unique_ptr<RPartBench> bench = Make(options);
    ASSERT_NE(bench, nullptr);
    // Of 256 pages 32 are shared, and each sequence takes 3 of its own.
    if (!fragmented) {
      EXPECT_EQ(bench->sequences(), 74u);
    }
    for (int step = 0; step < 2; ++step) {
      const absl::StatusOr<uint64_t> ns = bench->RunStep();
      ASSERT_TRUE(ns.ok()) << ns.status();
    }
    EXPECT_EQ(bench->kv_bytes_per_step(), (1024 + bench->sequences() * 76) * kTokenBytes);
  }
}

// 256 pages of 8 KiB a layer, in runs of 32.
TEST(RPartBench, RunsHoldWhatIsNotUsedYet) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  RPartBenchOptions options = Options();
  options.context = 1100;  // 35 pages: a run, and three of another
  for (const uint32_t sequences : {1u, 3u}) {
    options.sequences = sequences;
    const std::unique_ptr<RPartBench> bench = Make(options);
    ASSERT_NE(bench, nullptr);
    ASSERT_TRUE(bench->RunStep().ok());
    EXPECT_EQ(bench->page_use().total, 256u);
    EXPECT_EQ(bench->page_use().used, sequences * 35);
    EXPECT_EQ(bench->page_use().held, sequences * 29);
  }
  // Four sequences hold all the rest; three more live off that.
  options.sequences = 7;
  const std::unique_ptr<RPartBench> bench = Make(options);
  ASSERT_NE(bench, nullptr);
  ASSERT_TRUE(bench->RunStep().ok());
  EXPECT_EQ(bench->page_use().used, 245u);
  EXPECT_LE(bench->page_use().held, 11u);
}

// What a chunk takes counts, though it is gone again behind its step.
TEST(RPartBench, PagesOfAChunkCount) {
  if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  RPartBenchOptions options = Options();
  options.context = options.rows = 200;  // 7 pages: two pieces of 4
  options.of_prompts = true;
  options.sequences = 2;
  const std::unique_ptr<RPartBench> bench = Make(options);
  ASSERT_NE(bench, nullptr);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(bench->RunChunks().ok());
    EXPECT_EQ(bench->page_use().used, 14u);
    EXPECT_EQ(bench->page_use().held, 2u);
  }
}

TEST(RPartBench, RefusesWhatDoesNotFit) {
  const auto error = [](const RPartBenchOptions& options) {
    return std::string(RPartBench::Create(options).status().message());
  };
  RPartBenchOptions options = Options();
  options.sequences = 17;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--sequences: 17"), HasSubstr("room for 16")));
  options = Options();
  options.heads = 5;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--heads: 5"), HasSubstr("--kv-heads 2")));
  options = Options();
  options.head_size = 24;
  EXPECT_THAT(error(options), HasSubstr("--head-size: 24"));
  options = Options();
  options.rows = 513;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--rows: 513"), HasSubstr("--context 512")));
  options = Options();
  options.shared_prefix = 100;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--shared-prefix: 100"), HasSubstr("512")));
  options.shared_prefix = 512;
  EXPECT_THAT(error(options), AllOf(HasSubstr("--shared-prefix: 512"), HasSubstr("--context 512")));
  options = Options();
  options.pool_bytes = 4096;
  EXPECT_THAT(error(options), HasSubstr("--gib"));
}

}  // namespace
}  // namespace fastdecode
