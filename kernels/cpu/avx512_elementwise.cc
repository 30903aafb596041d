#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/elementwise_template.h"

namespace fastdecode {

ElementwiseKernels Avx512Elementwise(ElementType type) {
  return type == ElementType::kF32 ? Elementwise<Avx512Vector, float>::Table()
                                   : Elementwise<Avx512Vector, Bf16>::Table();
}

}  // namespace fastdecode
