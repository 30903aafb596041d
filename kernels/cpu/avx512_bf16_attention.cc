#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx512Bf16Attention() {
  return Attention<Avx512Vector, FmaDots<Avx512Vector, Bf16>>::Kernels("avx512-bf16");
}

}  // namespace fastdecode
