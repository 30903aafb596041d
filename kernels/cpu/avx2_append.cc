#include <immintrin.h>

#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/page_pack.h"

// Appending to pages (attention_page.h), for every ISA.
namespace fastdecode {
namespace {

using V = Avx2Vector;
constexpr int kRowElementsMax = 256;  // of one head

// Some tokens' elements, as the page holds them.
struct Rows {
  const std::byte* first;
  size_t stride_bytes;
  template <typename Element>
  const Element* At(int i) const {
    return reinterpret_cast<const Element*>(first + static_cast<size_t>(i) * stride_bytes);
  }
};

// Where a KV head's K and V are. They are in halves: those of one page lie one behind the other.
struct HeadPlace {
  std::byte *k[2], *v[2];
  int half_bytes;  // of K or V
  std::byte* V(int offset) const { return offset < half_bytes ? v[0] + offset : v[1] + (offset - half_bytes); }
};

template <typename To>
inline To* As(std::byte* at) {
  return reinterpret_cast<To*>(at);
}
inline __m128i Load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline __m256i Load32(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline void Store16(void* at, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(at), x); }
inline void Store32(void* at, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(at), x); }

// How lines of a page are stored, in halves. Whole pages go past the caches: otherwise each line would be read first.
struct Cached {
  static inline void StoreHalf(void* at, __m256i x) { Store32(at, x); }
};
struct Streamed {
  static inline void StoreHalf(void* at, __m256i x) { _mm256_stream_si256(static_cast<__m256i*>(at), x); }
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

// The same elements of the next KV head lie behind these, which are a row's: for the next call, in what time this one's
// arithmetic leaves to the memory.
template <typename Row>
inline void PrefetchNextHead(const Row* row, int count) {
  for (int d = 0; d < count; d += 64 / static_cast<int>(sizeof(Row))) {
    _mm_prefetch(reinterpret_cast<const char*>(row + count + d), _MM_HINT_T1);
  }
}

// `tokens` rows of `count` elements, one behind the other. Also where nothing is to be converted: rows are often a
// multiple of 4 KiB apart, where a first-level cache does not keep 32 of them.
template <typename Element, typename Row>
inline Rows ConvertRows(const Rows& from, int tokens, int count, Element* to) {
  for (int i = 0; i < tokens; ++i) {
    const Row* const row = from.At<Row>(i);
    PrefetchNextHead(row, count);
    for (int d = 0; d < count; d += V::kLanes) Convert8(row + d, to + i * count + d);
  }
  return {reinterpret_cast<const std::byte*>(to), static_cast<size_t>(count) * sizeof(Element)};
}

// ---- K: rows to columns

// Dwords [0, 4) of eight rows to four columns.
inline void Transpose8x4(const Rows& rows, int first, int byte, __m256i (&column)[4]) {
  __m256i row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(Load16(rows.At<std::byte>(first + i) + byte)),
                                     Load16(rows.At<std::byte>(first + i + 4) + byte), 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi32(row[0], row[1]), high01 = _mm256_unpackhi_epi32(row[0], row[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(row[2], row[3]), high23 = _mm256_unpackhi_epi32(row[2], row[3]);
  column[0] = _mm256_unpacklo_epi64(low01, low23);
  column[1] = _mm256_unpackhi_epi64(low01, low23);
  column[2] = _mm256_unpacklo_epi64(high01, high23);
  column[3] = _mm256_unpackhi_epi64(high01, high23);
}

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
  Lines::StoreHalf(to, tokens_0_7);
  Lines::StoreHalf(to + 32, tokens_8_15);
}

// 16 tokens fill a panel.
template <class Lines, typename Element>
inline void PackKPanel(const Rows& rows, int row_bytes, std::byte* panel) {
  for (int byte = 0; byte < row_bytes; byte += 16) {
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
void PackK(const Rows& rows, int first_slot, int tokens, int head_dim, const HeadPlace& to) {
  const int row_bytes = head_dim * static_cast<int>(sizeof(Element));
  for (int i = 0; i < tokens;) {
    const int slot = first_slot + i;
    std::byte* const panel = to.k[slot / kPanelLanes];
    if (slot % kPanelLanes == 0 && tokens - i >= kPanelLanes) {
      PackKPanel<Lines, Element>({rows.At<std::byte>(i), rows.stride_bytes}, row_bytes, panel);
      i += kPanelLanes;
    } else {
      PutKToken<Element>(rows, i, row_bytes, slot % kPanelLanes, panel);
      ++i;
    }
  }
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
  Lines::StoreHalf(to, Load32(rows.At<float>(i) + d));
  Lines::StoreHalf(to + 8, Load32(rows.At<float>(i) + d + 8));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, Fp16* to) {
  Lines::StoreHalf(to, Load32(rows.At<Fp16>(i) + d));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, Bf16* to) {
  const __m256i even = Load32(rows.At<Bf16>(i) + d), odd = Load32(rows.At<Bf16>(i + 1) + d);
  const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
  Lines::StoreHalf(to, _mm256_permute2x128_si256(low, high, 0x20));
  Lines::StoreHalf(to + 16, _mm256_permute2x128_si256(low, high, 0x31));
}
template <class Lines>
inline void PackVLine(const Rows& rows, int i, int d, uint8_t* to) {
  __m128i row[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) row[r] = Load16(rows.At<uint8_t>(i + r) + d);
  const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]), high01 = _mm_unpackhi_epi8(row[0], row[1]);
  const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]), high23 = _mm_unpackhi_epi8(row[2], row[3]);
  Lines::StoreHalf(to, _mm256_set_m128i(_mm_unpackhi_epi16(low01, low23), _mm_unpacklo_epi16(low01, low23)));
  Lines::StoreHalf(to + 32, _mm256_set_m128i(_mm_unpackhi_epi16(high01, high23), _mm_unpacklo_epi16(high01, high23)));
}

template <class Lines, typename Element>
void PackV(const Rows& rows, int first_slot, int tokens, int head_dim, const HeadPlace& to) {
  constexpr int kTokens = kVTokens<Element>;
  constexpr int kStepBytes = kPanelLanes * static_cast<int>(sizeof(Element));
  for (int d = 0; d < head_dim; d += kPanelLanes) {
    for (int i = 0; i < tokens;) {
      const int slot = first_slot + i;
      Element* const line = As<Element>(
          to.V(d * kPageTokens * static_cast<int>(sizeof(Element)) + slot / kTokens * kTokens * kStepBytes));
      if (slot % kTokens == 0 && tokens - i >= kTokens) {
        PackVLine<Lines>(rows, i, d, line);
        i += kTokens;
      } else {
        const Element* const row = rows.At<Element>(i) + d;
        for (int lane = 0; lane < kPanelLanes; ++lane) line[lane * kTokens + slot % kTokens] = row[lane];
        ++i;
      }
    }
  }
}

// ---- Appending

inline void Clear(std::byte* at, int bytes) { __builtin_memset(at, 0, static_cast<size_t>(bytes)); }

template <class Lines, typename Element, typename Row>
void AppendPanels(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  HeadPlace place;
  place.half_bytes = PageKElements(head_dim) / 2 * static_cast<int>(sizeof(Element));
  for (int i = 0; i < kOpenPieces; ++i) {
    std::byte* const at =
        args.open_page == nullptr
            ? args.page + static_cast<ptrdiff_t>(args.kv_head * kOpenPieces + i) * place.half_bytes
            : args.open_page->pieces[i] + static_cast<size_t>(args.kv_head) * args.open_page->head_stride_bytes;
    std::byte** const halves = i < 2 ? place.k : place.v;
    halves[i % 2] = at;
    if (args.first_slot == 0 && args.tokens < kPageTokens) Clear(at, place.half_bytes);
  }
  const Rows k = {args.k, args.row_stride_bytes}, v = {args.v, args.row_stride_bytes};
  alignas(64) Element elements[kPageTokens * kRowElementsMax];
  const Rows k_elements = ConvertRows<Element, Row>(k, args.tokens, head_dim, elements);
  PackK<Lines, Element>(k_elements, args.first_slot, args.tokens, head_dim, place);
  const Rows v_elements = ConvertRows<Element, Row>(v, args.tokens, head_dim, elements);
  PackV<Lines, Element>(v_elements, args.first_slot, args.tokens, head_dim, place);
}

// ---- int8

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
  return MaxLanes(_mm256_max_epi32(_mm256_slli_epi32(largest, 16), _mm256_and_si256(largest, OddSteps())));
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
inline void StoreCodes(const Row* row, int count, const Divisors& divisors, int i, __m128i offsets, uint8_t* codes) {
  for (int d = 0; d < count; d += 16) {
    const __m256i words = Codes16<kFast>(row + d, divisors, i);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    Store16(codes + d, _mm_add_epi8(bytes, offsets));
  }
}

// k or v of some tokens in 8 bits, as attention_page.h says it; `offset` is added to the codes. Returns the tokens with
// a NaN, bit by bit.
template <typename Row>
uint32_t RoundToInt8(Rows rows, int tokens, int head_dim, int offset, uint8_t* codes, Bf16* scales) {
  alignas(32) int32_t largest[kPageTokens] = {};
  uint32_t nans = 0;
  bool finite = true;
  for (int i = 0; i < tokens; ++i) {
    PrefetchNextHead(rows.At<Row>(i), head_dim);
    largest[i] = LargestMagnitude(rows.At<Row>(i), head_dim);
    nans |= static_cast<uint32_t>(largest[i] > kInfinityBits) << i;
    finite &= largest[i] <= kBf16MaxBits;
  }
  alignas(32) Row cleaned[kPageTokens * kRowElementsMax];
  if (!finite) {
    rows = MakeFinite(rows, tokens, head_dim, cleaned);
    for (int i = 0; i < tokens; ++i) largest[i] = LargestMagnitude(rows.At<Row>(i), head_dim);
  }
  const __m128i offsets = _mm_set1_epi8(static_cast<char>(offset));
  for (int first = 0; first < tokens; first += 8) {
    const __m256i scale = RoundUp8(_mm256_div_ps(_mm256_castsi256_ps(Load32(largest + first)), _mm256_set1_ps(127)));
    Divisors divisors;
    divisors.Set(scale);
    StoreWords(scales + first, scale);
    for (int i = first; i < tokens && i < first + 8; ++i) {
      const Row* const row = rows.At<Row>(i);
      if (divisors.fast) {
        StoreCodes<true>(row, head_dim, divisors, i - first, offsets, codes + i * head_dim);
      } else {
        StoreCodes<false>(row, head_dim, divisors, i - first, offsets, codes + i * head_dim);
      }
    }
  }
  return nans;
}

template <class Lines, typename Row>
void AppendInt8(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  std::byte* const head = args.page + static_cast<ptrdiff_t>(args.kv_head) * Int8HeadBytes(head_dim);
  if (args.first_slot == 0 && args.tokens < kPageTokens) Clear(head, Int8HeadBytes(head_dim));
  const int half_bytes = PageKElements(head_dim) / 2;
  std::byte* const v = head + Int8V(head_dim);
  const HeadPlace place = {{head, head + half_bytes}, {v, v + half_bytes}, half_bytes};
  const Rows k_rows = {args.k, args.row_stride_bytes}, v_rows = {args.v, args.row_stride_bytes};
  uint8_t k_codes[kPageTokens * kRowElementsMax], v_codes[kPageTokens * kRowElementsMax];
  Bf16 k_scales[kPageTokens], v_scales[kPageTokens];
  const uint32_t k_nans = RoundToInt8<Row>(k_rows, args.tokens, head_dim, 128, k_codes, k_scales);
  const uint32_t v_nans = RoundToInt8<Row>(v_rows, args.tokens, head_dim, 0, v_codes, v_scales);
  for (int i = 0; i < args.tokens; ++i) {
    As<Bf16>(head + Int8KScales(head_dim))[args.first_slot + i] = (k_nans | v_nans) >> i & 1 ? kBf16Nan : k_scales[i];
    As<Bf16>(head + Int8VScales(head_dim))[args.first_slot + i] = v_scales[i];
  }
  const size_t row_bytes = static_cast<size_t>(head_dim);
  PackK<Lines, uint8_t>({reinterpret_cast<const std::byte*>(k_codes), row_bytes}, args.first_slot, args.tokens,
                        head_dim, place);
  PackV<Lines, uint8_t>({reinterpret_cast<const std::byte*>(v_codes), row_bytes}, args.first_slot, args.tokens,
                        head_dim, place);
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
    case KvType::kBf16:
    case KvType::kInt4:  // to an open page
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
  _mm_sfence();  // what follows in this thread, a barrier's release too, orders streamed stores no other way
}

}  // namespace fastdecode
