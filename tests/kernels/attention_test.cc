#include "kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string_view>

#include "tests/kernels/paged_sequence.h"
#include "tests/kernels/runnable_kernels.h"

namespace fastdecode {
namespace {

float OutputAt(const AttentionResult& result, ElementType type, size_t i) {
  if (type == ElementType::kF32) {
    float f;
    std::memcpy(&f, &result.o[i * sizeof(f)], sizeof(f));
    return f;
  }
  Bf16 b;
  std::memcpy(&b, &result.o[i * sizeof(b)], sizeof(b));
  return FromBf16(b);
}

// Against the reference, element by element, within the derived bound; the finished o is acc * (1 / sum), correctly
// rounded.
void ExpectNearReference(const PagedSequence& sequence, const AttentionResult& result, int kv_head,
                         const std::vector<double>& expected, const std::vector<double>& bound) {
  const ReferenceAttentionInput& in = sequence.in;
  for (int r = 0; r < in.rows; ++r) {
    for (int g = 0; g < in.group; ++g) {
      for (int d = 0; d < in.head_dim; ++d) {
        const size_t mine = (size_t(r) * in.group + g) * in.head_dim + d;
        const size_t theirs = ((size_t(r) * in.kv_heads + kv_head) * in.group + g) * in.head_dim + d;
        const float inverse = 1 / result.sum[r * in.group + g];
        const float quotient = result.acc[mine] * inverse;
        ASSERT_NEAR(quotient, expected[theirs], bound[theirs]) << "row " << r << " head " << g << " dim " << d;
        const float rounded = sequence.shape.type == ElementType::kF32 ? quotient : FromBf16(ToBf16(quotient));
        ASSERT_EQ(OutputAt(result, sequence.shape.type, mine), rounded) << "row " << r << " head " << g << " dim " << d;
      }
    }
  }
}

// Every ISA near the reference; those that round alike with the same bits, and those of one ISA in any case.
void CheckSequence(PagedSequence& sequence, const AttentionCase& c, uint64_t seed) {
  const std::string_view kOther = "-zen5";
  const std::vector<AttentionKernels> all = RunnableKernels(sequence.shape);
  std::map<bool, std::vector<double>> expected;  // by AreForPrompts
  std::map<bool, PagedSequence::ErrorTerms> terms;
  for (const AttentionKernels& kernels : all) {
    const bool prompts = AreForPrompts(kernels);
    if (expected.contains(prompts)) continue;
    expected[prompts] = ReferenceAttention(sequence.HeldFor(kernels));
    terms[prompts] = sequence.FindErrorTerms(kernels);
  }
  sequence.AppendInRandomPieces(all[0], seed);
  for (int head = 0; head < c.kv_heads; ++head) {
    AttentionResult first;
    std::map<std::string_view, AttentionResult> results;
    for (const AttentionKernels& kernels : all) {
      SCOPED_TRACE(std::string(kernels.name) + " KV head " + std::to_string(head));
      const AttentionResult result = sequence.Attend(kernels, head, 0, sequence.in.rows, c.context);
      const bool prompts = AreForPrompts(kernels);
      const std::vector<double> bound = sequence.ErrorBound(terms[prompts], kernels.p_rounding);
      ASSERT_NO_FATAL_FAILURE(ExpectNearReference(sequence, result, head, expected[prompts], bound));
      if (kernels.attend == all[0].attend) first = result;
      if (kernels.p_rounding == all[0].p_rounding) {
        ASSERT_TRUE(result == first) << "other bits than " << all[0].name;
      }
      std::string_view name = kernels.name;
      if (name.ends_with(kOther)) {
        name.remove_suffix(kOther.size());
        ASSERT_TRUE(results.contains(name) && result == results[name]) << "other bits than " << name;
      }
      results[kernels.name] = result;
    }
  }
}

void CheckCase(const AttentionCase& c, uint64_t seed) {
  SCOPED_TRACE(Describe(c));
  PagedSequence sequence(c, seed);
  CheckSequence(sequence, c, seed);
}

// The axes of the matrix, as indices. Head sizes are 16, 32, .. 256, groups 1, 2, .. 16.
const std::vector<int> kKvHeadAxis = {1, 2, 3};
const std::vector<int> kContextAxis = {1, 31, 32, 33, 511, 512, 513, 1500};
const std::vector<int> kRowAxis = {1, 2, 7, kMaxAttendRows};
const std::vector<int> kWindowAxis = {0, 1, 40, 600};
const std::vector<float> kSoftCapAxis = {0, 3, 50};
const std::vector<PageOrder> kOrderAxis = {PageOrder::kShuffled, PageOrder::kAscending};
constexpr int kAxes = 9;
using CaseIndex = std::array<int, kAxes>;
const CaseIndex kAxisSizes = {std::size(kTypePairs), 16, 16, 3, 8, 4, 4, 3, 2};

AttentionCase CaseAt(const CaseIndex& i) {
  AttentionCase c = {kTypePairs[i[0]].rows, kTypePairs[i[0]].kv, 16 * (i[1] + 1), i[2] + 1,
                     kKvHeadAxis[i[3]],     kContextAxis[i[4]],  kRowAxis[i[5]],  kWindowAxis[i[6]],
                     kSoftCapAxis[i[7]]};
  c.order = kOrderAxis[i[8]];
  return c;
}

// About what a case takes, in products: of attending, and of all else. The shortest contexts count alike, so that not
// all go to the one that tests least.
double WorkOf(const CaseIndex& index) {
  const AttentionCase c = CaseAt(index);
  return 2e6 + 1.0 * std::max(c.context, 33) * c.rows * c.kv_heads * c.group * c.head_dim;
}

using AxisPair = std::array<int, 4>;  // axis, value, another axis, value
template <class Visit>
void ForEachPair(const CaseIndex& index, const Visit& visit) {
  for (int a = 0; a < kAxes; ++a) {
    for (int b = a + 1; b < kAxes; ++b) visit(AxisPair{a, index[a], b, index[b]});
  }
}

std::set<AxisPair> AllPairs() {
  std::set<AxisPair> pairs;
  for (int a = 0; a < kAxes; ++a) {
    for (int b = a + 1; b < kAxes; ++b) {
      for (int i = 0; i < kAxisSizes[a]; ++i) {
        for (int j = 0; j < kAxisSizes[b]; ++j) pairs.insert({a, i, b, j});
      }
    }
  }
  return pairs;
}

// Cases in which every pair of values of any two axes occurs: greedily, of some random candidates, the one with the
// most new pairs for its work. They are as many as there are head sizes times groups, and some.
std::vector<CaseIndex> PairwiseCases() {
  std::mt19937_64 random(1);
  std::set<AxisPair> missing = AllPairs();
  std::vector<CaseIndex> cases;
  while (!missing.empty()) {
    CaseIndex best = {};
    double best_gain = 0;
    for (int candidate = 0; candidate < 50; ++candidate) {
      CaseIndex index;
      for (int a = 0; a < kAxes; ++a) index[a] = random() % kAxisSizes[a];
      const AxisPair wanted = *missing.begin();
      index[wanted[0]] = wanted[1];
      index[wanted[2]] = wanted[3];
      int pairs = 0;
      ForEachPair(index, [&](const AxisPair& pair) { pairs += missing.contains(pair) ? 1 : 0; });
      const double gain = pairs / WorkOf(index);
      if (gain > best_gain) {
        best = index;
        best_gain = gain;
      }
    }
    cases.push_back(best);
    ForEachPair(best, [&](const AxisPair& pair) { missing.erase(pair); });
  }
  return cases;
}

TEST(AttentionTest, PairwiseMatrixIsNearTheReference) {
  uint64_t seed = 100;
  for (const CaseIndex& index : PairwiseCases()) ASSERT_NO_FATAL_FAILURE(CheckCase(CaseAt(index), seed++));
}

// Of a pair of types every combination of head size, group and rows, each in four turns. Run as ctest's
// attention_test_full_*.
class FullMatrixTest : public testing::TestWithParam<int> {};

// Each turn has a window. Contexts, of 8, are 1 further with each head size and group, 2 with the rows, and 3 with the
// turn: 1 and 3 have no factor in common with 16 sizes, 16 groups and 4 turns. So each size, and each group, has every
// context with every window and every number of rows, all equally often; each combination has four contexts, short and
// long ones, in which pages are shuffled twice and ascend twice. That is turned round every 8 sizes and 8 groups, as
// contexts begin again then. KV heads and soft cap are in threes, which have no factor in common with anything else.
CaseIndex FullMatrixCase(int types, int head_size, int group, int rows, int turn) {
  const int number = ((head_size * 16 + group) * 4 + rows) * 4 + turn;
  const int context = (head_size + group + 2 * rows + 3 * turn) % 8;
  const int order = (turn + head_size / 8 + group / 8) % 2;
  return {types, head_size, group, number % 3, context, rows, turn, number / 3 % 3, order};
}

TEST_P(FullMatrixTest, DISABLED_IsNearTheReference) {
  for (const Isa isa : kIsas) {
    if (!IsRunnable(isa)) std::cout << "not run: this CPU lacks " << IsaName(isa) << "\n";
  }
  uint64_t seed = 100000;
  for (int head_size = 0; head_size < 16; ++head_size) {
    for (int group = 0; group < 16; ++group) {
      for (int rows = 0; rows < 4; ++rows) {
        for (int turn = 0; turn < 4; ++turn) {
          const AttentionCase c = CaseAt(FullMatrixCase(GetParam(), head_size, group, rows, turn));
          ASSERT_NO_FATAL_FAILURE(CheckCase(c, seed++));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FullMatrixTest, testing::Range<int>(0, std::size(kTypePairs)), [](const auto& types) {
  const TypePair& pair = kTypePairs[types.param];
  return std::string(ElementName(pair.rows)) + "_" + KvTypeName(pair.kv);
});

// 16 rows of 40 query heads are 40 tiles of AMX, of which two are taken at a time.
TEST(AttentionTest, FortyQueryHeadsShareAKvHead) {
  for (const TypePair& type : kTypePairs) {
    CheckCase({type.rows, type.kv, 64, 40, 1, 300, 16, 0, 0}, 40);
  }
}

TEST(AttentionTest, ScoresMayGrow) {
  for (const TypePair& type : kTypePairs) {
    for (int rows : {1, 4}) {
      const AttentionCase c = {type.rows, type.kv, 80, 4, 1, 450, rows, 0, 0};
      SCOPED_TRACE(Describe(c));
      PagedSequence sequence(c, 11);
      sequence.LetScoresGrow();
      ASSERT_NO_FATAL_FAILURE(CheckSequence(sequence, c, 11));
    }
  }
}

// Blocks that are shorter than a home's give other bits, within the bound of as many more foldings: and so any two cuts
// are no further from each other than both bounds.
TEST(AttentionTest, OtherCutsAreNearTheReference) {
  for (const TypePair& type : kTypePairs) {
    for (const int block_tokens : {32, 96, 480}) {
      const AttentionCase c = {type.rows, type.kv, 64, 3, 1, 700, 7, block_tokens == 480 ? 600 : 0, 0};
      SCOPED_TRACE(Describe(c) + " blocks of " + std::to_string(block_tokens));
      PagedSequence sequence(c, 19);
      if (block_tokens == 96) sequence.LetScoresGrow();
      sequence.block_tokens = block_tokens;
      ASSERT_NO_FATAL_FAILURE(CheckSequence(sequence, c, 19));
      // The test would notice: with the same pages it makes a difference where the cuts are.
      const AttentionKernels kernels = RunnableKernels(sequence.shape)[0];
      const AttentionResult other = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      sequence.block_tokens = kBlockTokens;
      EXPECT_FALSE(sequence.Attend(kernels, 0, 0, c.rows, c.context) == other);
    }
  }
}

// Each token's K and V can be read back through attention: with one dominant score, o is that token's v.
TEST(AttentionTest, HugeScoresPickTheirTokenExactly) {
  for (const TypePair& type : kTypePairs) {
    if (type.kv == KvType::kInt4) continue;  // in 16 steps a score is not 100 larger than the next
    for (double sign : {1.0, -1.0}) {
      AttentionCase c = {type.rows, type.kv, 64, 2, 1, 600, 1, 0, 0};
      c.scale = 1;
      PagedSequence sequence(c, 6);
      // q = (100, 0, ...): scores 100 * k[0], up to +-1e4 and 100 or more apart around the chosen token.
      std::fill(sequence.in.q.begin(), sequence.in.q.end(), 0.0);
      sequence.in.q[0] = sequence.in.q[c.head_dim] = 100;
      for (int chosen : {0, 31, 32, 250, 511, 512, 599}) {
        for (int t = 0; t < c.context; ++t) sequence.in.k[t * c.head_dim] = sign * (t == chosen ? 99 : 1 + t % 97);
        if (sign < 0) sequence.in.k[chosen * c.head_dim] = 0;
        sequence.Encode();
        for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
          sequence.ClearPages(1);
          sequence.Append(kernels, 0, c.context);
          const AttentionResult result = sequence.Attend(kernels, 0, 0, 1, c.context);
          for (int d = 0; d < c.head_dim; ++d) {
            const double v = sequence.HeldFor(kernels).v[chosen * c.head_dim + d];
            const double few_ulps = type.kv == KvType::kInt8 ? std::fabs(v) * 0x1p-22 : 0;  // of w, a 255th, and o
            ASSERT_NEAR(result.acc[d] / result.sum[0], v, few_ulps) << kernels.name << " " << chosen;
          }
        }
      }
    }
  }
}

// acc of one-hot values is p itself: e^(score - max), relatively exact to Exp2's 1.8e-7, twice where the second page
// has the largest score and rescales the first one's, and the scores' rounding.
TEST(AttentionTest, ProbabilitiesAreAccurate) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    AttentionCase c = {ElementType::kF32, KvType::kF32, 64, 1, 1, 64, 1, 0, 0};
    c.scale = 1;
    PagedSequence sequence(c, round);
    const int largest = round % 64;
    const double lag = largest < 32 ? 0 : 6;  // of the first page, more than is let be
    std::fill(sequence.in.q.begin(), sequence.in.q.end(), 0.0);
    std::fill(sequence.in.v.begin(), sequence.in.v.end(), 0.0);
    sequence.in.q[0] = 1;
    const double spread = std::uniform_real_distribution<double>(0.01, 85)(random);
    for (int t = 0; t < 64; ++t) {
      const double below = std::uniform_real_distribution<double>(0, spread)(random) + (t < 32 ? lag : 0);
      sequence.in.k[t * 64] = t == largest ? 0 : -below;
      sequence.in.v[t * 64 + t] = 1;
    }
    sequence.Encode();
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, 64);
      const AttentionResult result = sequence.Attend(kernels, 0, 0, 1, 64);
      for (int t = 0; t < 64; ++t) {
        const double score = sequence.held.k[t * 64], exact = std::exp(score);
        if (score < -79) {
          EXPECT_LE(result.acc[t], exact * 1.001);  // from e^-80 on it is zero
        } else {
          const double exps = lag > 0 && t < 32 ? 2 : 1;
          EXPECT_NEAR(result.acc[t], exact, exact * (exps * 1.8e-7 + 3 * 6e-8 * -score))
              << kernels.name << " " << score;
        }
      }
      EXPECT_EQ(result.acc[largest], 1.0f);
    }
  }
}

TEST(AttentionTest, NanStaysInItsRow) {
  for (const auto& [type, soft_cap] :
       {std::pair(kTypePairs[0], 0.0f), std::pair(kTypePairs[1], 0.0f), std::pair(kTypePairs[1], 9.0f),
        std::pair(kTypePairs[6], 0.0f), std::pair(kTypePairs[6], 9.0f)}) {
    const AttentionCase c = {type.rows, type.kv, 64, 4, 1, 600, 4, 0, soft_cap};
    PagedSequence sequence(c, 12);
    PagedSequence bad(c, 12);
    bad.in.q[(1 * c.group + 2) * c.head_dim + 5] = NAN;
    bad.Encode();
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      bad.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      bad.Append(kernels, 0, c.context);
      const AttentionResult good = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      const AttentionResult result = bad.Attend(kernels, 0, 0, c.rows, c.context);
      for (int i = 0; i < c.rows * c.group * c.head_dim; ++i) {
        if (i / c.head_dim == 1 * c.group + 2) {
          ASSERT_TRUE(std::isnan(OutputAt(result, type.rows, i))) << kernels.name << " " << i;
        } else {
          ASSERT_EQ(OutputAt(result, type.rows, i), OutputAt(good, type.rows, i)) << kernels.name << " " << i;
        }
      }
    }
  }
}

