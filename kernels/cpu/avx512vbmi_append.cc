#include "kernels/cpu/wide_float_rows.h"
#include "kernels/cpu/wide_int4_rows.h"
#include "kernels/cpu/wide_int8_rows.h"

namespace fastdecode {
namespace {

// A function for each type, so that `next` comes by address: stores past the caches may alias what it counts, which is
// stored and loaded again so. In registers all the way, prefetches came in bursts, of which Zen 4 drops part (decision
// 19).
template <class Words, int kHeadDim>
[[gnu::noinline]] bool PackToWords(const Rows& k, const Rows& v, std::byte* head, UpcomingLines* next) {
  return PackWords<Words>(k, v, kHeadDim, head, next);
}
template <int kHeadDim>
[[gnu::noinline]] bool PackToInt8(const Rows& k, const Rows& v, std::byte* head, UpcomingLines* next) {
  return PackInt8(k, v, kHeadDim, head, next);
}
template <int kHeadDim>
[[gnu::noinline]] bool PackToInt4(const Rows& k, const Rows& v, std::byte* head, UpcomingLines* next) {
  return PackInt4(k, v, kHeadDim, As<uint8_t>(head), next);
}

template <int kHeadDim>
bool Pack(const AttentionShape& shape, const AppendArgs& args) {
  const Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  const auto head = [&](int bytes) { return args.page + static_cast<ptrdiff_t>(args.kv_head) * bytes; };
  constexpr int kWordsBytes = PageHeadElements(kHeadDim) * 2;  // of bf16 or fp16
  UpcomingLines next(shape, args);
  switch (shape.kv_type) {
    case KvType::kBf16:
      return PackToWords<Bf16Words, kHeadDim>(k, v, head(kWordsBytes), &next);
    case KvType::kFp16:
      return PackToWords<Fp16Words, kHeadDim>(k, v, head(kWordsBytes), &next);
    case KvType::kInt8:
      return PackToInt8<kHeadDim>(k, v, head(Int8HeadBytes(kHeadDim)), &next);
    case KvType::kInt4:
      return PackToInt4<kHeadDim>(k, v, head(Int4HeadBytes(kHeadDim)), &next);
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
