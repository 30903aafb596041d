#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/attention.h"
#include "kernels/isa.h"
#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/paged_sequence.h"
#include "tests/kernels/runnable_kernels.h"

// What must not change a bit of attention: the rest of a call, neighbours, where pages lie, and how they came to be.
namespace fastdecode {
namespace {

// All KV heads in one call give the bits that each gives in its own.
TEST(AttentionBitsTest, HeadsTogetherAreHeadsAlone) {
  for (const TypePair& type : kTypePairs) {
    for (int group : {1, 2, 3, 8}) {
      const AttentionCase c = {type.rows, type.kv, 48, group, 5, 1100, group == 3 ? 6 : 1, group == 8 ? 300 : 0, 0};
      PagedSequence sequence(c, 21);
      for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
        SCOPED_TRACE(Describe(c) + " " + kernels.name);
        sequence.ClearPages(8);
        sequence.Append(kernels, 0, c.context);
        const int first_head = 1, heads = 3, n = c.rows * group;
        const AttentionResult together = sequence.AttendHeads(kernels, first_head, heads, 0, c.rows, c.context);
        for (int h = 0; h < heads; ++h) {
          const AttentionResult alone = sequence.Attend(kernels, first_head + h, 0, c.rows, c.context);
          const size_t acc_floats = alone.acc.size(), row_bytes = alone.o.size() / c.rows;
          ASSERT_EQ(0, std::memcmp(alone.max.data(), &together.max[h * n], n * 4)) << h;
          ASSERT_EQ(0, std::memcmp(alone.sum.data(), &together.sum[h * n], n * 4)) << h;
          ASSERT_EQ(0, std::memcmp(alone.acc.data(), &together.acc[h * acc_floats], acc_floats * 4)) << h;
          for (int r = 0; r < c.rows; ++r) {
            ASSERT_EQ(0, std::memcmp(&alone.o[r * row_bytes], &together.o[(r * heads + h) * row_bytes], row_bytes));
          }
        }
      }
    }
  }
}

// A row's bits are those of the row alone, over a sequence that ends with it, at other pages.
void ExpectRowsAlone(const AttentionCase& c, const AttentionKernels& kernels, PagedSequence* sequence) {
  const int per_row = c.group * c.head_dim;
  sequence->ClearPages(8);
  sequence->Append(kernels, 0, c.context);
  const AttentionResult together = sequence->Attend(kernels, c.kv_heads - 1, 0, c.rows, c.context);
  sequence->ClearPages(9);
  for (int r = 0, stored = 0; r < c.rows; ++r) {
    const int context = sequence->in.first_row_position + r + 1;
    sequence->Append(kernels, stored, context - stored);
    stored = context;
    const AttentionResult alone = sequence->Attend(kernels, c.kv_heads - 1, r, 1, context);
    ASSERT_EQ(0, std::memcmp(alone.max.data(), &together.max[r * c.group], c.group * 4)) << kernels.name << r;
    ASSERT_EQ(0, std::memcmp(alone.sum.data(), &together.sum[r * c.group], c.group * 4)) << kernels.name << r;
    ASSERT_EQ(0, std::memcmp(alone.acc.data(), &together.acc[r * per_row], per_row * 4)) << kernels.name << r;
    ASSERT_EQ(0, std::memcmp(alone.o.data(), &together.o[r * alone.o.size()], alone.o.size())) << kernels.name;
  }
}

TEST(AttentionBitsTest, RowsAreIndependentBitForBit) {
  for (const TypePair& type : kTypePairs) {
    for (int group : {1, 3, 4, 16}) {
      for (int window : {0, 45}) {
        // Of three blocks; of two where each instruction of some kernels is emulated.
        const int context = DetectIsa() < Isa::kAmx && CanRunTiles() ? 550 : 1050;
        const AttentionCase c = {type.rows, type.kv, 80, group, 2, context, 16, window, group == 3 ? 20.0f : 0.0f};
        SCOPED_TRACE(Describe(c));
        PagedSequence sequence(c, 7);
        for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
          ASSERT_NO_FATAL_FAILURE(ExpectRowsAlone(c, kernels, &sequence));
        }
      }
    }
  }
}

