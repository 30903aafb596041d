#include "kernels/cuda/sample_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/sampler.h"
#include "kernels/sampling_math.h"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/guarded_areas.h"

namespace fastdecode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Picks among few values, those that stand more than once more often.
template <class T>
T Choose(std::mt19937* random, std::initializer_list<T> values) {
  return values.begin()[(*random)() % values.size()];
}
float Uniform(std::mt19937* random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(*random);
}

// The float so many places after `value` > 0.
float After(float value, uint64_t places) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) + static_cast<uint32_t>(places));
}

// One row with all that is wanted of it; what SampleRow and SampleArgs point to.
struct Wish {
  std::vector<float> logits;
  SamplingParams params;
  uint64_t position = 0;
  std::vector<uint64_t> prompt_seen;
  std::vector<uint16_t> output_counts;
  std::vector<LogitBias> bias;
  std::vector<int32_t> allowed, banned;
  bool sample = true;

  int vocab() const { return static_cast<int>(logits.size()); }
};

// ---- Rows by lot

// What logits look like: spread out, flat, in few values, next to one another, mostly -inf, one far above the others.
std::vector<float> DrawLogits(std::mt19937* random, int vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  const float scale = Choose(random, {0.01f, 1.0f, 2.0f, 2.0f, 2.0f, 5.0f, 30.0f});
  std::normal_distribution<float> normal(Choose(random, {0.0f, 0.0f, -20.0f, 300.0f}), scale);
  const unsigned kind = (*random)() % 9;
  const float level = Choose(random, {0.0f, -7.5f, 1e-3f});
  for (float& logit : logits) {
    logit = normal(*random);
    if (kind == 0) logit = level;
    if (kind == 1) logit = static_cast<float>((*random)() % 5) - 2;
    if (kind == 2) logit = After(1.5f, (*random)() % 40);
    if (kind == 3 && (*random)() % 20 != 0) logit = -kInfinity;
    if (kind == 4) logit = Choose(random, {0.0f, -0.0f, -1e-20f, -0.25f});
  }
  if (kind == 5) logits[(*random)() % logits.size()] += Choose(random, {10.0f, 100.0f, 3e38f});
  if (kind == 6) logits[(*random)() % logits.size()] = -kInfinity;
  if ((*random)() % 40 == 0) logits[(*random)() % logits.size()] = Choose(random, {NAN, -NAN, kInfinity});
  if ((*random)() % 60 == 0) std::fill(logits.begin(), logits.end(), -kInfinity);
  return logits;
}

SamplingParams DrawParams(std::mt19937* random, int vocab) {
  SamplingParams params;
  params.temperature = Choose(random, {0.0f, 0.01f, 0.7f, 1.0f, 1.0f, 1.0f, 2.5f, 100.0f});
  params.top_k = Choose(random, {0, 0, 0, 1, 5, 20, 50, 300, 1000, 3000, vocab / 2, vocab - 1, vocab, 2147483647});
  params.top_p = Choose(random, {1.0f, 1.0f, 0.99f, 0.95f, 0.9f, 0.5f, 0.05f, 1e-6f});
  params.min_p = Choose(random, {0.0f, 0.0f, 0.0f, 0.0f, 1e-14f, 1e-6f, 0.02f, 0.3f, 1.0f});
  params.seed = (*random)() | uint64_t{(*random)()} << 32;
  params.logprobs = Choose(random, {-1, -1, -1, 0, 1, 5, 20});
  return params;
}

void DrawChanges(std::mt19937* random, Wish* wish) {
  const auto vocab = static_cast<unsigned>(wish->vocab());
  const auto some = [&](unsigned one_in) { return (*random)() % one_in == 0; };
  if (some(3)) wish->params.repetition_penalty = Choose(random, {0.5f, 1.1f, 1.3f, 100.0f});
  if (some(3)) wish->params.presence_penalty = Uniform(random, -2, 2);
  if (some(3)) wish->params.frequency_penalty = Uniform(random, -2, 2);
  for (unsigned i = 0; i < 40; ++i) {
    const unsigned token = (*random)() % vocab;
    if (some(2)) wish->prompt_seen[token / 64] |= uint64_t{1} << (token % 64);
    if (some(2))
      wish->output_counts[(*random)() % vocab] = static_cast<uint16_t>(some(10) ? 65535 : 1 + (*random)() % 5);
  }
  const unsigned one_in = 1 + vocab / 20;
  const bool biases = some(3), bans = some(3), allows = some(4);
  for (unsigned token = 0; token < vocab; ++token) {
    const auto id = static_cast<int32_t>(token);
    if (biases && some(one_in)) wish->bias.push_back({id, Choose(random, {-100.0f, 100.0f, Uniform(random, -3, 3)})});
    if (bans && some(one_in)) wish->banned.insert(wish->banned.end(), 1 + (*random)() % 2, id);
    if (allows && some(one_in)) wish->allowed.insert(wish->allowed.end(), 1 + (*random)() % 2, id);
  }
  std::shuffle(wish->banned.begin(), wish->banned.end(), *random);
  std::shuffle(wish->allowed.begin(), wish->allowed.end(), *random);
}

