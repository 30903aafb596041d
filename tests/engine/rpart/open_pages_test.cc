// Attention over KV of 4 bits, whose last page is open: however a sequence came to its tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/rpart/hop_rig.h"

namespace fastdecode {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{24} << 20;
constexpr uint32_t kTokens = 600;  // more than a block
constexpr uint64_t kContent = 7;

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t group;
  uint32_t sliding_window;
  uint32_t windowed = kAllLayers;  // layers
};

// One sequence's rows, [layer][row]; those that are to be known by number.
using Rows = std::vector<std::vector<std::byte>>;

class OpenPagesTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  }
  RPartShape shape() const {
    const Variant& variant = GetParam();
    return HopShape(variant.type, variant.kv_type, variant.group, variant.sliding_window, variant.windowed);
  }
  size_t row_bytes() const { return shape().reply_row_bytes(); }

  static std::vector<uint32_t> Portions(uint32_t first, uint32_t each, uint32_t tokens = kTokens) {
    std::vector<uint32_t> portions(1, first);
    for (uint32_t sum = first; sum < tokens; sum += portions.back()) portions.push_back(std::min(each, tokens - sum));
    return portions;
  }
  static std::vector<uint32_t> RandomPortions(uint64_t seed, uint32_t most) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> portions;
    for (uint32_t sum = 0; sum < kTokens; sum += portions.back()) {
      portions.push_back(std::min<uint32_t>(1 + random() % most, kTokens - sum));
    }
    return portions;
  }

  // Goes on with the sequence in these portions.
  Rows Append(HopRig* rig, uint64_t id, const std::vector<uint32_t>& portions) const {
    rig->Make(id);
    Rows rows(kLayers);
    for (const uint32_t portion : portions) {
      const Rows step = Step(rig, {id, portion, kContent});
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        rows[layer].insert(rows[layer].end(), step[layer].begin(), step[layer].end());
      }
    }
    return rows;
  }
  Rows Step(HopRig* rig, const Ask& ask) const { return Split(rig->Step({ask}).o[ask.sequence]); }
  static Rows Split(const std::vector<std::byte>& o) {
    Rows rows(kLayers);
    const ptrdiff_t bytes = static_cast<ptrdiff_t>(o.size() / kLayers);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      rows[layer].assign(o.begin() + layer * bytes, o.begin() + (layer + 1) * bytes);
    }
    return rows;
  }
  Rows Part(const Rows& rows, uint32_t first, uint32_t end) const {
    Rows part;
    for (const std::vector<std::byte>& layer : rows) {
      part.emplace_back(layer.begin() + static_cast<ptrdiff_t>(first * row_bytes()),
                        layer.begin() + static_cast<ptrdiff_t>(end * row_bytes()));
    }
    return part;
  }
  // All of the sequence by one thread, token by token.
  Rows Expected(uint32_t tokens = kTokens) const {
    HopRig rig(shape(), 1, kPoolBytes);
    return Append(&rig, 1, Portions(1, 1, tokens));
  }

  float ElementAt(const std::vector<std::byte>& bytes, size_t i) const {
    if (GetParam().type == ElementType::kF32) {
      float x;
      std::memcpy(&x, &bytes[i * sizeof(x)], sizeof(x));
      return x;
    }
    Bf16 x;
    std::memcpy(&x, &bytes[i * sizeof(x)], sizeof(x));
    return FromBf16(x);
  }
  // K and V are in [-1, 1), so that a page that was closed and reopened has them with an error of up to 1/15, 0.04 rms.
  // Of a score that is 0.3 * sqrt(32) * 0.04 times the 0.58 of q, that is 0.04, too; and o is a mean of V. Other tokens
  // than these would be 0.58 off, or 0.2 in the mean of ten.
  void ExpectClose(const Rows& rows, const Rows& expected) const {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_EQ(rows[layer].size(), expected[layer].size());
      const size_t count = rows[layer].size() / shape().element_bytes();
      double squares = 0;
      for (size_t i = 0; i < count; ++i) {
        const double difference = double{ElementAt(rows[layer], i)} - ElementAt(expected[layer], i);
        ASSERT_TRUE(std::isfinite(difference));
        squares += difference * difference;
      }
      EXPECT_LT(std::sqrt(squares / static_cast<double>(count)), 0.06) << "layer " << layer;
    }
  }
};