// More of a prompt than other calls have, over two blocks.
TEST(AttentionBitsTest, ManyRowsOfAPromptAreAsThoseOfOnePage) {
  for (const KvType kv_type : {KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    for (const auto& [group, head_dim, window] : {std::tuple(1, 32, 0), std::tuple(3, 64, 300), std::tuple(4, 32, 0),
                                                  std::tuple(5, 96, 0), std::tuple(8, 128, 0)}) {
      AttentionCase c = {ElementType::kBf16, kv_type, head_dim, group, 1, 0, 0, window, 0};
      c.rows = MaxPromptRows({.group = group}) - 20;
      c.context = kBlockTokens + 70 + (group == 1 ? 300 : 0);
      SCOPED_TRACE(Describe(c));
      PagedSequence sequence(c, 13);
      int checked = 0;
      for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
        if (!kernels.many_prompt_rows || kernels.HasPrompts() != AreForPrompts(kernels)) continue;
        ++checked;
        sequence.ClearPages(1);
        sequence.Append(kernels, 0, c.context);
        const AttentionResult many = sequence.Attend(kernels, 0, 0, c.rows, c.context);
        for (int row = 0, rows; row < c.rows; row += rows) {
          rows = std::min(kPageTokens - (c.context - c.rows + row) % kPageTokens, c.rows - row);
          const AttentionResult few = sequence.Attend(kernels, 0, row, rows, c.context);
          const size_t first = size_t(row) * group;
          const auto expect_same = [&](const auto& some, const auto& all, size_t of_row_head) {
            EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(some)),
                                           std::as_bytes(std::span(all).subspan(first * of_row_head, some.size()))))
                << kernels.name << " row " << row;
          };
          expect_same(few.max, many.max, 1);
          expect_same(few.sum, many.sum, 1);
          expect_same(few.acc, many.acc, size_t(head_dim));
          expect_same(few.o, many.o, size_t(head_dim) * sizeof(Bf16));
        }
      }
      EXPECT_EQ(checked, CanRunTiles() ? 1 : 0);
    }
  }
}

TEST(AttentionBitsTest, FoldingInTheCallIsFoldingBehindIt) {
  for (const TypePair& type : kTypePairs) {
    for (const auto& [group, rows] : {std::pair(4, 1), std::pair(3, 7), std::pair(4, kMaxAttendRows)}) {
      for (int window : {0, 600}) {
        const AttentionCase c = {type.rows, type.kv, 64, group, 1, 1050, rows, window, 0};
        SCOPED_TRACE(Describe(c));
        PagedSequence sequence(c, 5);
        for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
          sequence.ClearPages(1);
          sequence.Append(kernels, 0, c.context);
          const AttentionResult expected = sequence.Attend(kernels, 0, 0, rows, c.context, Folding::kBehindIt);
          EXPECT_TRUE(sequence.Attend(kernels, 0, 0, rows, c.context) == expected) << kernels.name;
        }
      }
    }
  }
}

// With a window of 300 the first page that is seen is not seen from its start.
TEST(AttentionBitsTest, RowsWhoseScoresGrowAreIndependentBitForBit) {
  for (const TypePair& type : kTypePairs) {
    for (int head_dim : {32, 64, 80, 96, 128}) {
      for (int window : {0, 45, 300}) {
        const AttentionCase c = {type.rows, type.kv, head_dim, 4, 1, 450, 16, window, 0};
        SCOPED_TRACE(Describe(c));
        PagedSequence sequence(c, 11);
        sequence.LetScoresGrow();
        for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
          ASSERT_NO_FATAL_FAILURE(ExpectRowsAlone(c, kernels, &sequence));
        }
      }
    }
  }
}

// What a row must not see may hold anything finite: the largest scores and values change no bit.
TEST(AttentionBitsTest, HiddenTokensLeaveNoTrace) {
  for (const TypePair& type : kTypePairs) {
    AttentionCase c = {type.rows, type.kv, 64, 4, 1, 700, 5, 100, 0};
    PagedSequence sequence(c, 3);
    const int query_row = 2;  // at 697, sees 598..697
    const int position = sequence.in.first_row_position + query_row;
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      PagedSequence changed(c, 3);
      for (int t = 0; t < c.context; ++t) {
        if (ReferenceSees(sequence.in, position, t)) continue;
        // The tokens of a page of int4 have scales in common.
        if (type.kv == KvType::kInt4 && t / kPageTokens == (position - c.window + 1) / kPageTokens) continue;
        for (int d = 0; d < c.head_dim; ++d) {
          changed.in.k[t * c.head_dim + d] = 1e4 * sequence.in.q[(query_row * c.group) * c.head_dim + d];
          changed.in.v[t * c.head_dim + d] = t % 2 ? -1e30 : 1e30;
        }
      }
      changed.Encode();
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      changed.Append(kernels, 0, c.context);
      const AttentionResult expected = sequence.Attend(kernels, 0, query_row, 1, c.context);
      EXPECT_TRUE(changed.Attend(kernels, 0, query_row, 1, c.context) == expected) << kernels.name;
      // The test would notice: the neighbouring row sees one of them.
      const AttentionResult neighbour = sequence.Attend(kernels, 0, query_row + 1, 1, c.context);
      EXPECT_FALSE(changed.Attend(kernels, 0, query_row + 1, 1, c.context) == neighbour) << kernels.name;
    }
  }
}