Wish DrawWish(std::mt19937* random, int vocab) {
  Wish wish;
  wish.logits = DrawLogits(random, vocab);
  wish.params = DrawParams(random, vocab);
  wish.position = (*random)();
  wish.prompt_seen.resize(static_cast<size_t>(vocab + 63) / 64);
  wish.output_counts.resize(static_cast<size_t>(vocab));
  if ((*random)() % 3 == 0) DrawChanges(random, &wish);
  wish.sample = (*random)() % 30 != 0;
  return wish;
}

// ---- The kernel, and what it must agree with

std::vector<SampledRow> Emulated(const std::vector<Wish>& wishes, unsigned first, unsigned bucket, uint64_t seed) {
  const int vocab = wishes[0].vocab();
  std::vector<SampleRow> rows;
  const GuardedAreas logits(bucket * static_cast<size_t>(vocab) * sizeof(float), 1, Flush::kEnd);
  for (const Wish& wish : wishes) {
    const size_t i = rows.size();
    if (i >= first && i < first + bucket) {
      std::copy(wish.logits.begin(), wish.logits.end(), logits.floats() + (i - first) * wish.logits.size());
    }
    rows.push_back({.sample = wish.sample,
                    .params = wish.params,
                    .position = wish.position,
                    .prompt_seen = wish.prompt_seen.data(),
                    .output_counts = wish.output_counts.data(),
                    .bias = wish.bias.data(),
                    .allowed = wish.allowed.data(),
                    .banned = wish.banned.data(),
                    .bias_count = static_cast<uint32_t>(wish.bias.size()),
                    .allowed_count = static_cast<uint32_t>(wish.allowed.size()),
                    .banned_count = static_cast<uint32_t>(wish.banned.size())});
  }
  const GuardedAreas scratch(bucket * SampleScratchBytes(vocab), 1, Flush::kEnd);
  const StepState state = {.first = 1, .rows = 1, .logit_rows = static_cast<uint32_t>(rows.size())};
  std::vector<SampledRow> sampled(rows.size(), {.token = -100, .top_logprobs = -100});
  EmulateKernel(SampleRowsArgs{.bucket = bucket,
                               .state = &state,
                               .first = first,
                               .rows = rows.data(),
                               .logits = logits.floats(),
                               .vocab = vocab,
                               .scratch = scratch.at(),
                               .out = sampled.data()},
                {.seed = seed, .blocks_in_flight = 1 + static_cast<unsigned>(seed % 3)});
  return sampled;
}

std::string Describe(const Wish& wish) {
  const SamplingParams& p = wish.params;
  return testing::PrintToString(std::vector<double>{p.temperature, p.top_p, p.min_p, p.repetition_penalty}) +
         " = temperature, top_p, min_p, repetition penalty; top_k " + std::to_string(p.top_k) + ", logprobs " +
         std::to_string(p.logprobs) + ", seed " + std::to_string(p.seed) + ", position " +
         std::to_string(wish.position) + ", bias " + std::to_string(wish.bias.size()) + ", allowed " +
         std::to_string(wish.allowed.size()) + ", banned " + std::to_string(wish.banned.size());
}

// Bit for bit.
void ExpectAsSampled(const Wish& wish, const SampledRow& kernel, SampleScratch* scratch) {
  const TokenHistory history = {const_cast<uint64_t*>(wish.prompt_seen.data()),
                                const_cast<uint16_t*>(wish.output_counts.data())};
  TokenLogprob top[kMaxLogprobs];
  const SampleResult expected = Sample({.logits = wish.logits.data(),
                                        .vocab = wish.vocab(),
                                        .params = &wish.params,
                                        .position = wish.position,
                                        .history = &history,
                                        .bias = wish.bias,
                                        .allowed = wish.allowed,
                                        .banned = wish.banned,
                                        .scratch = scratch,
                                        .top_logprobs = top});
  ASSERT_EQ(kernel.outcome, expected.outcome);
  ASSERT_EQ(kernel.token, expected.token);
  ASSERT_EQ(std::bit_cast<uint32_t>(kernel.logprob), std::bit_cast<uint32_t>(expected.logprob));
  ASSERT_EQ(kernel.top_logprobs, expected.top_logprobs);
  for (int i = 0; i < expected.top_logprobs; ++i) {
    ASSERT_EQ(kernel.top[i].token, top[i].token) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(kernel.top[i].logprob), std::bit_cast<uint32_t>(top[i].logprob)) << i;
  }
}

void ExpectAllAsSampled(const std::vector<Wish>& wishes, unsigned first, unsigned bucket, uint64_t seed) {
  SampleScratch scratch(wishes[0].vocab());
  const std::vector<SampledRow> sampled = Emulated(wishes, first, bucket, seed);
  for (size_t i = 0; i < wishes.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "row " << i << ", vocab " << wishes[i].vocab() << ": " << Describe(wishes[i]));
    if (i < first || i >= first + bucket || !wishes[i].sample) {
      EXPECT_EQ(sampled[i].token, -100) << "not asked for";
    } else {
      ASSERT_NO_FATAL_FAILURE(ExpectAsSampled(wishes[i], sampled[i], &scratch));
    }
  }
}

