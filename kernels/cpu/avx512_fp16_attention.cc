#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx512Fp16Attention() {
  return Attention<Avx512Vector, FmaDots<Avx512Vector, Fp16>>::Kernels("avx512-fp16");
}

}  // namespace fastdecode
