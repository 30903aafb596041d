// Rows of a prompt, for which some kernels have arithmetic of their own: a row's position says which it is, whatever it
// comes with.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/engine/rpart/hop_rig.h"

namespace fastdecode {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{24} << 20;
constexpr uint64_t kContent = 7;
constexpr uint32_t kTokens = 600, kPrompt = 533;  // a block, and neither ends with a page

// [layer][row], bytes.
using Rows = std::vector<std::vector<std::byte>>;

// A kernel for rows of prompts that differs on any machine.
void AttendAtHalfScale(const AttentionShape& shape, const AttendArgs& args) {
  AttentionShape half = shape;
  half.scale /= 2;
  SelectAttention(DetectIsa(), half).AttendFor(true)(half, args);
}

struct Variant {
  KvType kv_type;
  bool own_kernel;  // AttendAtHalfScale, else what this machine has
  uint32_t sliding_window = 0;
  uint32_t windowed = kAllLayers;  // layers
};

class PromptRowsTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  }
  static RPartShape shape() {
    return HopShape(ElementType::kBf16, GetParam().kv_type, 4, GetParam().sliding_window, GetParam().windowed);
  }
  static bool HasOwnKernel() {
    return GetParam().own_kernel || SelectAttention(DetectIsa(), shape().attention()).HasPrompts();
  }
  static void Prepare(HopRig* rig) {
    if (GetParam().own_kernel) rig->UseForPrompts(&AttendAtHalfScale);
  }

  // All tokens of a sequence, up to so many rows a step.
  static Rows RowsOf(int threads, uint32_t prompt_tokens, uint32_t most, bool random_portions = false) {
    HopRig rig(shape(), threads, kPoolBytes);
    Prepare(&rig);
    rig.Make(1);
    std::mt19937_64 random(most);
    Rows rows(kLayers);
    for (uint32_t have = 0, portion; have < kTokens; have += portion) {
      const uint32_t end = have < prompt_tokens ? prompt_tokens : kTokens;
      portion = std::min<uint32_t>(random_portions ? 1 + random() % most : most, end - have);
      Add(rig.Step({{.sequence = 1, .rows = portion, .content = kContent, .prompt_tokens = prompt_tokens}}).o[1],
          &rows);
    }
    return rows;
  }
  // A step's, [layer][row], behind those before.
  static void Add(const std::vector<std::byte>& o, Rows* rows) {
    const ptrdiff_t bytes = static_cast<ptrdiff_t>(o.size() / kLayers);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      (*rows)[layer].insert((*rows)[layer].end(), o.begin() + layer * bytes, o.begin() + (layer + 1) * bytes);
    }
  }
  static std::vector<std::byte> Part(const Rows& rows, uint32_t first, uint32_t end) {
    const size_t bytes = shape().reply_row_bytes();
    std::vector<std::byte> part;
    for (const std::vector<std::byte>& layer : rows) {
      part.insert(part.end(), layer.begin() + static_cast<ptrdiff_t>(first * bytes),
                  layer.begin() + static_cast<ptrdiff_t>(end * bytes));
    }
    return part;
  }
};

TEST_P(PromptRowsTest, PortionsChangeNoBit) {
  const Rows expected = RowsOf(1, kPrompt, 1);
  for (const uint32_t most : {2u, 9u, 32u, 100u, 128u}) {
    for (const int threads : {1, 3}) {  // one alone takes tiles of as many rows as kernels do
      EXPECT_TRUE(RowsOf(threads, kPrompt, most) == expected) << most << " rows, " << threads << " threads";
    }
  }
  for (const uint32_t most : {12u, 90u}) {
    for (const int threads : {1, 2}) {
      EXPECT_TRUE(RowsOf(threads, kPrompt, most, /*random_portions=*/true) == expected) << "up to " << most << " rows";
    }
  }
}