// `rows` rows by lot, a launch at a time.
void ExpectRandomRows(int vocab, int rows, uint32_t seed) {
  std::mt19937 random(seed);
  for (int done = 0; done < rows && !testing::Test::HasFatalFailure();) {
    std::vector<Wish> wishes;
    const unsigned first = random() % 3, bucket = 1 + random() % 20;
    const unsigned count = first + 1 + random() % (bucket + 1);
    while (wishes.size() < count) wishes.push_back(DrawWish(&random, vocab));
    ExpectAllAsSampled(wishes, first, bucket, random());
    done += static_cast<int>(std::min(count - first, bucket));
  }
}

TEST(SampleKernelTest, SmallVocabularies) {
  for (const int vocab : {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 100}) ExpectRandomRows(vocab, 1000, 1 + vocab);
}
TEST(SampleKernelTest, SeveralWarps) {
  for (const int vocab : {129, 256, 300}) ExpectRandomRows(vocab, 3000, 2);
}
TEST(SampleKernelTest, Vocab1000) { ExpectRandomRows(1000, 700, 4); }
TEST(SampleKernelTest, Vocab1023) { ExpectRandomRows(1023, 200, 5); }
TEST(SampleKernelTest, Vocab5000) { ExpectRandomRows(5000, 100, 6); }
TEST(SampleKernelTest, Vocab32000) { ExpectRandomRows(32000, 30, 7); }
TEST(SampleKernelTest, Vocab128256) { ExpectRandomRows(128256, 8, 8); }
TEST(SampleKernelTest, LargestVocab) { ExpectRandomRows(1 << kVocabBits, 2, 9); }

// Rows whose cut no short list holds: ties everywhere, logits that are neighbours, far more tokens kept than listed.
TEST(SampleKernelTest, FlatRows) {
  constexpr int kFlatVocab = 6000;
  std::mt19937 random(12);
  std::vector<Wish> wishes;
  for (int trial = 0; trial < 60; ++trial) {
    Wish wish = DrawWish(&random, kFlatVocab);
    wish.sample = true;
    for (float& logit : wish.logits) {
      if (trial % 4 == 0) logit = 2;
      if (trial % 4 == 1) logit = After(2, random() % 9);
      if (trial % 4 == 2) logit = Uniform(&random, 0, 0.01f);
      if (trial % 4 == 3) logit = random() % 2 == 0 ? 2.0f : -30.0f;
    }
    wish.params.temperature = Choose(&random, {0.1f, 1.0f, 5.0f});
    wish.params.top_k = Choose(&random, {0, 0, 1, 1023, 1024, 1025, 3000, 5999});
    wish.params.top_p = Choose(&random, {1.0f, 0.999f, 0.6f, 0.1f, 1e-4f});
    wish.params.min_p = Choose(&random, {0.0f, 0.0f, 0.9999f, 0.5f});
    wishes.push_back(std::move(wish));
  }
  ExpectAllAsSampled(wishes, 0, static_cast<unsigned>(wishes.size()), 5);
}

// ---- Arithmetic that only GPUs use, or that std::log was used for

TEST(SamplingMathTest, WeightsWithoutDoublePrecisionAreTheSame) {
  EXPECT_EQ(FixByShifting(0), 0u);
  EXPECT_EQ(FixByShifting(1), uint64_t{1} << kWeightBits);
  const uint32_t one = std::bit_cast<uint32_t>(1.0f), least = std::bit_cast<uint32_t>(0x1p-60f);
  for (uint32_t bits = least; bits <= one; bits += 97) {
    const float e = std::bit_cast<float>(bits);
    ASSERT_EQ(FixByShifting(e), FixByAddition(e)) << e;
  }
  // Ties, and what is next to them.
  for (int exponent = -60; exponent < 0; ++exponent) {
    for (uint32_t mantissa = 0; mantissa < 64; ++mantissa) {
      for (const int offset : {-1, 0, 1}) {
        const uint32_t bits = std::bit_cast<uint32_t>(std::ldexp(1.0f + static_cast<float>(mantissa) / 64, exponent));
        const float e = std::bit_cast<float>(bits + static_cast<uint32_t>(offset));
        ASSERT_EQ(FixByShifting(e), FixByAddition(e)) << e;
      }
    }
  }
}

TEST(SamplingMathTest, LogOfWeights) {
  EXPECT_EQ(LogOfWeights(uint64_t{1} << kWeightBits), 0);
  std::mt19937_64 random(1);
  const uint64_t least = uint64_t{1} << kWeightBits;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t total = least + random() % (least << (random() % (kVocabBits + 1)));
    const double expected = static_cast<double>(std::log(std::ldexp(static_cast<long double>(total), -kWeightBits)));
    ASSERT_NEAR(LogOfWeights(total), expected, 1e-14) << total;
  }
  EXPECT_NEAR(LogOfWeights(uint64_t{1} << (kWeightBits + kVocabBits)), kVocabBits * std::log(2.0), 1e-14);
}

}  // namespace
}  // namespace fastdecode
