#ifndef FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_
#define FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_

#include "kernels/gemm.h"

namespace fastdecode {

// One per (ISA, type); the file of the same name defines it. Reached only through SelectGemm.
void Avx2F32Gemm(const GemmArgs& args);
void Avx2Bf16Gemm(const GemmArgs& args);
void Avx512F32Gemm(const GemmArgs& args);
void Avx512Bf16Gemm(const GemmArgs& args);      // widens bf16 to f32
void Avx512Bf16Bf16Gemm(const GemmArgs& args);  // vdpbf16ps
void AmxBf16Gemm(const GemmArgs& args);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_GEMM_KERNELS_H_