// By tiles that begin and end within pages which are full by then.
TEST_P(PromptRowsTest, ReplayedRowsAreThoseOfTheFirstTime) {
  const Rows expected = RowsOf(1, kPrompt, 1);
  for (const auto& [first, rows] : {std::pair(37u, 91u), std::pair(5u, 110u), std::pair(64u, 64u)}) {
    HopRig rig(shape(), 1, kPoolBytes);
    Prepare(&rig);
    rig.Make(1);
    Ask ask = {.sequence = 1, .rows = 128, .content = kContent, .prompt_tokens = kPrompt};
    EXPECT_TRUE(rig.Step({ask}).o[1] == Part(expected, 0, 128));
    ask.position = first;
    ask.rows = rows;
    // What int4 lost of the first page's earlier tokens stays so.
    const uint32_t kept = rig.has_open_pages() ? (first + kPageTokens - 1) / kPageTokens * kPageTokens : first;
    Rows replayed(kLayers);
    Add(rig.Step({ask}).o[1], &replayed);
    EXPECT_TRUE(Part(replayed, kept - first, rows) == Part(expected, kept, first + rows)) << first;
  }
}

// Rows behind the prompt are as they would be without one, also where several come at once; the prompt's are others'
// where there is a kernel for them, and only there.
TEST_P(PromptRowsTest, OnlyThePromptsRowsAreOthers) {
  for (const uint32_t most : {1u, 100u}) {
    const Rows with = RowsOf(2, kPrompt, most), without = RowsOf(2, 0, most);
    EXPECT_TRUE(Part(with, kPrompt, kTokens) == Part(without, kPrompt, kTokens)) << most;
    EXPECT_EQ(Part(with, 40, kPrompt) == Part(without, 40, kPrompt), !HasOwnKernel()) << most;
  }
}

// A roster that holds for several steps says of each whether it is still the prompt's.
TEST_P(PromptRowsTest, OneRosterGoesOnBehindThePrompt) {
  const Rows expected = RowsOf(1, kPrompt, 1);
  HopRig rig(shape(), 1, kPoolBytes);
  Prepare(&rig);
  rig.Make(1);
  Ask ask = {.sequence = 1, .content = kContent, .prompt_tokens = kPrompt};
  for (uint32_t have = 0; have < kPrompt - 3; have += ask.rows) {
    ask.rows = std::min(100u, kPrompt - 3 - have);
    rig.Step({ask});
  }
  ask.rows = 1;
  for (uint32_t position = kPrompt - 3; position < kPrompt + 3; ++position) {
    Outcome outcome = position == kPrompt - 3 ? rig.Step({ask}) : rig.StepOn({ask});
    EXPECT_TRUE(outcome.o[1] == Part(expected, position, position + 1)) << position;
  }
}

// A step with rows of several sequences, in and behind their prompts.
TEST_P(PromptRowsTest, NeighboursChangeNoBit) {
  const Rows expected = RowsOf(1, kPrompt, 1);
  HopRig rig(shape(), 2, kPoolBytes);
  Prepare(&rig);
  std::vector<uint32_t> have = {0, 0, 0};
  const std::vector<uint32_t> most = {7, 33, 60};
  for (uint64_t s = 1; s <= have.size(); ++s) rig.Make(s);
  for (;;) {
    std::vector<Ask> asked;
    for (size_t s = 0; s < have.size(); ++s) {
      const uint32_t rows = std::min(most[s], (have[s] < kPrompt ? kPrompt : kTokens) - have[s]);
      if (rows > 0) asked.push_back({.sequence = s + 1, .rows = rows, .content = kContent, .prompt_tokens = kPrompt});
    }
    if (asked.empty()) break;
    Outcome outcome = rig.Step(asked);
    for (const Ask& ask : asked) {
      uint32_t& first = have[ask.sequence - 1];
      EXPECT_TRUE(outcome.o[ask.sequence] == Part(expected, first, first + ask.rows)) << ask.sequence << " " << first;
      first += ask.rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, PromptRowsTest,
                         testing::Values(Variant{KvType::kBf16, false}, Variant{KvType::kBf16, true, 70},
                                         Variant{KvType::kInt8, false}, Variant{KvType::kInt8, false, 70},
                                         Variant{KvType::kInt8, true}, Variant{KvType::kInt4, false},
                                         Variant{KvType::kInt4, false, 70}, Variant{KvType::kInt4, true},
                                         Variant{KvType::kInt8, false, 70, 0b011},
                                         Variant{KvType::kInt4, true, 70, 0b100}));

}  // namespace
}  // namespace fastdecode
