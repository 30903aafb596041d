#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx2F32Attention() { return Attention<Avx2Vector, FmaDots<Avx2Vector, float>>::Kernels("avx2-f32"); }

}  // namespace fastdecode
