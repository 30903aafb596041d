#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx2_vector.h"

namespace fastdecode {

AttentionKernels Avx2F32Attention() { return Attention<Avx2Vector, float>::Kernels("avx2-f32", &AppendF32); }

}  // namespace fastdecode
