#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512vnni_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

template <class Prefetch>
using Int8 = Attention<Int8Tiles, Int8Kv<Int8Tiles, BytePanels<Int8Tiles, Prefetch>>>;
template <class Kv>
using Int4 = Attention<Int4Tiles, Kv, OpenPages<Int4Tiles>>;
using Zen5Int4Kv = Int4Kv<Int4Tiles, BytePanels<Int4Tiles, Zen5Stages>>;
// Tiles overlap where that was measured (decision 19).
struct Zen4Int4Kv : Int4Kv<Int4Tiles, BytePanels<Int4Tiles, Zen4Int4Stages>> {
  static constexpr int kOverlapTileMin = 4;
};

}  // namespace

AttentionKernels Avx512VnniAttention(KvType type, Prefetching prefetching) {
  if (prefetching == Prefetching::kZen5) {
    if (type == KvType::kInt8) return Int8<Zen5Stages>::Kernels("avx512vnni-int8-zen5");
    return Int4<Zen5Int4Kv>::Kernels("avx512vnni-int4-zen5");
  }
  if (type == KvType::kInt8) return Int8<Zen4Stages>::Kernels("avx512vnni-int8", {.read = 6});  // decision 12
  return Int4<Zen4Int4Kv>::Kernels("avx512vnni-int4");
}

}  // namespace fastdecode
