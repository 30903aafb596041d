#include "kernels/cpu/wide_float_rows.h"
#include "kernels/cpu/wide_int4_rows.h"
#include "kernels/cpu/wide_int8_rows.h"

namespace fastdecode {
namespace {

// Where a KV head's k and v are, and where its page goes. What `next` counts is in memory, which the functions cannot
// keep in registers, so that each prefetch waits for the one before: else they come in bursts, of which cores drop part
// (decision 19).
template <int kHeadDim>
struct HeadPack {
  static constexpr int kWordsBytes = PageHeadElements(kHeadDim) * 2;  // of bf16 or fp16

  template <class Words>
  [[gnu::noinline]] bool ToWords() {
    return PackWords<Words>(k, v, kHeadDim, page + kv_head * kWordsBytes, &next);
  }
  [[gnu::noinline]] bool ToInt8() { return PackInt8(k, v, kHeadDim, page + kv_head * Int8HeadBytes(kHeadDim), &next); }
  [[gnu::noinline]] bool ToInt4() {
    return PackInt4(k, v, kHeadDim, As<uint8_t>(page + kv_head * Int4HeadBytes(kHeadDim)), &next);
  }

  Rows k, v;
  std::byte* page;
  ptrdiff_t kv_head;
  UpcomingLines next;
};

template <int kHeadDim>
bool Pack(const AttentionShape& shape, const AppendArgs& args) {
  HeadPack<kHeadDim> head = {{args.k, args.row_stride_bytes},
                             {args.v, args.row_stride_bytes},
                             args.page,
                             args.kv_head,
                             UpcomingLines(shape, args)};
  switch (shape.kv_type) {
    case KvType::kBf16:
      return head.template ToWords<Bf16Words>();
    case KvType::kFp16:
      return head.template ToWords<Fp16Words>();
    case KvType::kInt8:
      return head.ToInt8();
    case KvType::kInt4:
      return head.ToInt4();
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
