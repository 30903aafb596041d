#include <immintrin.h>

#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/int4_rows.h"
#include "kernels/cpu/page_pack.h"

// Appending to pages (attention_page.h), for every ISA.
namespace fastdecode {
namespace {

using V = Avx2Vector;

// Where a KV head's K and V are.
struct HeadPlace {
  std::byte* k;
  int k_panel_bytes;
  std::byte* v;
};

// ---- Elements

// x with magnitudes above `largest` cut down to it; NaN stays. By bits, so that denormals are left alone.
inline __m256i Clamp(__m256i x, int32_t largest) {
  const __m256i sign = _mm256_set1_epi32(INT32_MIN);
  const __m256i magnitude = _mm256_andnot_si256(sign, x);
  const __m256i clamped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(largest));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kInfinityBits));
  return _mm256_blendv_epi8(_mm256_or_si256(clamped, _mm256_and_si256(x, sign)), x, nan);
}

template <typename Row>
inline __m256i LoadBits(const Row* from) {
  return _mm256_castps_si256(V::LoadRow(from));
}
inline void Convert8(const Bf16* from, Bf16* to) { Store16(to, Load16(from)); }
template <typename Row>
inline void Convert8(const Row* from, float* to) {
  V::Store(to, V::LoadRow(from));
}
inline void Convert8(const float* from, Bf16* to) {
  V::StoreRow(to, _mm256_castsi256_ps(Clamp(LoadBits(from), kBf16MaxBits)));
}
template <typename Row>
inline void Convert8(const Row* from, Fp16* to) {
  const __m256i x = LoadBits(from);
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(INT32_MAX));
  const __m256i clamped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(kFp16MaxBits));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kInfinityBits));
  const __m256i one_nan = _mm256_blendv_epi8(clamped, _mm256_set1_epi32(kQuietNanBits), nan);  // all become the same
  const __m256i sign = _mm256_xor_si256(x, magnitude);
  Store16(to, _mm256_cvtps_ph(_mm256_castsi256_ps(_mm256_or_si256(one_nan, sign)),
                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// `tokens` rows of `count` elements, one behind the other. Also where nothing is to be converted: rows are often a
// multiple of 4 KiB apart, where a first-level cache does not keep 16 of them.
template <typename Element, typename Row>
inline Rows ConvertRows(const Rows& from, int tokens, int count, Element* to) {
  for (int i = 0; i < tokens; ++i) {
    const Row* const row = from.At<Row>(i);
    for (int d = 0; d < count; d += V::kLanes) Convert8(row + d, to + i * count + d);
  }
  return {reinterpret_cast<const std::byte*>(to), static_cast<size_t>(count) * sizeof(Element)};
}

// ---- K: rows to columns

// A dword of each of 16 tokens, which are one step of a panel in f32, two in bf16, and a quad of codes.
template <class Lines, typename Element>
inline void StoreColumn(std::byte* to, __m256i tokens_0_7, __m256i tokens_8_15) {
  if constexpr (__is_same(Element, Fp16)) {  // two steps, apart
    const __m256i low_half = _mm256_set1_epi32(0xffff);
    const __m256i even =
        _mm256_packus_epi32(_mm256_and_si256(tokens_0_7, low_half), _mm256_and_si256(tokens_8_15, low_half));
    const __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(tokens_0_7, 16), _mm256_srli_epi32(tokens_8_15, 16));
    tokens_0_7 = _mm256_permute4x64_epi64(even, 0xd8);
    tokens_8_15 = _mm256_permute4x64_epi64(odd, 0xd8);
  }
  StoreLine<Lines>(to, tokens_0_7, tokens_8_15);
}

// 16 tokens fill a panel.
template <class Lines, typename Element>
inline void PackKPanel(const Rows& rows, int row_bytes, std::byte* panel, Upcoming* next) {
  for (int byte = 0; byte < row_bytes; byte += 16) {
    next->After(byte * kPanelLanes / row_bytes);
    __m256i tokens_0_7[4], tokens_8_15[4];
    Transpose8x4(rows, 0, byte, tokens_0_7);
    Transpose8x4(rows, 8, byte, tokens_8_15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, panel += 64) StoreColumn<Lines, Element>(panel, tokens_0_7[i], tokens_8_15[i]);
  }
}

template <typename Element>
inline void PutKToken(const Rows& rows, int i, int row_bytes, int lane, std::byte* panel) {
  if constexpr (__is_same(Element, Fp16)) {
    const Fp16* const row = rows.At<Fp16>(i);
    for (int d = 0; d < row_bytes / 2; ++d) As<Fp16>(panel)[d * kPanelLanes + lane] = row[d];
  } else {
    for (int byte = 0; byte < row_bytes; byte += 4, panel += 64) {
      __builtin_memcpy(panel + 4 * lane, rows.At<std::byte>(i) + byte, 4);
    }
  }
}

template <class Lines, typename Element>
void PackK(const Rows& rows, int first_slot, int tokens, int head_dim, const HeadPlace& to, Upcoming* next) {
  const int row_bytes = head_dim * static_cast<int>(sizeof(Element));
  std::byte* const panel = to.k + first_slot / kPanelLanes * to.k_panel_bytes;
  if (tokens == kPanelLanes) return PackKPanel<Lines, Element>(rows, row_bytes, panel, next);
  for (int i = 0; i < tokens; ++i) PutKToken<Element>(rows, i, row_bytes, first_slot % kPanelLanes + i, panel);
}

// ---- V: rows stay rows, some of them interleaved in a line

// Tokens whose elements lie side by side.
template <typename Element>
constexpr int kVTokens = __is_same(Element, Bf16) ? 2
                         : sizeof(Element) == 1   ? 4
                                                  : 1;

// A panel's 16 dims of kVTokens tokens.
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, float* to) {
  StoreLine<Lines>(to, Load32(rows.At<float>(i) + d), Load32(rows.At<float>(i) + d + 8));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, Fp16* to) {
  Lines::StoreHalf(to, Load32(rows.At<Fp16>(i) + d));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, Bf16* to) {
  const __m256i even = Load32(rows.At<Bf16>(i) + d), odd = Load32(rows.At<Bf16>(i + 1) + d);
  const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
  StoreLine<Lines>(to, _mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, uint8_t* to) {
  __m128i row[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) row[r] = Load16(rows.At<uint8_t>(i + r) + d);
  const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]), high01 = _mm_unpackhi_epi8(row[0], row[1]);
  const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]), high23 = _mm_unpackhi_epi8(row[2], row[3]);
  StoreLine<Lines>(to, _mm256_set_m128i(_mm_unpackhi_epi16(low01, low23), _mm_unpacklo_epi16(low01, low23)),
                   _mm256_set_m128i(_mm_unpackhi_epi16(high01, high23), _mm_unpacklo_epi16(high01, high23)));
}

