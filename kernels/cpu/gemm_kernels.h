#ifndef FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_
#define FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_

#include "kernels/gemm.h"
#include "kernels/isa.h"

namespace fastdecode {

// One per (ISA, type); the file of the same name defines it. Reached only through GemmOf.
void Avx2F32Gemm(const GemmArgs& args);
void Avx2Bf16Gemm(const GemmArgs& args);
void Avx512F32Gemm(const GemmArgs& args);
void Avx512Bf16Gemm(const GemmArgs& args);      // widens bf16 to f32
void Avx512Bf16Bf16Gemm(const GemmArgs& args);  // vdpbf16ps
void AmxBf16Gemm(const GemmArgs& args);

// SelectGemm without a look at the machine: a test may emulate what is missing.
GemmKernels GemmOf(Isa isa, ElementType type);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_
