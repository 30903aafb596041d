#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx512F32Attention() {
  return Attention<Avx512Vector, FmaDots<Avx512Vector, float>>::Kernels("avx512-f32");
}

}  // namespace fastdecode
