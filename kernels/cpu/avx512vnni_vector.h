#ifndef FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_
#define FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_

#include "kernels/cpu/avx512_vector.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

struct Avx512VnniVector : Avx512Vector {
  static constexpr bool kHasDotBytes = true;
  static Int DotBytes(Int sum, Int u8, Int s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
};

// Tiles of fewer row-heads than the sums have registers for, since others are wanted, too. 64 row-heads on Zen 4, of
// the peak of vpdpbusd: int8 .60 with 11 and with 8, .53 with 12; int4 .51 with 8, .50 with 7, .45 to .48 with 10
// to 12.
template <int kRowHeads>
struct VnniTiles : Avx512VnniVector {
  static constexpr int kMaxTile = kRowHeads;
};
using Int8Tiles = VnniTiles<11>;
using Int4Tiles = VnniTiles<8>;

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_
