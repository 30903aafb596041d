#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/avx512bf16_dots.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

template <class Prefetch>
using Panels = Attention<Avx512Vector, PanelKv<Avx512Vector, Bf16Dots<Prefetch>>>;

}  // namespace

AttentionKernels Avx512Bf16Attention(Prefetching prefetching) {
  if (prefetching == Prefetching::kZen5) return Panels<Zen5Stages>::Kernels("avx512bf16-bf16-zen5");
  return Panels<Zen4Stages>::Kernels("avx512bf16-bf16", {.read = 7});  // decision 12
}

}  // namespace fastdecode
