#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {

AttentionKernels Avx2Fp16Attention() { return Attention<Avx2Vector, FmaDots<Avx2Vector, Fp16>>::Kernels("avx2-fp16"); }

}  // namespace fastdecode
