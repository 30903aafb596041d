#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/avx512bf16_dots.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {

AttentionKernels Avx512Bf16Attention() {
  return Attention<Avx512Vector, PanelKv<Avx512Vector, Bf16Dots>>::Kernels("avx512bf16-bf16");
}

}  // namespace fastdecode