// What is stored may hold one too: whoever sees the token gets it, whoever does not, does not.
TEST(AttentionTest, NanInKOrVOfInt8ReachesThoseWhoSeeIt) {
  for (const bool in_k : {true, false}) {
    const AttentionCase c = {ElementType::kBf16, KvType::kInt8, 64, 2, 1, 600, 4, 0, 0};
    PagedSequence sequence(c, 12);
    (in_k ? sequence.in.k : sequence.in.v)[598 * c.head_dim + 5] = NAN;
    sequence.Encode();
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      const AttentionResult result = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      for (int i = 0; i < c.rows * c.group * c.head_dim; ++i) {
        const bool sees = i / (c.group * c.head_dim) >= 2;  // at 598 and 599
        ASSERT_EQ(std::isnan(OutputAt(result, c.type, i)), sees) << kernels.name << " " << i;
      }
    }
  }
}

// Dims of K that are many times larger than the others, while q is as much smaller there, cost int4 nothing: o is as
// far from attention over the unrounded numbers as without them.
TEST(AttentionTest, OutlierDimsCostInt4Nothing) {
  const AttentionCase c = {ElementType::kF32, KvType::kInt4, 128, 2, 1, 1000, 1, 0, 0};
  std::map<double, double> errors;  // by factor: rms
  for (const double factor : {1.0, 16.0, 256.0}) {
    PagedSequence sequence(c, 15);
    for (const int dim : {3, 20, 50, 97}) {
      for (size_t i = dim; i < sequence.in.k.size(); i += c.head_dim) sequence.in.k[i] *= factor;
      for (size_t i = dim; i < sequence.in.q.size(); i += c.head_dim) sequence.in.q[i] /= factor;
    }
    sequence.Encode();
    const std::vector<double> exact = ReferenceAttention(sequence.in);
    const AttentionKernels kernels = RunnableKernels(sequence.shape)[0];
    sequence.Append(kernels, 0, c.context);
    const AttentionResult result = sequence.Attend(kernels, 0, 0, 1, c.context);
    for (size_t i = 0; i < exact.size(); ++i) {
      errors[factor] += std::pow(OutputAt(result, c.type, i) - exact[i], 2) / static_cast<double>(exact.size());
    }
    errors[factor] = std::sqrt(errors[factor]);
    EXPECT_LE(errors[factor], errors[1] * 1.1) << "factor " << factor;
  }
  EXPECT_GT(errors[1], 0);
}