// A sum that underflows to -0 in its second page meets a third page only with a neighbour.
TEST(AttentionBitsTest, AnUnderflowDoesNotShowTheNeighbours) {
  AttentionCase c = {ElementType::kF32, KvType::kF32, 16, 1, 1, 65, 2, 0, 0};
  c.scale = 1;
  PagedSequence sequence(c, 17);
  std::fill(sequence.in.q.begin(), sequence.in.q.end(), 1.0 / 16);
  for (int t = 0; t < c.context; ++t) {
    for (int d = 0; d < c.head_dim; ++d) {
      sequence.in.k[t * c.head_dim + d] = t < 32 ? 0 : 69;  // p of page 0 becomes e^-69, about 2^-99.5
      sequence.in.v[t * c.head_dim + d] = t < 32 ? -0x1p-60 : 0;
    }
  }
  sequence.Encode();
  for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
    sequence.ClearPages(1);
    sequence.Append(kernels, 0, c.context);
    const AttentionResult together = sequence.Attend(kernels, 0, 0, 2, 65);
    const AttentionResult alone = sequence.Attend(kernels, 0, 0, 1, 64);
    EXPECT_EQ(0, std::memcmp(together.acc.data(), alone.acc.data(), c.head_dim * sizeof(float))) << kernels.name;
  }
}

TEST(AttentionBitsTest, PageOrderChangesNoBit) {
  for (const TypePair& type : kTypePairs) {
    const AttentionCase c = {type.rows, type.kv, 96, 5, 2, 900, 3, 0, 0};
    PagedSequence sequence(c, 4);
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      const AttentionResult first = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      sequence.ClearPages(2);
      sequence.AppendInRandomPieces(kernels, 5);
      EXPECT_TRUE(sequence.Attend(kernels, 0, 0, c.rows, c.context) == first) << kernels.name;
    }
  }
}

TEST(AttentionBitsTest, AppendInPiecesEqualsAppendOfAllAndIsIdempotent) {
  for (const TypePair& type : kTypePairs) {
    const AttentionCase c = {type.rows, type.kv, 48, 1, 3, 333, 1, 0, 0};
    PagedSequence sequence(c, 5);
    const AttentionKernels kernels = RunnableKernels(sequence.shape)[0];
    sequence.Append(kernels, 0, c.context);
    const std::vector<std::byte> whole = sequence.pages;
    sequence.ClearPages(5);
    sequence.AppendInRandomPieces(kernels, 6);
    EXPECT_EQ(sequence.pages, whole);
    // A replay rewrites the last token, wherever in a page it lies: then the sequence goes on.
    sequence.ClearPages(5);
    for (int t = 0; t < c.context; ++t) {
      sequence.Append(kernels, t, 1);
      sequence.Append(kernels, t, 1);
    }
    EXPECT_EQ(sequence.pages, whole);
    sequence.Append(kernels, 33, 31);
    EXPECT_EQ(sequence.pages, whole);
  }
}

TEST(AttentionBitsTest, FoldingAnEmptyPartialChangesNoBit) {
  const AttentionCase c = {ElementType::kF32, KvType::kF32, 64, 2, 1, 100, 2, 0, 0};
  PagedSequence sequence(c, 13);
  for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
    sequence.ClearPages(1);
    sequence.Append(kernels, 0, c.context);
    const AttentionResult full = sequence.Attend(kernels, 0, 0, c.rows, c.context);
    const int n = c.rows * c.group;
    std::vector<float> max(n, -INFINITY), sum(n, 0), acc(n * c.head_dim, 0);
    AttentionResult folded = full;
    kernels.fold(sequence.shape, {folded.max.data(), folded.sum.data(), folded.acc.data()},
                 {max.data(), sum.data(), acc.data()}, n);
    EXPECT_TRUE(folded == full) << kernels.name;
    // And into an empty one: a copy.
    kernels.fold(sequence.shape, {max.data(), sum.data(), acc.data()},
                 {folded.max.data(), folded.sum.data(), folded.acc.data()}, n);
    EXPECT_EQ(max, full.max);
    EXPECT_EQ(sum, full.sum);
    EXPECT_EQ(acc, full.acc);
  }
}

TEST(AttentionBitsTest, FlushingDenormalsChangesNothing) {
  for (const TypePair& type : kTypePairs) {
    const AttentionCase c = {type.rows, type.kv, 128, 4, 1, 1000, 2, 0, 0};
    PagedSequence sequence(c, 15);
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      sequence.ClearPages(1);
      sequence.Append(kernels, 0, c.context);
      const AttentionResult plain = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | 0x8040);  // FTZ, DAZ
      const AttentionResult flushed = sequence.Attend(kernels, 0, 0, c.rows, c.context);
      _mm_setcsr(saved);
      EXPECT_TRUE(plain == flushed) << kernels.name;
    }
  }
}

}  // namespace
}  // namespace fastdecode
