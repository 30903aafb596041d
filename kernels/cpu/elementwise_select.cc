#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/isa.h"
#include "numa/check.h"

namespace fastdecode {

ElementwiseKernels SelectElementwise(Isa isa, ElementType type) {
  FD_CHECK(isa != Isa::kNone, "no kernels for this CPU");
#ifdef FASTDECODE_AVX2_ONLY
  return Avx2Elementwise(type);
#else
  return isa == Isa::kAvx2 ? Avx2Elementwise(type) : Avx512Elementwise(type);
#endif
}

}  // namespace fastdecode
