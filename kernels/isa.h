#ifndef FASTDECODE_KERNELS_ISA_H_
#define FASTDECODE_KERNELS_ISA_H_

#include <string>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace fastdecode {

// Instruction sets, in ascending order of preference. kAvx2 (with FMA and F16C) is the least that is supported.
enum class Isa { kNone, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };
inline constexpr Isa kIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

// What this CPU and this kernel offer (CPUID and XGETBV). kNone: too old, the caller reports it. The first call asks
// the kernel for the right to use AMX, for all threads of the process.
Isa DetectIsa();
bool CpuHasAmxKernels();  // all that kAmx takes, allowed or not
bool CpuHasVbmi();        // AVX512-VBMI and -VBMI2, as every CPU with AMX and Zen 4 have
bool CpuIsAmd();
bool CpuIsZen5OrLater();                           // AMD's family 26 and up, which want to be told of reads otherwise
const char* IsaName(Isa isa);                      // "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"
bool ParseIsa(const std::string& name, Isa* isa);  // false: unknown name

// The function tables. REQUIRES: isa <= DetectIsa(), and a shape as AttentionShape says.
AttentionKernels SelectAttention(Isa isa, const AttentionShape& shape);
GemmKernels SelectGemm(Isa isa, ElementType type);
ElementwiseKernels SelectElementwise(Isa isa, ElementType type);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_ISA_H_
