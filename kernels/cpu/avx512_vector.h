#ifndef FASTDECODE_KERNELS_CPU_AVX512_VECTOR_H_
#define FASTDECODE_KERNELS_CPU_AVX512_VECTOR_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/float_types.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// The vectors that attention_template.h computes with, here AVX-512 (F, BW, VL, DQ). Avx2Vector has the same members
// and each gives the same bits.
struct Avx512Vector {
  using Float = __m512;
  using Int = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kMaxTile = 12;  // row-heads held in registers: 2 chains * 12 of 32 registers

  static Float Zero() { return _mm512_setzero_ps(); }
  static Float Set(float x) { return _mm512_set1_ps(x); }
  static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static float First(Float x) { return _mm512_cvtss_f32(x); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float Abs(Float x) { return _mm512_andnot_ps(Set(-0.0f), x); }
  static Float Fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float Floor(Float x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static Float Round(Float x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  // x * 2^n, for integral n and a normal result.
  static Float ScaleByPowerOf2(Float x, Float n) { return _mm512_scalef_ps(x, n); }
  // x where !(test < bound), so also where test is NaN; 0 elsewhere.
  static Float ZeroWhereLess(Float x, Float test, Float bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, bound, _CMP_NLT_UQ), x);
  }
  // The larger magnitude, as bits: NaN's is the largest. And whether there is an infinity or a NaN.
  static Int MaxMagnitude(Float x, Int top) { return _mm512_max_epi32(_mm512_castps_si512(Abs(x)), top); }
  static bool AnyNotFinite(Int top) {
    return _mm512_cmp_epi32_mask(top, _mm512_set1_epi32(0x7f800000), _MM_CMPINT_NLT) != 0;
  }
  // ScaleByPowerOf2, and ZeroWhereLess of that, where n is less itself.
  static Float ScaleOrZero(Float x, Float n, Float bound) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, bound, _CMP_NLT_UQ), x, n);
  }
  // x in the lanes whose bit is set (bit 0 for lane 0), `other` elsewhere.
  static Float Select(uint32_t bits, Float x, Float other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), x);
  }

  // Whether any lane of a is greater than b's; NaN is not.
  static bool AnyGreater(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }

  // Across lanes, always halves onto halves: lane i + lane i+8, then +4, +2, +1.
  static float SumLanes(Float x) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }
  static float MaxLanes(Float x) {
    const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 w = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }

  // Lane i: the same of x[i].
  template <int kCount>
  static Float SumEach(const Float (&x)[kCount]) {
    if constexpr (kCount == 1) return Set(SumLanes(x[0]));
    return FoldEach<Add>(x);
  }
  template <int kCount>
  static Float MaxEach(const Float (&x)[kCount]) {
    if constexpr (kCount == 1) return Set(MaxLanes(x[0]));
    return FoldEach<Max>(x);
  }

  // Lanes of the even (kOdd = 0) or odd step of a pair in a panel (attention_page.h); p points at the pair's first
  // lane.
  template <int kOdd>
  static Float LoadStep(const float* p) {
    return _mm512_loadu_ps(p + kOdd * 16);
  }
  template <int kOdd>
  static Float LoadStep(const Bf16* p) {
    const __m512i pair = _mm512_loadu_si512(p);
    if constexpr (kOdd) return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-65536)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
  }

  template <int kOdd>
  static Float LoadStep(const Fp16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kOdd * 16)));
  }

  // Integers of 32 bits, a lane each, or of 8, four a lane.
  static Int SetInt(int32_t x) { return _mm512_set1_epi32(x); }
  static Int LoadInt(const void* p) { return _mm512_loadu_si512(p); }
  static void StoreInt(void* p, Int x) { _mm512_storeu_si512(p, x); }
  static Int AddInt(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Float AsFloat(Int x) { return _mm512_castsi512_ps(x); }
  static Float ToFloat(Int x) { return _mm512_cvtepi32_ps(x); }
  static constexpr bool kHasDotBytes = false;  // as one instruction
  // sum + the products of 4 unsigned and 4 signed bytes, lane by lane.
  static Int DotBytes(Int sum, Int u8, Int s8) {
    const Int u_even = _mm512_and_si512(u8, _mm512_set1_epi16(0xff)), u_odd = _mm512_srli_epi16(u8, 8);
    const Int s_even = _mm512_srai_epi16(_mm512_slli_epi16(s8, 8), 8), s_odd = _mm512_srai_epi16(s8, 8);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(u_even, s_even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(u_odd, s_odd));
  }
  // To the nearest (even) integer; NaN becomes one whose low byte is 0.
  static Int ToInt(Float x) { return _mm512_cvtps_epi32(x); }
  // The low byte of each lane.
  static void StoreBytes(void* p, Int x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
  // x * by as integers, to the nearest (even), in the low 16 bits of each lane, where they have room there. What NaN
  // becomes means nothing.
  static Int ToWords(Float x, Float by) { return _mm512_castps_si512(Fma(x, by, Set(0x1.8p23f))); }
  // 2 * kLanes such words, without what else is in their lanes.
  static Int JoinWords(Int low, Int high) {
    // As shorts: 0, 2, 4, ...
    const Int order = _mm512_setr_epi32(0x20000, 0x60004, 0xa0008, 0xe000c, 0x120010, 0x160014, 0x1a0018, 0x1e001c,
                                        0x220020, 0x260024, 0x2a0028, 0x2e002c, 0x320030, 0x360034, 0x3a0038, 0x3e003c);
    return _mm512_permutex2var_epi16(low, order, high);
  }

  // Integers of 16 bits, two a lane. a * b / 2^15 to the nearest, halves upwards, where not both are -2^15.
  static Int MulWords(Int a, Int b) { return _mm512_mulhrs_epi16(a, b); }
  // sum + the products of 2 and 2, lane by lane.
  static Int DotWords(Int sum, Int a, Int b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
  static Int AbsWords(Int x) { return _mm512_abs_epi16(x); }
  static Int MaxWords(Int a, Int b) { return _mm512_max_epi16(a, b); }
  // The low word of each lane in both words.
  static Int TwiceEachWord(Int x) { return _mm512_or_si512(_mm512_slli_epi32(x, 16), x); }
  // 2 * kLanes unsigned bytes.
  static Int WidenBytes(const void* p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // 4 * kLanes words that bytes hold, signed or not.
  template <bool kSigned>
  static void StoreWordsAsBytes(std::byte* p, Int first, Int second) {
    const Int packed = kSigned ? _mm512_packs_epi16(first, second) : _mm512_packus_epi16(first, second);
    StoreInt(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed));
  }
  // Lane i: the largest of x[i]'s words, none of which is below 0.
  template <int kCount>
  static Int MaxWordOfEach(const Int (&x)[kCount]) {
    Float words[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) words[i] = _mm512_castsi512_ps(x[i]);
    const Int both = _mm512_castps_si512(FoldEach<MaxOfWords>(words));
    return MaxWords(_mm512_srli_epi32(both, 16), _mm512_and_si512(both, _mm512_set1_epi32(0xffff)));
  }
  // The low and the high half of each byte, as bytes.
  static void LoadNibbles(const void* p, Int* low, Int* high) {
    const Int both = LoadInt(p), mask = _mm512_set1_epi8(15);
    *low = _mm512_and_si512(both, mask);
    *high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
  }

  // kLanes consecutive elements of a row, widened or rounded (to nearest even; NaN stays NaN).
  static Float LoadRow(const float* p) { return _mm512_loadu_ps(p); }
  static Float LoadRow(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void StoreRow(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static __m256i ToRow(Float x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(result);
  }
  static void StoreRow(Bf16* p, Float x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToRow(x)); }
  // Two, past the caches. REQUIRES: p is aligned to a line.
  static void StreamRow(float* p, Float low, Float high) {
    _mm512_stream_ps(p, low);
    _mm512_stream_ps(p + kLanes, high);
  }
  static void StreamRow(Bf16* p, Float low, Float high) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(ToRow(low)), ToRow(high), 1);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), both);
  }

 private:
  static Float MaxOfWords(Float a, Float b) {
    return _mm512_castsi512_ps(MaxWords(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  // Halves onto halves, of several at a time, which takes half of the shuffles and a quarter of the rest.
  template <Float (*kFold)(Float, Float), int kCount>
  static Float FoldEach(const Float (&x)[kCount]) {
    static_assert(kCount <= kLanes);
    constexpr int kFours = (kCount + 3) / 4;
    const auto at = [&](int i) __attribute__((always_inline)) { return x[i < kCount ? i : kCount - 1]; };
    Float four[kFours];  // lanes 4 i to 4 i + 3: of the i-th of them
#pragma GCC unroll 4
    for (int i = 0; i < kFours; ++i) {
      const Float a = at(4 * i), b = at(4 * i + 1), c = at(4 * i + 2), d = at(4 * i + 3);
      const Float ab = kFold(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      const Float cd = kFold(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
      four[i] = kFold(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    const auto halve = [&](int i) __attribute__((always_inline)) {
      const Float a = four[i], b = four[i + 1 < kFours ? i + 1 : i];
      return kFold(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    };
    const Float low = halve(0), high = kFours > 2 ? halve(2) : low;
    const Float all = kFold(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, all);
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX512_VECTOR_H_
