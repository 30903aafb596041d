#ifndef FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_
#define FASTDECODE_KERNELS_CPU_AVX512VNNI_VECTOR_H_

#include "kernels/cpu/avx512_vector.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

struct Avx512VnniVector : Avx512Vector {
  static constexpr bool kHasDotBytes = true;
  // In place: GCC 12 copies what it adds to, one register to another, in loops.
  static Int DotBytes(Int sum, Int u8, Int s8) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
  }
  static Int DotWords(Int sum, Int a, Int b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
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