// One token's 16 elements to its place among kVTokens: the line is read and written whole, for a few of its elements
// at a time would fill the store buffer while the next line is waited for.
inline __m256i Widen(const Bf16* from) { return _mm256_cvtepu16_epi32(Load16(from)); }
inline __m256i Widen(const uint8_t* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
template <typename Element>
inline void PutVToken(const Element* row, int place, Element* line) {
  const __m128i shift = _mm_cvtsi32_si128(place * 8 * static_cast<int>(sizeof(Element)));
  const __m256i token = _mm256_sll_epi32(_mm256_set1_epi32(sizeof(Element) == 1 ? 0xff : 0xffff), shift);
  for (int lane = 0; lane < kPanelLanes; lane += 8) {
    __m256i* const at = reinterpret_cast<__m256i*>(line + lane * kVTokens<Element>);
    const __m256i others = _mm256_andnot_si256(token, _mm256_loadu_si256(at));
    _mm256_storeu_si256(at, _mm256_or_si256(others, _mm256_sll_epi32(Widen(row + lane), shift)));
  }
}

template <class Lines, typename Element>
void PackV(const Rows& rows, int first_slot, int tokens, int head_dim, const HeadPlace& to, Upcoming* next) {
  constexpr int kTokens = kVTokens<Element>;
  constexpr int kStepBytes = kPanelLanes * static_cast<int>(sizeof(Element));
  for (int d = 0; d < head_dim; d += kPanelLanes) {
    for (int i = 0; i < tokens;) {
      const int slot = first_slot + i;
      Element* const line = As<Element>(to.v + d * kPageTokens * static_cast<int>(sizeof(Element)) +
                                        slot / kTokens * kTokens * kStepBytes);
      if (slot % kTokens == 0 && tokens - i >= kTokens) {
        if (i % 8 == 0) next->After((d + i) * kPanelLanes / head_dim);
        PackVLine<Lines>(rows, i, d, line);
        i += kTokens;
      } else {
        if constexpr (kTokens > 1) PutVToken(rows.At<Element>(i) + d, slot % kTokens, line);
        ++i;
      }
    }
  }
}

// ---- Appending

inline void Clear(std::byte* at, int bytes) { __builtin_memset(at, 0, static_cast<size_t>(bytes)); }

// From token i on, of one panel of K: parts so small that stores come between reads.
inline int TokensOfPanel(const AppendArgs& args, int i) {
  const int room = kPanelLanes - (args.first_slot + i) % kPanelLanes;
  return room < args.tokens - i ? room : args.tokens - i;
}

template <class Lines, typename Element, typename Row>
void AppendPanels(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  const int bytes = PageKElements(head_dim) * static_cast<int>(sizeof(Element));  // of K or V
  std::byte* const head = args.page + static_cast<ptrdiff_t>(args.kv_head) * 2 * bytes;
  if (args.first_slot == 0 && args.tokens < kPageTokens) Clear(head, 2 * bytes);
  const HeadPlace place = {head, bytes / kPageKPanels, head + bytes};
  const Rows k_rows = {args.k, args.row_stride_bytes}, v_rows = {args.v, args.row_stride_bytes};
  Upcoming next(args, shape.kv_heads, head_dim * static_cast<int>(sizeof(Row)));
  alignas(64) Element elements[kPanelLanes * kRowElementsMax];
  for (int i = 0, tokens; i < args.tokens; i += tokens) {
    tokens = TokensOfPanel(args, i);
    next.Begin(2 * i);
    const Rows k = ConvertRows<Element, Row>(k_rows.From(i), tokens, head_dim, elements);
    PackK<Lines, Element>(k, args.first_slot + i, tokens, head_dim, place, &next);
    next.Begin(2 * i + tokens);
    const Rows v = ConvertRows<Element, Row>(v_rows.From(i), tokens, head_dim, elements);
    PackV<Lines, Element>(v, args.first_slot + i, tokens, head_dim, place, &next);
  }
}

// ---- int8

// Quotients that are rounded to integers afterwards, by eight numbers >= 0 in bf16; by 1 in place of 0.
struct Divisors {
  // `scales` are 16 bits in 32.
  void Set(__m256i scales) {
    const __m256 wide = EvenSteps(scales), one = _mm256_set1_ps(1);
    const __m256 divisors = _mm256_blendv_ps(wide, one, _mm256_cmp_ps(wide, _mm256_setzero_ps(), _CMP_EQ_OQ));
    _mm256_store_ps(divisor, divisors);
    _mm256_store_ps(inverse, _mm256_div_ps(one, divisors));
    fast = _mm256_movemask_ps(_mm256_cmp_ps(divisors, _mm256_set1_ps(0x1p-64f), _CMP_LT_OQ)) == 0;
  }

  // x / divisor[i]; or with kFast, if all divisors are `fast`, what rounds to the same integer. The product with the
  // inverse, and then the remainder's, come within a little more than half a unit in the last place of the exact
  // quotient, as long as the remainder is no denormal. And a float next to the exact quotient lies halfway between two
  // integers only if that does, too, or is more than 128/255 of such a unit away, because a divisor has 8 bits.
  template <bool kFast>
  __m256 Quotient(int i, __m256 x) const {
    const __m256 by = _mm256_set1_ps(divisor[i]);
    if constexpr (!kFast) return _mm256_div_ps(x, by);
    const __m256 by_inverse = _mm256_set1_ps(inverse[i]);
    const __m256 quotient = _mm256_mul_ps(x, by_inverse);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, by, x), by_inverse, quotient);
  }

  alignas(32) float divisor[8], inverse[8];
  bool fast;
};

