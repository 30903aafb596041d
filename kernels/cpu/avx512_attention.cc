#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

template <typename Element, class Prefetch = Zen4Stages>
using Panels = Attention<Avx512Vector, PanelKv<Avx512Vector, FmaDots<Avx512Vector, Element, Prefetch>>>;

}  // namespace

AttentionKernels Avx512Attention(KvType type, Prefetching prefetching) {
  if (prefetching == Prefetching::kZen5) {
    if (type == KvType::kF32) return Panels<float, Zen5Stages>::Kernels("avx512-f32-zen5");
    if (type == KvType::kBf16) return Panels<Bf16, Zen5Stages>::Kernels("avx512-bf16-zen5");
    if (type == KvType::kFp16) return Panels<Fp16, Zen5Stages>::Kernels("avx512-fp16-zen5");
  }
  constexpr AttendCost kWidened = {.read = 4};  // measured on Zen 4 with fp16 (decision 12)
  switch (type) {
    case KvType::kF32:
      return Panels<float>::Kernels("avx512-f32");
    case KvType::kBf16:
      return Panels<Bf16>::Kernels("avx512-bf16", kWidened);
    case KvType::kFp16:
      return Panels<Fp16>::Kernels("avx512-fp16", kWidened);
    case KvType::kInt8:
      return Attention<Avx512Vector, Int8Kv<Avx512Vector>>::Kernels("avx512-int8");
    case KvType::kInt4:
      return Attention<Avx512Vector, Int4Kv<Avx512Vector>, OpenPages<Avx512Vector>>::Kernels("avx512-int4");
  }
  return {};
}

}  // namespace fastdecode
