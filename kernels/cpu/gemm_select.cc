#include "kernels/cpu/gemm_kernels.h"
#include "kernels/isa.h"
#include "numa/check.h"

namespace fastdecode {

GemmKernels SelectGemm(Isa isa, ElementType type) {
  FD_CHECK(isa != Isa::kNone && isa <= DetectIsa(), "the ISA is one that this machine has");
  return GemmOf(isa, type);
}

GemmKernels GemmOf(Isa isa, ElementType type) {
#ifdef FASTDECODE_AVX2_ONLY
  return type == ElementType::kF32 ? GemmKernels{"avx2-f32", Avx2F32Gemm} : GemmKernels{"avx2-bf16", Avx2Bf16Gemm};
#else
  if (type == ElementType::kF32) {
    return isa == Isa::kAvx2 ? GemmKernels{"avx2-f32", Avx2F32Gemm} : GemmKernels{"avx512-f32", Avx512F32Gemm};
  }
  switch (isa) {
    case Isa::kAvx2:
      return {"avx2-bf16", Avx2Bf16Gemm};
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
      return {"avx512-bf16", Avx512Bf16Gemm};
    case Isa::kAmx:
      return {"amx-bf16", AmxBf16Gemm};
    default:
      return {"avx512bf16-bf16", Avx512Bf16Bf16Gemm};
  }
#endif
}

}  // namespace fastdecode