// The low 16 bits of 8 lanes, whose others are 0.
inline void StoreWords(Bf16* to, __m256i x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  Store16(to, _mm256_castsi256_si128(words));
}

// The largest magnitude's bits, as those of a float: more than kInfinityBits if there is a NaN.
inline int32_t LargestMagnitude(const float* row, int count) {
  __m256i largest = _mm256_setzero_si256();
  for (int d = 0; d < count; d += 8) {
    largest = _mm256_max_epi32(largest, _mm256_and_si256(Load32(row + d), _mm256_set1_epi32(INT32_MAX)));
  }
  return MaxLanes(largest);
}
inline int32_t LargestMagnitude(const Bf16* row, int count) {
  __m256i largest = _mm256_setzero_si256();
  for (int d = 0; d < count; d += 16) {
    largest = _mm256_max_epi16(largest, _mm256_and_si256(Load32(row + d), _mm256_set1_epi16(INT16_MAX)));
  }
  return MaxLanes(
      _mm256_max_epi32(_mm256_slli_epi32(largest, 16), _mm256_and_si256(largest, _mm256_set1_epi32(-65536))));
}

// Zero for NaN, the largest bf16 for what is beyond.
template <typename Row>
Rows MakeFinite(const Rows& from, int tokens, int count, Row* to) {
  for (int i = 0; i < tokens; ++i) {
    for (int d = 0; d < count; d += V::kLanes) {
      const V::Float x = V::LoadRow(from.At<Row>(i) + d);
      const V::Float clamped = _mm256_castsi256_ps(Clamp(_mm256_castps_si256(x), kBf16MaxBits));
      V::StoreRow(to + i * count + d, _mm256_and_ps(clamped, _mm256_cmp_ps(x, x, _CMP_ORD_Q)));
    }
  }
  return {reinterpret_cast<const std::byte*>(to), static_cast<size_t>(count) * sizeof(Row)};
}

template <bool kFast>
inline __m256i Codes16(const float* x, const Divisors& divisors, int i) {
  const __m256i low = V::ToInt(divisors.Quotient<kFast>(i, V::LoadRow(x)));
  const __m256i high = V::ToInt(divisors.Quotient<kFast>(i, V::LoadRow(x + 8)));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}
// An x in bf16 over a divisor in bf16 is halfway between two integers or 2^-9 off at least: so it can be rounded to a
// multiple of 2^-12 first, which does away with the inverse's error, and then to an integer, in the low bits of a sum.
template <bool kFast>
inline __m256i Codes16(const Bf16* x, const Divisors& divisors, int i) {
  const __m256 even = V::LoadStep<0>(x), odd = V::LoadStep<1>(x);
  if constexpr (kFast) {
    const __m256 inverse = _mm256_set1_ps(divisors.inverse[i]);
    const __m256 fine = _mm256_set1_ps(0x1.8p11f), rest = _mm256_set1_ps(0x1.8p23f - 0x1.8p11f);
    const __m256i low = _mm256_castps_si256(_mm256_add_ps(_mm256_fmadd_ps(even, inverse, fine), rest));
    const __m256i high = _mm256_castps_si256(_mm256_add_ps(_mm256_fmadd_ps(odd, inverse, fine), rest));
    return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
  } else {
    const __m256i low = V::ToInt(divisors.Quotient<false>(i, even)), high = V::ToInt(divisors.Quotient<false>(i, odd));
    return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
  }
}

template <bool kFast, typename Row>
inline void StoreCodes(const Row* row, int count, const Divisors& divisors, int i, __m256i offsets, uint8_t* codes) {
  for (int d = 0; d < count; d += 32) {
    const __m256i low = Codes16<kFast>(row + d, divisors, i);
    const __m256i high = d + 16 < count ? Codes16<kFast>(row + d + 16, divisors, i) : low;
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    Store32(codes + d, _mm256_add_epi8(bytes, offsets));
  }
}

constexpr int kInt8Tokens = 8;  // rounded at once: of so many a first-level cache keeps the rows

// k or v of so many tokens in 8 bits, as attention_page.h says it; `offset` is added to the codes, whose rows are
// kRowElementsMax apart. Returns the tokens with a NaN, bit by bit.
template <typename Row>
uint32_t RoundToInt8(Rows rows, int tokens, int head_dim, int offset, uint8_t* codes, Bf16* scales, Upcoming* next) {
  alignas(32) int32_t largest[kInt8Tokens] = {};
  uint32_t nans = 0;
  bool finite = true;
  for (int i = 0; i < tokens; ++i) {
    largest[i] = LargestMagnitude(rows.At<Row>(i), head_dim);
    nans |= static_cast<uint32_t>(largest[i] > kInfinityBits) << i;
    finite &= largest[i] <= kBf16MaxBits;
  }
  alignas(32) Row cleaned[kInt8Tokens * kRowElementsMax];
  if (!finite) {
    rows = MakeFinite(rows, tokens, head_dim, cleaned);
    for (int i = 0; i < tokens; ++i) largest[i] = LargestMagnitude(rows.At<Row>(i), head_dim);
  }
  const __m256i scale = RoundUp8(_mm256_div_ps(_mm256_castsi256_ps(Load32(largest)), _mm256_set1_ps(127)));
  Divisors divisors;
  divisors.Set(scale);
  StoreWords(scales, scale);
  const __m256i offsets = _mm256_set1_epi8(static_cast<char>(offset));
  for (int i = 0; i < tokens; ++i) {
    next->After(i);
    if (divisors.fast) {
      StoreCodes<true>(rows.At<Row>(i), head_dim, divisors, i, offsets, codes + i * kRowElementsMax);
    } else {
      StoreCodes<false>(rows.At<Row>(i), head_dim, divisors, i, offsets, codes + i * kRowElementsMax);
    }
  }
  return nans;
}