// An infinity becomes the largest number, and what is finite with that stays finite.
TEST(AttentionTest, AnInfinityInKOfInt4IsANumber) {
  for (const double sign : {1.0, -1.0}) {
    AttentionCase c = {ElementType::kBf16, KvType::kInt4, 64, 2, 1, 600, 1, 0, 0};
    c.scale = 1;
    PagedSequence sequence(c, 16);
    constexpr int kToken = 70, kDim = 5;
    sequence.in.k[kToken * c.head_dim + kDim] = sign * INFINITY;
    for (int h = 0; h < c.group; ++h) {
      for (int d = 0; d < c.head_dim; ++d) sequence.in.q[h * c.head_dim + d] = d == kDim ? 1e-29 : 0;
    }
    sequence.Encode();
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      const AttentionResult result = sequence.Attend(kernels, 0, 0, 1, c.context);
      for (int h = 0; h < c.group; ++h) {
        // Its token's score is 3.39e9, the others' are next to nothing beside that.
        EXPECT_NEAR(result.max[h], sign > 0 ? 4.89e9 : 0, 1e8) << kernels.name;
        EXPECT_GE(result.sum[h], sign > 0 ? .99f : 30.99f) << kernels.name;
      }
      for (const float acc : result.acc) EXPECT_TRUE(std::isfinite(acc)) << kernels.name;
    }
  }
}

