#ifndef FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_
#define FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_

#include "kernels/cpu/avx512_vector.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

struct Avx512VnniVector : Avx512Vector {
  static constexpr bool kHasDotBytes = true;
  static Int DotBytes(Int sum, Int u8, Int s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_
