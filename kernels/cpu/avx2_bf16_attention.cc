#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx2Bf16Attention() { return Attention<Avx2Vector, FmaDots<Avx2Vector, Bf16>>::Kernels("avx2-bf16"); }

}  // namespace fastdecode