template <class Lines, typename Row>
void AppendInt8(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  std::byte* const head = args.page + static_cast<ptrdiff_t>(args.kv_head) * Int8HeadBytes(head_dim);
  if (args.first_slot == 0 && args.tokens < kPageTokens) Clear(head, Int8HeadBytes(head_dim));
  const HeadPlace place = {head, PageKElements(head_dim) / kPageKPanels, head + Int8V(head_dim)};
  const Rows k_rows = {args.k, args.row_stride_bytes}, v_rows = {args.v, args.row_stride_bytes};
  Upcoming next(args, shape.kv_heads, head_dim * static_cast<int>(sizeof(Row)));
  alignas(64) uint8_t codes[2][kPanelLanes * kRowElementsMax];
  const Rows k_codes = {reinterpret_cast<const std::byte*>(codes[0]), kRowElementsMax};
  const Rows v_codes = {reinterpret_cast<const std::byte*>(codes[1]), kRowElementsMax};
  Bf16 k_scales[kPageTokens + kInt8Tokens], v_scales[kPageTokens + kInt8Tokens];
  uint32_t nans = 0;
  for (int i = 0, tokens; i < args.tokens; i += tokens) {
    tokens = TokensOfPanel(args, i);
    for (int at = 0; at < tokens; at += kInt8Tokens) {
      const int count = tokens - at < kInt8Tokens ? tokens - at : kInt8Tokens;
      const Rows k_part = k_rows.From(i + at), v_part = v_rows.From(i + at);
      next.Begin(2 * (i + at));
      nans |= RoundToInt8<Row>(k_part, count, head_dim, 128, codes[0] + at * kRowElementsMax, k_scales + i + at, &next)
              << (i + at);
      next.Begin(2 * (i + at) + count);
      nans |= RoundToInt8<Row>(v_part, count, head_dim, 0, codes[1] + at * kRowElementsMax, v_scales + i + at, &next)
              << (i + at);
    }
    next.Begin(2 * i);
    PackK<Lines, uint8_t>(k_codes, args.first_slot + i, tokens, head_dim, place, &next);
    PackV<Lines, uint8_t>(v_codes, args.first_slot + i, tokens, head_dim, place, &next);
  }
  for (int i = 0; i < args.tokens; ++i) {
    As<Bf16>(head + Int8KScales(head_dim))[args.first_slot + i] = nans >> i & 1 ? kBf16Nan : k_scales[i];
    As<Bf16>(head + Int8VScales(head_dim))[args.first_slot + i] = v_scales[i];
  }
}

// ---- int4

// Rows of 32 tokens in bf16 to a closed page.
template <class Lines>
void CloseRows(int head_dim, Rows k, Rows v, uint8_t* head, Upcoming* next) {
  if (CloseHead<Lines>(k, v, head_dim, head, next)) return;
  alignas(32) Bf16 finite[2][kPageTokens * kRowElementsMax];
  bool nan[kPageTokens];
  for (int t = 0; t < kPageTokens; ++t) {
    nan[t] = LargestMagnitude(k.At<Bf16>(t), head_dim) > kInfinityBits ||
             LargestMagnitude(v.At<Bf16>(t), head_dim) > kInfinityBits;
  }
  k = MakeFinite(k, kPageTokens, head_dim, finite[0]);
  v = MakeFinite(v, kPageTokens, head_dim, finite[1]);
  CloseHead<Lines>(k, v, head_dim, head, next);
  for (int group = 0; group < Int4Groups(head_dim); ++group) {
    Bf16* const minima = reinterpret_cast<Bf16*>(head + Int4VMinima(head_dim) + group * kInt4GroupBytes);
    for (int t = 0; t < kPageTokens; ++t) {
      if (nan[t]) minima[t] = kBf16Nan;
    }
  }
}

template <class Lines, typename Row>
void AppendInt4(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  Upcoming next(args, shape.kv_heads, head_dim * static_cast<int>(sizeof(Row)));
  uint8_t* const head = As<uint8_t>(args.page) + args.kv_head * Int4HeadBytes(head_dim);
  Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  alignas(64) Bf16 elements[2][kPageTokens * kRowElementsMax];
  k = ConvertRows<Bf16, Row>(k, kPageTokens, head_dim, elements[0]);
  // Not where V is in bf16: unlike K it is read by rows.
  if constexpr (!__is_same(Row, Bf16)) v = ConvertRows<Bf16, Row>(v, kPageTokens, head_dim, elements[1]);
  CloseRows<Lines>(head_dim, k, v, head, &next);
}

// Rows stay rows.
template <typename Row>
void AppendOpen(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  const Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  Upcoming next(args, shape.kv_heads, head_dim * static_cast<int>(sizeof(Row)));
  for (int i = 0; i < args.tokens; ++i) {
    Bf16* const to = As<Bf16>(OpenTokenAt(head_dim, *args.open_page, args.kv_head, args.first_slot + i));
    next.Begin(2 * i);
    ConvertRows<Bf16, Row>(k.From(i), 1, head_dim, to);
    next.After(1);
    ConvertRows<Bf16, Row>(v.From(i), 1, head_dim, to + head_dim);
  }
}

