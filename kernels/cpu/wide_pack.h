#ifndef FASTDECODE_KERNELS_CPU_WIDE_PACK_H_
#define FASTDECODE_KERNELS_CPU_WIDE_PACK_H_

#include "kernels/cpu/page_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What packing whole pages of all types but f32 has in common, with 512 bits: AVX-512 with BW, VBMI and VBMI2.
//
// A KV head is packed by one function for each type and head_dim, a constant, into which all is inlined: loops over
// dims are unrolled, and tokens are folded in registers (int8 and int4: a sixth to three tenths of their arithmetic).
// It is not inlined itself, so that `next` comes by address: stores past the caches may alias what it counts, which is
// stored and loaded again so. In registers all the way, prefetches came in bursts, of which Zen 4 drops part (decision
// 19).

constexpr int kWideDims = 64;  // of a row, taken at once: two vectors
constexpr int kVectorWords = 32;

inline __m512i Load64(const void* at) { return _mm512_loadu_si512(at); }
inline void Stream64(void* at, __m512i x) { _mm512_stream_si512(static_cast<__m512i*>(at), x); }

// kWideDims elements of a row, which are copied: rows are often a multiple of 4 KiB apart, where a first-level cache
// does not keep them for the second time that they are read, and what it misses waits behind prefetched lines.
struct RowPart {
  RowPart(const Bf16* row, Bf16* copy) : first(Load64(row)), second(Load64(row + kWideDims / 2)) {
    _mm512_store_si512(copy, first);
    _mm512_store_si512(copy + kWideDims / 2, second);
  }
  __m512i first, second;
};

// Of each two bf16 the first one and the second one, as floats.
inline __m512 WideEven(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 WideOdd(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))); }
// 16 even dims' dwords and 16 odd ones' to 32 in order.
struct InOrder {
  InOrder(__m512i even, __m512i odd)
      : low(_mm512_permutex2var_epi32(even, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                                      odd)),
        high(_mm512_permutex2var_epi32(
            even, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), odd)) {}
  __m512i low, high;
};

// 16 bytes each of four places.
inline __m512i LoadLanes(const std::byte* at, ptrdiff_t stride) {
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(Load16(at)), Load16(at + stride), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, Load16(at + 2 * stride), 2), Load16(at + 3 * stride), 3);
}

// Dwords of four vectors' lanes to columns, lane by lane.
inline void TransposeLanes(const __m512i (&row)[4], __m512i (&column)[4]) {
  const __m512i low01 = _mm512_unpacklo_epi32(row[0], row[1]), high01 = _mm512_unpackhi_epi32(row[0], row[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(row[2], row[3]), high23 = _mm512_unpackhi_epi32(row[2], row[3]);
  column[0] = _mm512_unpacklo_epi64(low01, low23);
  column[1] = _mm512_unpackhi_epi64(low01, low23);
  column[2] = _mm512_unpacklo_epi64(high01, high23);
  column[3] = _mm512_unpackhi_epi64(high01, high23);
}

// What `pick` leaves of each token's words. First of four tokens: four dwords each, those of token l in lane l.
template <class Pick>
inline __m512i FoldToLanes(const __m512i (&of)[4], Pick pick) {
  const auto halves = [&](__m512i a, __m512i b) {  // of a, then of b
    return pick(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  return halves(halves(of[0], of[1]), halves(of[2], of[3]));
}
// Then of all 16, lanes[i] holding tokens i + 4 l: one dword each, in order, both of its words alike.
template <class Pick>
inline __m512i FoldLanes(const __m512i (&lanes)[4], Pick pick) {
  const auto dwords = [&](__m512i a, __m512i b) {
    return pick(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i low = dwords(lanes[0], lanes[1]), high = dwords(lanes[2], lanes[3]);
  const __m512i all = pick(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  return pick(all, _mm512_rol_epi32(all, 16));
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_WIDE_PACK_H_