// Numbers next to the largest that bf16 holds, of which scales are rounded up: whoever sees them gets a number, whoever
// does not sees nothing of them.
TEST(AttentionTest, TheLargestNumbersStayNumbers) {
  for (const KvType kv : {KvType::kInt8, KvType::kInt4}) {
    for (const double sign : {1.0, -1.0}) {
      const AttentionCase c = {ElementType::kBf16, kv, 64, 2, 1, 600, 4, 0, 0};
      PagedSequence sequence(c, 16), plain(c, 16);
      constexpr int kToken = 598, kDim = 5;  // of the last two rows
      for (const int token : {kToken, 40}) {
        if (kv == KvType::kInt4 && token == kToken) continue;  // in an open page, which is not rounded
        for (int d = 0; d < kDim; ++d) {
          sequence.in.v[token * c.head_dim + d] = sign * (d % 2 ? -INFINITY : 0x1.fcp127);
          sequence.in.k[token * c.head_dim + d] = -sequence.in.v[token * c.head_dim + d];
        }
        for (size_t q = 0; q < sequence.in.q.size(); q += c.head_dim) {
          for (int d = 0; d < kDim; ++d) sequence.in.q[q + d] = plain.in.q[q + d] = 0;
        }
      }
      sequence.Encode();
      plain.Encode();
      for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
        sequence.ClearPages(1);
        sequence.Append(kernels, 0, c.context);
        const AttentionResult result = sequence.Attend(kernels, 0, 0, c.rows, c.context);
        for (const float acc : result.acc) EXPECT_TRUE(std::isfinite(acc)) << kernels.name;
        for (const float max : result.max) EXPECT_TRUE(std::isfinite(max)) << kernels.name;
        if (kv == KvType::kInt4) continue;  // tokens of a page have scales in common
        for (int d = 0; d < kDim; ++d) {
          EXPECT_GT(std::fabs(result.acc[3 * c.group * c.head_dim + d]), 1e30) << kernels.name << " " << d;
        }
      }
    }
  }
}

// A block before a row's window, and a block that the row's position has not reached, are empty; o of nothing is zero.
TEST(AttentionTest, ABlockThatARowDoesNotSeeIsEmpty) {
  for (const TypePair& type : kTypePairs) {
    const AttentionCase c = {type.rows, type.kv, 32, 2, 1, 512, 1, 8, 0};
    PagedSequence sequence(c, 14);
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      for (int position : {600, -20}) {
        sequence.ClearPages(1);
        sequence.Append(kernels, 0, c.context);
        sequence.in.first_row_position = position;
        const AttentionResult result = sequence.Attend(kernels, 0, 0, 1, c.context);
        EXPECT_THAT(result.max, testing::Each(-INFINITY));
        EXPECT_THAT(result.sum, testing::Each(0.0f));
        EXPECT_THAT(result.acc, testing::Each(0.0f));
        EXPECT_THAT(result.o, testing::Each(std::byte{0}));
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode
