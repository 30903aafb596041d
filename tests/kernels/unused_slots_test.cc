// Slots of a page that no token is in leave no trace, whatever is in them: infinities, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels/cpu/page_codes.h"
#include "tests/kernels/paged_sequence.h"
#include "tests/kernels/runnable_kernels.h"

namespace fastdecode {
namespace {

constexpr uint16_t kBf16Infinity = 0x7f80, kFp16Infinity = 0x7c00;

// One KV head of one page of a sequence: its open page, if the type has these.
class HeadBytes {
 public:
  HeadBytes(PagedSequence* sequence, int page, int head)
      : shape_(sequence->shape),
        head_(static_cast<size_t>(head)),
        open_(sequence->OpenPageAt(page)),
        closed_(&sequence->pages[sequence->page_ids[static_cast<size_t>(page)] * sequence->page_stride_bytes +
                                 head_ * PageBytes(shape_) / static_cast<size_t>(shape_.kv_heads)]) {}

  template <typename T>
  void Set(size_t offset, T value) const {
    std::memcpy(closed_ + offset, &value, sizeof(value));
  }
  // Of the open page; where it has no such slot it does nothing.
  void SetOpenSlot(int slot, Bf16 k, Bf16 v) const {
    std::byte* const piece = open_.pieces[slot / kOpenPieceTokens];
    if (piece == nullptr) return;
    Bf16* const at = reinterpret_cast<Bf16*>(piece + head_ * open_.head_stride_bytes) +
                     slot % kOpenPieceTokens * 2 * shape_.head_dim;
    std::fill_n(at, shape_.head_dim, k);
    std::fill_n(at + shape_.head_dim, shape_.head_dim, v);
  }
  const AttentionShape& shape() const { return shape_; }

 private:
  const AttentionShape shape_;
  const size_t head_;
  const OpenPage open_;
  std::byte* const closed_;
};

// Each element of a slot's k and v, in the panels that attention_page.h says.
template <typename Element>
void SetSlot(const HeadBytes& to, int slot, Element k, Element v) {
  const int head_dim = to.shape().head_dim, lane = slot % kPanelLanes;
  for (int d = 0; d < head_dim; ++d) {
    const int of_k = (slot - lane) * head_dim + PanelOffset<Element>(d, lane);
    const int of_v = d / kPanelLanes * kPageTokens * kPanelLanes + PanelOffset<Element>(slot, d % kPanelLanes);
    to.Set(static_cast<size_t>(of_k) * sizeof(Element), k);
    to.Set(static_cast<size_t>(PageKElements(head_dim) + of_v) * sizeof(Element), v);
  }
}

// The largest codes; of k times infinity, of v times 2^120.
void SetInt8Slot(const HeadBytes& to, int slot) {
  const int head_dim = to.shape().head_dim, lane = slot % kPanelLanes;
  for (int d = 0; d < head_dim; ++d) {
    const int of_k = (slot - lane) * head_dim + QuadOffset(d, lane);
    const int of_v = d / kPanelLanes * kPageTokens * kPanelLanes + QuadOffset(slot, d % kPanelLanes);
    to.Set(static_cast<size_t>(of_k), uint8_t{255});
    to.Set(static_cast<size_t>(Int8V(head_dim) + of_v), int8_t{127});
  }
  to.Set(static_cast<size_t>(Int8KScales(head_dim)) + static_cast<size_t>(slot) * sizeof(Bf16), kBf16Infinity);
  to.Set(static_cast<size_t>(Int8VScales(head_dim)) + static_cast<size_t>(slot) * sizeof(Bf16), ToBf16(0x1p120f));
}

// k of infinities, every other token's negative; v as large as it may be: what is hidden must have finite ones.
void SpoilSlot(const HeadBytes& head, int slot) {
  const int sign = slot % 2;
  switch (head.shape().kv_type) {
    case KvType::kF32:
      return SetSlot(head, slot, sign ? -INFINITY : INFINITY, FLT_MAX);
    case KvType::kBf16:
      return SetSlot(head, slot, static_cast<Bf16>(kBf16Infinity | sign << 15), static_cast<Bf16>(kBf16Infinity - 1));
    case KvType::kInt4:
      return head.SetOpenSlot(slot, static_cast<Bf16>(kBf16Infinity | sign << 15),
                              static_cast<Bf16>(kBf16Infinity - 1));
    case KvType::kFp16:
      return SetSlot(head, slot, Fp16{static_cast<uint16_t>(kFp16Infinity | sign << 15)}, ToFp16(kFp16Max));
    case KvType::kInt8:
      return SetInt8Slot(head, slot);
  }
}

TEST(UnusedSlotsTest, BehindTheLastTokenTheyLeaveNoTrace) {
  for (const TypePair& type : kTypePairs) {
    for (const float soft_cap : {0.0f, 9.0f}) {
      const AttentionCase c = {type.rows, type.kv, 64, 4, 2, 555, 3, 0, soft_cap};
      PagedSequence sequence(c, 18);
      const int last_page = c.context / kPageTokens, used = c.context % kPageTokens, kv_head = 1;
      for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
        SCOPED_TRACE(Describe(c) + " " + kernels.name);
        sequence.ClearPages(1);
        sequence.Append(kernels, 0, c.context);
        const HeadBytes head(&sequence, last_page, kv_head);
        const AttentionResult with_zeros = sequence.Attend(kernels, kv_head, 0, c.rows, c.context);
        for (int slot = used; slot < kPageTokens; ++slot) SpoilSlot(head, slot);
        EXPECT_TRUE(sequence.Attend(kernels, kv_head, 0, c.rows, c.context) == with_zeros);
        // The test would notice: the slot before them is used.
        SpoilSlot(head, used - 1);
        EXPECT_FALSE(sequence.Attend(kernels, kv_head, 0, c.rows, c.context) == with_zeros);
      }
    }
  }
}

// What a page held when it was taken into use: zeros, NaN or infinities. Of int8 and int4 scales and minima are bf16,
// units of int4 f32.
TEST(UnusedSlotsTest, WhatPagesHeldBeforeLeavesNoTrace) {
  constexpr uint32_t kF32Infinities = 0x7f800000, kBf16Infinities = 0x7f807f80, kFp16Infinities = 0x7c007c00;
  for (const TypePair& type : kTypePairs) {
    const AttentionCase c = {type.rows, type.kv, 80, 3, 2, 555, 5, 0, 0};
    SCOPED_TRACE(Describe(c));
    PagedSequence sequence(c, 20);
    for (const AttentionKernels& kernels : RunnableKernels(sequence.shape)) {
      const auto attend = [&](uint32_t word) {
        sequence.ClearPages(1, word);
        sequence.AppendInRandomPieces(kernels, 5);
        return sequence.AttendHeads(kernels, 0, c.kv_heads, 0, c.rows, c.context);
      };
      const AttentionResult with_zeros = attend(0);
      for (const uint32_t word : {~uint32_t{0}, kF32Infinities, kBf16Infinities, kFp16Infinities}) {
        EXPECT_TRUE(attend(word) == with_zeros) << kernels.name << ", words " << word;
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode
