#ifndef FASTDECODE_KERNELS_CPU_INT4_KV_H_
#define FASTDECODE_KERNELS_CPU_INT4_KV_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/byte_panels.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Closed pages of int4 (attention_page.h), as Attention takes them. Products are of integers and exact, all else is
// done in one order, so that every ISA gives the same bits. q is first rounded to words of 16 bits, 32767ths of its
// largest. Page by page:
//   score    words times the scales of the dims, in 2^15ths, and again rounded to bytes, 127ths of the largest; the
//            bytes' product with the codes, plus that of the words and the minima
//   acc      p is rounded to words, 32767ths of the page's largest; times the scales of the tokens to bytes. Their
//            product with the codes, plus that of p and the minima
// So numbers are scaled twice as many at a time as floats would be.
template <class V, class Multiplier = BytePanels<V>>
struct Int4Kv {
  using Float = typename V::Float;
  using Int = typename V::Int;
  using Probability = float;
  static constexpr bool kScalesScores = false;
  static constexpr bool kTakesF32Rows = true;
  static constexpr bool kCoarseP = true;
  static constexpr float kPRounding = kCoarseExp2Error;
  static constexpr int kSparseTileMax = 0;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPageVectors = kPageTokens / kLanes;
  static constexpr int kPageWords = kPageVectors / 2;
  static constexpr int kOverlapTileMin = V::kMaxTile + 1;
  static constexpr int kMaxHeadDim = 256;
  static constexpr int kGroups = kMaxHeadDim / kInt4GroupDims;
  static constexpr int kWords = 2 * kLanes;  // of an Int
  using Bytes = Multiplier;
  using Each = typename Bytes::Each;
  using Prefetch = typename Bytes::Prefetch;

  static ptrdiff_t HeadBytes(int head_dim) { return Int4HeadBytes(head_dim); }
  static ptrdiff_t QueryBytes(int head_dim) { return Int4QueryBytes(head_dim); }

  template <typename Row>
  static void SetQuery(const Row* from, int head_dim, float scale, std::byte* q) {
    Int top = V::SetInt(0);
    for (int d = 0; d < head_dim; d += kLanes) top = V::MaxMagnitude(V::LoadRow(from + d), top);
    const float most = V::MaxLanes(V::AsFloat(top)) * scale, largest = most > Bytes::kTiny ? most : Bytes::kTiny;
    const Float to_word = V::Set(32767 / largest);
    const auto words_at = [&](int d) __attribute__((always_inline)) {
      return d < head_dim ? V::ToWords(V::Mul(V::LoadRow(from + d), V::Set(scale)), to_word) : V::SetInt(0);
    };
    const int words = Int4QueryWords(head_dim);
    for (int d = 0; d < words; d += kWords) V::StoreInt(q + d * 2, V::JoinWords(words_at(d), words_at(d + kLanes)));
    const float unit = V::AnyNotFinite(top) ? __builtin_nanf("") : largest / 32767;
    __builtin_memcpy(q + words * 2, &unit, sizeof(unit));
  }

  // Of each row-head, for one page.
  struct Prepared {
    alignas(64) int32_t to_code[kLanes];  // words to bytes, in 2^15ths, twice in a lane
    Each unit;                            // of a product of codes, in those of words and scales
    Each rest;                            // the product of words and minima, in the same
    float page_unit;  // of a word times a scale: to be multiplied by that of q first, or it overflows
  };
  template <int J>
  static inline void Prepare(int head_dim, const std::byte* page_head, const std::byte* q, Prepared* to) {
    const ptrdiff_t q_bytes = QueryBytes(head_dim);
    const std::byte* const scales = page_head + Int4KScales(head_dim);
    const std::byte* const minima = scales + head_dim * 2;
    Int top[J], dot[J][kPanelVectors];
    Bytes::template Zero<J>(dot);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) top[j] = V::SetInt(0);
    for (int d = 0; d < head_dim; d += kPanelVectors * kWords) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        const int at = (d + w * kWords) * 2;
        const Int scale = V::LoadInt(scales + at), minimum = V::LoadInt(minima + at);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const Int x = V::MulWords(V::LoadInt(q + j * q_bytes + at), scale);
          top[j] = V::MaxWords(V::AbsWords(x), top[j]);
          dot[j][w] = V::DotWords(dot[j][w], x, minimum);
        }
      }
    }
    to->page_unit = reinterpret_cast<const Int4Units*>(page_head + Int4VUnits(head_dim))->k_scale * 0x1p15f;
    const Float largest = V::Max(V::Set(1), V::ToFloat(V::MaxWordOfEach(top)));
    const Int to_code = V::ToInt(V::Min(V::Set(32767), V::Div(V::Set(127 * 0x1p15f), largest)));
    V::StoreInt(to->to_code, V::TwiceEachWord(to_code));
    to->unit = Each(V::Div(V::Set(0x1p15f), V::ToFloat(to_code)));
    Float sum[J];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      sum[j] = V::ToFloat(dot[j][0]);
      if constexpr (kPanelVectors == 2) sum[j] = V::Add(sum[j], V::ToFloat(dot[j][kPanelVectors - 1]));
    }
    to->rest = Each(V::SumEach(sum));
  }

  // scores[j] = q[j] · k for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Scores(int head_dim, const std::byte* page_head, const Ahead& ahead, const std::byte* q, int,
                            const Prepared& prepared, float* scores) {
    alignas(64) std::byte codes[J][kMaxHeadDim];
    const std::byte* const scales = page_head + Int4KScales(head_dim);
    RoundQueries<J>(head_dim, scales, q, prepared, codes[0]);
    constexpr int kPanels = Bytes::kNibblesAtOnce;
    for (int t = 0; t < kPageTokens; t += kPanels * kPanelLanes) {
      Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 2
      for (int i = 0; i < kPanels; ++i) Bytes::template Zero<J>(sum[i]);
      Bytes::template MultiplyNibbles<J, kPanels, kFetch, true>(
          page_head + t * head_dim / 2, kPanelLanes * head_dim / 2, head_dim / 8, codes[0], kMaxHeadDim, ahead, sum);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Float both_units = V::Set(UnitOf(head_dim, q, j) * prepared.page_unit);
        const Float unit = V::Mul(V::Set(prepared.unit.of[j]), both_units);
        const Float rest = V::Mul(V::Set(prepared.rest.of[j]), both_units);
#pragma GCC unroll 4
        for (int i = 0; i < kPanels * kPanelVectors; ++i) {
          const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
          V::Store(scores + j * kPageTokens + t + i * kLanes, V::Fma(product, unit, rest));
        }
      }
    }
    if constexpr (kFetch == Fetch::kEveryLine) {
      const Prefetch prefetch(ahead, scales);
      for (int i = 0; i < Int4V(head_dim) - Int4KScales(head_dim); i += 64) prefetch.Line(scales + i);
    }
  }

  // Of each row-head: p to words, and a word's unit.
  struct Weights {
    Each to_word, unit;
  };
  // And p · minima, [J][groups][16], in lanes.
  static int RestFloats(int head_dim) { return Int4Groups(head_dim) * kPanelLanes; }
  static void AddRests(int head_dim, const float* rests, float* acc) {
    for (int dim = 0; dim < head_dim; dim += kInt4GroupDims, rests += kPanelLanes) {
      Float sum = V::Load(rests);
      if constexpr (kPanelVectors == 2) sum = V::Add(sum, V::Load(rests + kLanes));
      const Float rest = V::Set(V::SumLanes(sum));
      const int end = dim + kInt4GroupDims < head_dim ? dim + kInt4GroupDims : head_dim;
      for (int d = dim; d < end; d += kLanes) V::Store(acc + d, V::Add(V::Load(acc + d), rest));
    }
  }
  template <int J>
  static inline void Weigh(int head_dim, const std::byte* page_head, const float* p, Weights* weights, float* rests) {
    Float top[J];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      top[j] = V::Load(p + j * kPageTokens);
#pragma GCC unroll 4
      for (int w = 1; w < kPageVectors; ++w) top[j] = V::Max(V::Load(p + j * kPageTokens + w * kLanes), top[j]);
    }
    const Float largest = V::Max(V::MaxEach(top), V::Set(Bytes::kTiny));
    weights->to_word = Each(V::Div(V::Set(32767), largest));
    weights->unit = Each(V::Mul(largest, V::Set(0x1p15f / 32767)));
    const int groups = Int4Groups(head_dim);
    const std::byte* minima = page_head + Int4VMinima(head_dim);
    for (int g = 0; g < groups; ++g, minima += kInt4GroupBytes) {
      AddMinima<J>(reinterpret_cast<const Bf16*>(minima), p, groups * kPanelLanes, rests + g * kPanelLanes);
    }
  }

  // acc[j] += p[j] · v for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const float* p, int,
                         const Weights& weights, bool, float* acc) {
    GroupWeights of_groups;
    RoundWeights<J>(head_dim, page_head, p, weights, &of_groups);
    const std::byte* const v = page_head + Int4V(head_dim);
    constexpr int kPanels = Bytes::kNibblesAtOnce;
    int dim = 0;
    for (; dim + kPanels * kPanelLanes <= head_dim; dim += kPanels * kPanelLanes) {
      AddPanels<J, kPanels, kFetch>(v + dim * kPageTokens / 2, ahead, of_groups, dim / kInt4GroupDims, head_dim,
                                    acc + dim);
    }
    if (kPanels > 1 && dim < head_dim) {
      AddPanels<J, 1, kFetch>(v + dim * kPageTokens / 2, ahead, of_groups, dim / kInt4GroupDims, head_dim, acc + dim);
    }
  }

 private:
  static float UnitOf(int head_dim, const std::byte* q, int j) {
    return *reinterpret_cast<const float*>(q + j * QueryBytes(head_dim) + Int4QueryWords(head_dim) * 2);
  }

  // p times the scales of v, as codes * unit, for each group of dims.
  struct GroupWeights {
    alignas(64) std::byte codes[kGroups][Bytes::kTokenRows][kPageTokens];
    Each unit[kGroups];
  };

  template <int J>
  static inline void RoundWeights(int head_dim, const std::byte* page_head, const float* p, const Weights& weights,
                                  GroupWeights* to) {
    Int words[J][kPageWords];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPageWords; ++w) {
        const float* const at = p + j * kPageTokens + w * kWords;
        words[j][w] = Bytes::ToWords(V::Load(at), V::Load(at + kLanes), V::Set(weights.to_word.of[j]));
      }
    }
    const int groups = Int4Groups(head_dim);
    const std::byte* scales = page_head + Int4VScales(head_dim);
    for (int g = 0; g < groups; ++g, scales += kInt4GroupBytes) {
      const float unit = reinterpret_cast<const Int4Units*>(scales + kPageTokens)->v_scale;
      to->unit[g] = Each(V::Mul(V::Load(weights.unit.of), V::Set(unit)));
      Int scale[kPageWords];
#pragma GCC unroll 2
      for (int w = 0; w < kPageWords; ++w) scale[w] = V::WidenBytes(scales + w * kWords);
#pragma GCC unroll 8
      for (int j = 0; j < J; j += 2) {
        const int next = j + 1 < J ? j + 1 : j;
        Int weight[2][kPageWords];
#pragma GCC unroll 2
        for (int w = 0; w < kPageWords; ++w) {
          weight[0][w] = V::MulWords(words[j][w], scale[w]);
          weight[1][w] = V::MulWords(words[next][w], scale[w]);
        }
        Bytes::StoreTokens(to->codes[g][j], weight[0], weight[1]);
      }
    }
  }

  template <int J, int kPanels, Fetch kFetch>
  static inline void AddPanels(const std::byte* v, const Ahead& ahead, const GroupWeights& weights, int group,
                               int head_dim, float* acc) {
    Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) Bytes::template Zero<J>(sum[i]);
    Bytes::template MultiplyNibbles<J, kPanels, kFetch, false>(v, kPanelLanes * kPageTokens / 2, kPageTokens / 8,
                                                               weights.codes[group][0], kPageTokens, ahead, sum);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Float unit = V::Set(weights.unit[group].of[j]);
#pragma GCC unroll 4
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        float* const at = acc + j * head_dim + i * kLanes;
        const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
        V::Store(at, V::Fma(product, unit, V::Load(at)));
      }
    }
  }

  // q[j] * scales, as codes [J][kMaxHeadDim] times the units that Prepare found.
  template <int J>
  static inline void RoundQueries(int head_dim, const std::byte* scales, const std::byte* q, const Prepared& prepared,
                                  std::byte* codes) {
    const ptrdiff_t q_bytes = QueryBytes(head_dim);
    for (int d = 0; d < head_dim; d += 2 * kWords) {
      const Int first = V::LoadInt(scales + d * 2), second = V::LoadInt(scales + (d + kWords) * 2);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const std::byte* const words = q + j * q_bytes + d * 2;
        const Int to_code = V::SetInt(prepared.to_code[j]);
        const Int x = V::MulWords(V::MulWords(V::LoadInt(words), first), to_code);
        const Int y = V::MulWords(V::MulWords(V::LoadInt(words + kWords * 2), second), to_code);
        V::template StoreWordsAsBytes<true>(codes + j * kMaxHeadDim + d, x, y);
      }
    }
  }

  // rests[j] += p[j] · minima, in 16 lanes.
  template <int J>
  static inline void AddMinima(const Bf16* minima, const float* p, ptrdiff_t stride, float* rests) {
    Float minimum[2 * kPanelVectors];
#pragma GCC unroll 4
    for (int w = 0; w < 2 * kPanelVectors; ++w) minimum[w] = V::LoadRow(minima + w * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        const int i = j * kPageTokens + w * kLanes, k = kPanelLanes + i;
        float* const at = rests + j * stride + w * kLanes;
        const Float low = V::Fma(V::Load(p + i), minimum[w], V::Load(at));
        V::Store(at, V::Fma(V::Load(p + k), minimum[w + kPanelVectors], low));
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_INT4_KV_H_
