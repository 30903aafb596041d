#include "kernels/cpu/attention_page.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {
namespace {

size_t HeadBytes(const AttentionShape& shape) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return PageHeadElements(shape.head_dim) * sizeof(float);
    case KvType::kBf16:
    case KvType::kFp16:
      return PageHeadElements(shape.head_dim) * sizeof(Bf16);
    case KvType::kInt8:
      return Int8HeadBytes(shape.head_dim);
    case KvType::kInt4:
      return Int4HeadBytes(shape.head_dim);
  }
  return 0;
}

void CheckAppend(const AttentionShape& shape, const AppendArgs& args) {
  FD_CHECK(args.first_slot >= 0 && args.tokens > 0 && args.first_slot + args.tokens <= kPageTokens,
           "an append stays inside one page");
  FD_CHECK(shape.kv_type != KvType::kInt4 || args.open_page != nullptr || args.tokens == kPageTokens,
           "int4: tokens that do not fill a page go to an open one");
  FD_CHECK(args.kv_head >= 0 && args.kv_head < shape.kv_heads, "an append names a KV head of the shape");
}

}  // namespace

size_t PageBytes(const AttentionShape& shape) { return shape.kv_heads * HeadBytes(shape); }

size_t OpenPieceBytes(const AttentionShape& shape) {
  return HasOpenPages(shape) ? static_cast<size_t>(kOpenPieceTokens * OpenTokenBytes(shape.head_dim)) : 0;
}

size_t UnpackedPagesAt(const AttentionShape& shape) {
  AttentionShape unpacked = shape;
  unpacked.kv_type = KvType::kBf16;
  unpacked.kv_heads = 1;
  constexpr size_t kLine = 64;
  return (AttendScratchBytes(unpacked) + kLine - 1) / kLine * kLine;
}

// Queries, of int4 those for open pages too, sums and rests of all row-heads of a call, scores and probabilities of a
// tile's for one page, an open page's head.
size_t AttendScratchBytes(const AttentionShape& shape) {
  const size_t row_heads =
      static_cast<size_t>(std::max(kMaxAttendRows, kMaxRowsOfHeads * shape.kv_heads)) * shape.group;
  const size_t of_int4 = Int4Groups(shape.head_dim) * kPanelLanes + Int4QueryBytes(shape.head_dim) / sizeof(float);
  const size_t row_head = shape.head_dim + kPanelLanes + (shape.kv_type == KvType::kInt4 ? of_int4 : 0);
  const size_t bytes =
      (row_heads * row_head + 2 * kMaxTileRows * kPageTokens) * sizeof(float) + kOpenPieces * OpenPieceBytes(shape);
  if (shape.kv_type >= KvType::kInt8 && shape.type == ElementType::kBf16) {
    const size_t unpacked_bytes = kBlockPages * PageHeadElements(shape.head_dim) * sizeof(Bf16);
    return std::max(bytes, UnpackedPagesAt(shape) + unpacked_bytes);
  }
  if (shape.kv_type != KvType::kBf16) return bytes;
  const int of_a_block =
      TileBlockQueryBytes(MaxPromptRows(shape) * shape.group, shape.head_dim) + TileBlockScratchBytes(shape.head_dim);
  return std::max(bytes, static_cast<size_t>(of_a_block));
}

void AppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  CheckAppend(shape, args);
  Avx2AppendToPage(shape, args);
}

#ifndef FASTDECODE_AVX2_ONLY
void VbmiAppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  CheckAppend(shape, args);
  if (!Avx512VbmiPackPage(shape, args)) Avx2AppendToPage(shape, args);
}
#endif

}  // namespace fastdecode