template <class Lines, typename Row>
void AppendRows(const AttentionShape& shape, const AppendArgs& args) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return AppendPanels<Lines, float, Row>(shape, args);
    case KvType::kFp16:
      return AppendPanels<Lines, Fp16, Row>(shape, args);
    case KvType::kInt8:
      return AppendInt8<Lines, Row>(shape, args);
    case KvType::kInt4:
      if (args.open_page != nullptr) return AppendOpen<Row>(shape, args);
      return AppendInt4<Lines, Row>(shape, args);
    case KvType::kBf16:
      return AppendPanels<Lines, Bf16, Row>(shape, args);
  }
}

template <class Lines>
void AppendRows(const AttentionShape& shape, const AppendArgs& args) {
  return shape.type == ElementType::kF32 ? AppendRows<Lines, float>(shape, args) : AppendRows<Lines, Bf16>(shape, args);
}

}  // namespace

void Avx2AppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  const bool whole_lines = reinterpret_cast<uintptr_t>(args.page) % 64 == 0 && args.tokens == kPageTokens;
  if (args.open_page != nullptr || !whole_lines) return AppendRows<Cached>(shape, args);
  AppendRows<Streamed>(shape, args);
}

// A thread's later stores, a barrier's release too, order streamed ones no other way.
void EndStreams() { _mm_sfence(); }

void Avx2CloseHead(int head_dim, const std::byte* rows, uint8_t* head) {
  const Rows k = {rows, static_cast<size_t>(OpenTokenBytes(head_dim))};
  const Rows v = {rows + head_dim * sizeof(Bf16), k.stride_bytes};
  Upcoming next(AppendArgs{}, 0, 0);
  CloseRows<Cached>(head_dim, k, v, head, &next);
}

void Avx2PackOpenK(int head_dim, int tokens, const OpenPage& from, int kv_head, std::byte* to) {
  const int row_bytes = head_dim * static_cast<int>(sizeof(Bf16));
  for (int first = 0; first < tokens; first += kOpenPieceTokens) {
    const Rows k = {OpenTokenAt(head_dim, from, kv_head, first), static_cast<size_t>(OpenTokenBytes(head_dim))};
    // Half of a panel's lanes.
    std::byte* column_to = to + first / kPanelLanes * kPanelLanes * row_bytes + first % kPanelLanes * 4;
    for (int byte = 0; byte < row_bytes; byte += 16) {
      __m256i column[4];
      Transpose8x4(k, 0, byte, column);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, column_to += 64) Store32(column_to, column[i]);
    }
  }
}

void Avx2PackOpenHead(int head_dim, int tokens, const OpenPage& from, int kv_head, std::byte* to) {
  Avx2PackOpenK(head_dim, tokens, from, kv_head, to);
  const int row_bytes = head_dim * static_cast<int>(sizeof(Bf16));
  const size_t token_bytes = static_cast<size_t>(OpenTokenBytes(head_dim));
  for (int t = 0; t < tokens; t += 2) {
    const Rows v = {OpenTokenAt(head_dim, from, kv_head, t) + row_bytes, token_bytes};
    for (int d = 0; d < head_dim; d += kPanelLanes) {
      Bf16* const line = As<Bf16>(to + kPageTokens * (row_bytes + d * 2) + t * kPanelLanes * 2);
      if (t + 1 < tokens) {
        PackVLine<Cached>(v, 0, d, line);
      } else {
        Store32(line, Widen(v.At<Bf16>(0) + d));
        Store32(line + kPanelLanes, Widen(v.At<Bf16>(0) + d + kPanelLanes / 2));
      }
    }
  }
}

}  // namespace fastdecode
