#include "kernels/cpu/wide_float_rows.h"
#include "kernels/cpu/wide_int4_rows.h"
#include "kernels/cpu/wide_int8_rows.h"

namespace fastdecode {

bool Avx512VbmiPackPage(const AttentionShape& shape, const AppendArgs& args) {
  const bool whole = args.tokens == kPageTokens && args.open_page == nullptr;
  if (!whole || reinterpret_cast<uintptr_t>(args.page) % 64 != 0) return false;
  const int head_dim = shape.head_dim;
  if (shape.type != ElementType::kBf16 || head_dim % kWideDims != 0) return false;
  const Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  UpcomingLines next(shape, args);
  const ptrdiff_t head_bytes = PageHeadElements(head_dim) * 2;  // of bf16 or fp16
  if (shape.kv_type == KvType::kBf16) {
    return PackWords<Bf16Words>(k, v, head_dim, args.page + args.kv_head * head_bytes, &next);
  }
  if (shape.kv_type == KvType::kFp16) {
    return PackWords<Fp16Words>(k, v, head_dim, args.page + args.kv_head * head_bytes, &next);
  }
  if (shape.kv_type == KvType::kInt8) {
    return PackInt8(k, v, head_dim, args.page + static_cast<ptrdiff_t>(args.kv_head) * Int8HeadBytes(head_dim), &next);
  }
  if (shape.kv_type == KvType::kInt4) {
    return PackInt4(k, v, head_dim, As<uint8_t>(args.page) + args.kv_head * Int4HeadBytes(head_dim), &next);
  }
  return false;
}

}  // namespace fastdecode
