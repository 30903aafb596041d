#ifndef FASTDECODE_KERNELS_CPU_AVX2_VECTOR_H_
#define FASTDECODE_KERNELS_CPU_AVX2_VECTOR_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/float_types.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Avx512Vector's members with AVX2 and FMA, bit for bit the same results.
struct Avx2Vector {
  using Float = __m256;
  using Int = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kMaxTile = 3;  // row-heads held in registers: 2 chains * 2 vectors * 3 of 16 registers

  static Float Zero() { return _mm256_setzero_ps(); }
  static Float Set(float x) { return _mm256_set1_ps(x); }
  static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static float First(Float x) { return _mm256_cvtss_f32(x); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float Abs(Float x) { return _mm256_andnot_ps(Set(-0.0f), x); }
  static Float Fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float Floor(Float x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static Float Round(Float x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  // x * 2^n, for integral n and a normal result.
  static Float ScaleByPowerOf2(Float x, Float n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
  }
  // x where !(test < bound), so also where test is NaN; 0 elsewhere.
  static Float ZeroWhereLess(Float x, Float test, Float bound) {
    return _mm256_and_ps(x, _mm256_cmp_ps(test, bound, _CMP_NLT_UQ));
  }
  static Int MaxMagnitude(Float x, Int top) { return _mm256_max_epi32(_mm256_castps_si256(Abs(x)), top); }
  static bool AnyNotFinite(Int top) {
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(top, _mm256_set1_epi32(0x7f7fffff))) != 0;
  }
  static Float ScaleOrZero(Float x, Float n, Float bound) { return ZeroWhereLess(ScaleByPowerOf2(x, n), n, bound); }
  // x in the lanes whose bit is set (bit 0 for lane 0), `other` elsewhere.
  static Float Select(uint32_t bits, Float x, Float other) {
    const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i hit = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane_bit);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(hit, lane_bit)));
  }

  // Whether any lane of a is greater than b's; NaN is not.
  static bool AnyGreater(Float a, Float b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }

  // Across lanes, always halves onto halves: lane i + lane i+4, then +2, +1.
  static float SumLanes(Float x) {
    const __m128 z = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 w = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }
  static float MaxLanes(Float x) {
    const __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 w = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }

  // Lane i: the same of x[i].
  template <int kCount>
  static Float SumEach(const Float (&x)[kCount]) {
    alignas(32) float each[kLanes] = {};
    for (int i = 0; i < kCount; ++i) each[i] = SumLanes(x[i]);
    return Load(each);
  }
  template <int kCount>
  static Float MaxEach(const Float (&x)[kCount]) {
    alignas(32) float each[kLanes] = {};
    for (int i = 0; i < kCount; ++i) each[i] = MaxLanes(x[i]);
    return Load(each);
  }

  // Lanes of the even (kOdd = 0) or odd step of a pair in a panel (attention_page.h); p points at the pair's first
  // lane.
  template <int kOdd>
  static Float LoadStep(const float* p) {
    return _mm256_loadu_ps(p + kOdd * 16);
  }
  template <int kOdd>
  static Float LoadStep(const Bf16* p) {
    const __m256i pair = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kOdd) return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(-65536)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  }

  template <int kOdd>
  static Float LoadStep(const Fp16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kOdd * 16)));
  }

  // Integers of 32 bits, a lane each, or of 8, four a lane.
  static Int SetInt(int32_t x) { return _mm256_set1_epi32(x); }
  static Int LoadInt(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void StoreInt(void* p, Int x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static Int AddInt(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Float AsFloat(Int x) { return _mm256_castsi256_ps(x); }
  static Float ToFloat(Int x) { return _mm256_cvtepi32_ps(x); }
  static constexpr bool kHasDotBytes = false;  // as one instruction
  // sum + the products of 4 unsigned and 4 signed bytes, lane by lane.
  static Int DotBytes(Int sum, Int u8, Int s8) {
    const Int u_even = _mm256_and_si256(u8, _mm256_set1_epi16(0xff)), u_odd = _mm256_srli_epi16(u8, 8);
    const Int s_even = _mm256_srai_epi16(_mm256_slli_epi16(s8, 8), 8), s_odd = _mm256_srai_epi16(s8, 8);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(u_even, s_even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(u_odd, s_odd));
  }
  // To the nearest (even) integer; NaN becomes one whose low byte is 0.
  static Int ToInt(Float x) { return _mm256_cvtps_epi32(x); }
  // The low byte of each lane.
  static void StoreBytes(void* p, Int x) {
    const Int low = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  static Int ToWords(Float x, Float by) { return _mm256_castps_si256(Fma(x, by, Set(0x1.8p23f))); }
  static Int JoinWords(Int low, Int high) {
    const Int mask = SetInt(0xffff);
    const Int joined = _mm256_packus_epi32(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
    return _mm256_permute4x64_epi64(joined, 0xd8);
  }

  static Int MulWords(Int a, Int b) { return _mm256_mulhrs_epi16(a, b); }
  static Int DotWords(Int sum, Int a, Int b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static Int AbsWords(Int x) { return _mm256_abs_epi16(x); }
  static Int MaxWords(Int a, Int b) { return _mm256_max_epi16(a, b); }
  static Int TwiceEachWord(Int x) { return _mm256_or_si256(_mm256_slli_epi32(x, 16), x); }
  static Int WidenBytes(const void* p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  template <bool kSigned>
  static void StoreWordsAsBytes(std::byte* p, Int first, Int second) {
    const Int packed = kSigned ? _mm256_packs_epi16(first, second) : _mm256_packus_epi16(first, second);
    StoreInt(p, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  template <int kCount>
  static Int MaxWordOfEach(const Int (&x)[kCount]) {
    alignas(32) int32_t each[kLanes] = {};
    for (int i = 0; i < kCount; ++i) {
      const __m128i y = _mm_max_epi16(_mm256_castsi256_si128(x[i]), _mm256_extracti128_si256(x[i], 1));
      each[i] = 0xffff & ~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(y, _mm_set1_epi32(-1))));
    }
    return LoadInt(each);
  }
  // The low and the high half of each byte, as bytes.
  static void LoadNibbles(const void* p, Int* low, Int* high) {
    const Int both = LoadInt(p), mask = _mm256_set1_epi8(15);
    *low = _mm256_and_si256(both, mask);
    *high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  }

  // kLanes consecutive elements of a row, widened or rounded (to nearest even; NaN stays NaN).
  static Float LoadRow(const float* p) { return _mm256_loadu_ps(p); }
  static Float LoadRow(const Bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void StoreRow(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static __m128i ToRow(Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
  static void StoreRow(Bf16* p, Float x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), ToRow(x)); }
  // Two, past the caches. REQUIRES: p is aligned to what is stored.
  static void StreamRow(float* p, Float low, Float high) {
    _mm256_stream_ps(p, low);
    _mm256_stream_ps(p + kLanes, high);
  }
  static void StreamRow(Bf16* p, Float low, Float high) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm256_set_m128i(ToRow(high), ToRow(low)));
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX2_VECTOR_H_
