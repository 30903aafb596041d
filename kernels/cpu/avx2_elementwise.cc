#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/elementwise_template.h"

namespace fastdecode {

ElementwiseKernels Avx2Elementwise(ElementType type) {
  return type == ElementType::kF32 ? Elementwise<Avx2Vector, float>::Table() : Elementwise<Avx2Vector, Bf16>::Table();
}

}  // namespace fastdecode