TEST_P(OpenPagesTest, PortionsChangeNoBit) {
  const Rows expected = Expected();
  std::vector<std::vector<uint32_t>> ways = {Portions(1, 1),   Portions(32, 32),   Portions(5, 32), Portions(33, 33),
                                             Portions(17, 31), Portions(100, 100), Portions(1, 128)};
  for (uint32_t each = 2; each <= 9; ++each) ways.push_back(Portions(each % 4 + 1, each));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ways.push_back(RandomPortions(seed, 12));
    ways.push_back(RandomPortions(seed, 90));
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    const int threads = 1 + static_cast<int>(i % 3);
    HopRig rig(shape(), threads, kPoolBytes);
    ASSERT_TRUE(Append(&rig, 1, ways[i]) == expected)
        << threads << " threads, " << ways[i][0] << ", then " << ways[i][1] << "...";
  }
}

// Rows of several sequences in one step, each in its own portions, change no bit of one another.
TEST_P(OpenPagesTest, NeighboursChangeNoBit) {
  const Rows expected = Expected();
  for (const int threads : {2, 3}) {
    HopRig rig(shape(), threads, kPoolBytes);
    std::mt19937_64 random(5);
    constexpr uint64_t kSequences = 4;
    std::vector<uint32_t> have(kSequences, 0);
    for (uint64_t s = 0; s < kSequences; ++s) rig.Make(s + 1);
    for (;;) {
      std::vector<Ask> asked;
      for (uint64_t s = 0; s < kSequences; ++s) {
        const uint32_t most = s == 0 ? 1 : s == 1 ? 8 : s == 2 ? 14 : 60;
        const uint32_t rows = std::min<uint32_t>(1 + random() % most, kTokens - have[s]);
        if (rows > 0) asked.push_back({s + 1, rows, kContent});
      }
      if (asked.empty()) break;
      Outcome outcome = rig.Step(asked);
      for (const Ask& ask : asked) {
        uint32_t& first = have[ask.sequence - 1];
        ASSERT_TRUE(Split(outcome.o[ask.sequence]) == Part(expected, first, first + ask.rows))
            << threads << " threads, sequence " << ask.sequence << ", " << ask.rows << " rows from " << first << " on";
        first += ask.rows;
      }
    }
  }
}

// What is stored is not written again. As long as the open page is still that of the rows, nothing is lost.
TEST_P(OpenPagesTest, ReplaysOfTheLastPageChangeNoBit) {
  const Rows expected = Expected(200);
  for (const int threads : {1, 3}) {
    HopRig rig(shape(), threads, kPoolBytes);
    uint32_t have = 0;
    for (const uint32_t portion : {40u, 1u, 8u, 15u, 1u, 31u, 33u, 10u, 1u, 60u}) {
      Append(&rig, 1, {portion});
      have += portion;
      const uint32_t page = (have - 1) / kPageTokens * kPageTokens;
      for (uint32_t first : {page, page + 1, have - std::min(have - page, 8u), have - 1}) {
        if (first >= have) continue;
        Ask ask = {1, have - first, kContent};
        ask.position = first;
        EXPECT_TRUE(Step(&rig, ask) == Part(expected, first, have)) << first << " to " << have;
      }
    }
    EXPECT_EQ(have, 200u);
  }
}

// Where it is not, the rows see what the page was rounded to. What comes afterwards is not changed by that.
TEST_P(OpenPagesTest, ReplaysOfEarlierPagesAreClose) {
  const Rows expected = Expected(260);
  for (const int threads : {1, 2}) {
    for (const uint32_t have : {130u, 160u, 199u}) {
      HopRig rig(shape(), threads, kPoolBytes);
      Append(&rig, 1, {10, 30, 40, have - 80});
      for (const Ask& ask : {Ask{1, 1, kContent, false, 45}, Ask{1, 8, kContent, false, 48},
                             Ask{1, 5, kContent, false, 59}, Ask{1, 8, kContent, false, 60},
                             Ask{1, 12, kContent, false, 49}, Ask{1, std::min(have - 50, 100u), kContent, false, 50}}) {
        SCOPED_TRACE(std::to_string(ask.rows) + " rows from " + std::to_string(ask.position) + " on of " +
                     std::to_string(have));
        ExpectClose(Step(&rig, ask), Part(expected, ask.position, ask.position + ask.rows));
      }
      EXPECT_TRUE(Append(&rig, 1, {1, 8, 40}) == Part(expected, have, have + 49));
    }
  }
}

