#include "kernels/cpu/wide_float_rows.h"
#include "kernels/cpu/wide_int4_rows.h"
#include "kernels/cpu/wide_int8_rows.h"

namespace fastdecode {
namespace {

template <int kHeadDim>
bool Pack(const AttentionShape& shape, const AppendArgs& args) {
  const Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  const auto head = [&](int bytes) { return args.page + static_cast<ptrdiff_t>(args.kv_head) * bytes; };
  constexpr int kWordsBytes = PageHeadElements(kHeadDim) * 2;  // of bf16 or fp16
  UpcomingLines next(shape, args);
  switch (shape.kv_type) {
    case KvType::kBf16:
      return PackWords<Bf16Words, kHeadDim>(k, v, head(kWordsBytes), &next);
    case KvType::kFp16:
      return PackWords<Fp16Words, kHeadDim>(k, v, head(kWordsBytes), &next);
    case KvType::kInt8:
      return PackInt8<kHeadDim>(k, v, head(Int8HeadBytes(kHeadDim)), &next);
    case KvType::kInt4:
      return PackInt4<kHeadDim>(k, v, As<uint8_t>(head(Int4HeadBytes(kHeadDim))), &next);
    case KvType::kF32:
      return false;
  }
  return false;
}

}  // namespace

bool Avx512VbmiPackPage(const AttentionShape& shape, const AppendArgs& args) {
  const bool whole = args.tokens == kPageTokens && args.open_page == nullptr;
  if (!whole || reinterpret_cast<uintptr_t>(args.page) % 64 != 0 || shape.type != ElementType::kBf16) return false;
  switch (shape.head_dim) {
    case 64:
      return Pack<64>(shape, args);
    case 128:
      return Pack<128>(shape, args);
    case 192:
      return Pack<192>(shape, args);
    case 256:
      return Pack<256>(shape, args);
    default:
      return false;
  }
}

}  // namespace fastdecode
