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
template <class Prefetch>
using Int4 = Attention<Int4Tiles, Int4Kv<Int4Tiles, BytePanels<Int4Tiles, Prefetch>>, OpenPages<Int4Tiles>>;

}  // namespace

AttentionKernels Avx512VnniAttention(KvType type, Prefetching prefetching) {
  if (prefetching == Prefetching::kZen5) {
    if (type == KvType::kInt8) return Int8<Zen5Stages>::Kernels("avx512vnni-int8-zen5");
    return Int4<Zen5Stages>::Kernels("avx512vnni-int4-zen5");
  }
  if (type == KvType::kInt8) return Int8<Zen4Stages>::Kernels("avx512vnni-int8", {.read = 6});
  return Int4<Zen4Int4Stages>::Kernels("avx512vnni-int4");
}

}  // namespace fastdecode
