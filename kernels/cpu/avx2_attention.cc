#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

template <typename Element>
using Panels = Attention<Avx2Vector, PanelKv<Avx2Vector, FmaDots<Avx2Vector, Element>>>;

}  // namespace

AttentionKernels Avx2Attention(KvType type) {
  switch (type) {
    case KvType::kF32:
      return Panels<float>::Kernels("avx2-f32");
    case KvType::kBf16:
      return Panels<Bf16>::Kernels("avx2-bf16");
    case KvType::kFp16:
      return Panels<Fp16>::Kernels("avx2-fp16");
    case KvType::kInt8:
      return Attention<Avx2Vector, Int8Kv<Avx2Vector>>::Kernels("avx2-int8");
    case KvType::kInt4:
      return Attention<Avx2Vector, Int4Kv<Avx2Vector>, OpenPages<Avx2Vector>>::Kernels("avx2-int4");
  }
  return {};
}

}  // namespace fastdecode