TEST_P(OpenPagesTest, ATruncatedSequenceGoesOn) {
  const Rows expected = Expected(260);
  for (const std::vector<uint32_t>& portions : {Portions(60, 1, 160), Portions(3, 8, 160), Portions(90, 90, 160)}) {
    // To the last token, into the open page, to its start and that of others: not a bit is lost.
    for (const uint32_t cut : {199u, 195u, 193u, 192u, 160u, 64u, 0u}) {
      HopRig rig(shape(), 2, kPoolBytes);
      Append(&rig, 1, {50, 1, 100, 49});
      ASSERT_TRUE(rig.table().Truncate(1, cut).ok());
      EXPECT_TRUE(Append(&rig, 1, Portions(5, 12, 260 - cut)) == Part(expected, cut, 260)) << cut;
      ASSERT_TRUE(rig.table().Truncate(1, 100).ok());
      ExpectClose(Append(&rig, 1, portions), Part(expected, 100, 260));
    }
  }
}

TEST_P(OpenPagesTest, APageThatIsFullAndLastIsStillOpen) {
  const Rows expected = Expected(100);
  HopRig rig(shape(), 1, kPoolBytes);
  Append(&rig, 1, {64});
  ASSERT_TRUE(rig.table().Truncate(1, 50).ok());
  ASSERT_TRUE(rig.table().Fork(1, 45, 2).ok());
  EXPECT_TRUE(Append(&rig, 1, {50}) == Part(expected, 50, 100));
  EXPECT_TRUE(Append(&rig, 2, Portions(1, 1, 55)) == Part(expected, 45, 100));
}

TEST_P(OpenPagesTest, AForkGoesOnAndLeavesTheOriginalAlone) {
  const Rows expected = Expected(300);
  for (const int threads : {1, 2}) {
    for (const uint32_t cut : {0u, 32u, 64u, 192u, 193u, 200u, 70u, 191u}) {
      SCOPED_TRACE("forked at " + std::to_string(cut));
      HopRig rig(shape(), threads, kPoolBytes);
      Append(&rig, 1, {100, 100});
      ASSERT_TRUE(rig.table().Fork(1, cut, 2).ok());
      const Rows fork = Append(&rig, 2, Portions(3, 40, 300 - cut));
      const bool reopened = cut < 192 && cut % kPageTokens != 0;
      if (reopened) {
        ExpectClose(fork, Part(expected, cut, 300));
      } else {
        EXPECT_TRUE(fork == Part(expected, cut, 300));
      }
      EXPECT_TRUE(Append(&rig, 1, {1, 40, 8, 51}) == Part(expected, 200, 300));
      ASSERT_TRUE(rig.table().Truncate(2, cut).ok());
      rig.table().Release(1);
      Append(&rig, 2, {100});
      rig.table().ReleaseAll();
      EXPECT_EQ(rig.account().used(), 0u);
      EXPECT_EQ(rig.account().pool().free(), rig.account().pool().total());
    }
  }
}

// A fork may have a position in its open page for which it has no page yet.
TEST_P(OpenPagesTest, AForkCanBeReplayedBeforeItGrows) {
  const Rows expected = Expected(540);
  HopRig rig(shape(), 2, kPoolBytes);
  Append(&rig, 1, Portions(100, 100, 540));
  ASSERT_TRUE(rig.table().Fork(1, 520, 2).ok());
  Ask ask = {2, 1, kContent};
  ask.position = 519;
  ExpectClose(Step(&rig, ask), Part(expected, 519, 520));
  ask = {2, 4, kContent};
  ask.position = 518;
  ExpectClose(Step(&rig, ask), Part(expected, 518, 522));
}

#if defined(__SANITIZE_THREAD__)  // to threads all shapes are alike
INSTANTIATE_TEST_SUITE_P(Shapes, OpenPagesTest, testing::Values(Variant{ElementType::kBf16, KvType::kInt4, 2, 0}));
#else
INSTANTIATE_TEST_SUITE_P(Shapes, OpenPagesTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kInt4, 1, 0},
                                         Variant{ElementType::kBf16, KvType::kInt4, 4, 0},
                                         Variant{ElementType::kBf16, KvType::kInt4, 2, 70},
                                         Variant{ElementType::kBf16, KvType::kInt4, 2, 70, 0b010}));
#endif

}  // namespace
}  // namespace fastdecode
