#ifndef FASTDECODE_KERNELS_CPU_INT4_KV_H_
#define FASTDECODE_KERNELS_CPU_INT4_KV_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/byte_panels.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Closed pages of int4 (attention_page.h), as Attention takes them. Products are of bytes and exact, all else is done
// in one order, so that every ISA gives the same bits. Page by page:
//   score    q * (scale of the dim) is rounded to 127ths of its largest; its product with the codes, plus q · minima
//   acc      w = p * (scale of the token) is rounded to 255ths of its largest; its product with the codes, plus that of
//            p and the minima
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
  static constexpr int kOverlapTileMin = V::kMaxTile + 1;
  static constexpr int kMaxHeadDim = 256;
  static constexpr int kGroups = kMaxHeadDim / kInt4GroupDims;
  using Bytes = Multiplier;
  using Each = typename Bytes::Each;
  using Prefetch = typename Bytes::Prefetch;

  static ptrdiff_t HeadBytes(int head_dim) { return Int4HeadBytes(head_dim); }
  static ptrdiff_t QueryBytes(int head_dim) { return head_dim * sizeof(float); }

  template <typename Row>
  static void SetQuery(const Row* from, int head_dim, float scale, std::byte* q) {
    float* const to = reinterpret_cast<float*>(q);
    for (int d = 0; d < head_dim; d += kLanes) V::Store(to + d, V::Mul(V::LoadRow(from + d), V::Set(scale)));
  }

  // scores[j] = q[j] · k for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Scores(int head_dim, const std::byte* page_head, const Ahead& ahead, const std::byte* q,
                            float* scores) {
    alignas(64) std::byte codes[V::kMaxTile][kMaxHeadDim];  // tiles of AMX read one more than J
    Each unit, rest;
    const Bf16* const k_scales = reinterpret_cast<const Bf16*>(page_head + Int4KScales(head_dim));
    RoundQueries<J>(head_dim, k_scales, reinterpret_cast<const float*>(q), codes[0], &unit, &rest);
    constexpr int kPanels = Bytes::kNibblesAtOnce;
    for (int t = 0; t < kPageTokens; t += kPanels * kPanelLanes) {
      Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 2
      for (int i = 0; i < kPanels; ++i) Bytes::template Zero<J>(sum[i]);
      Bytes::template MultiplyNibbles<J, kPanels, kFetch, true>(
          page_head + t * head_dim / 2, kPanelLanes * head_dim / 2, head_dim / 8, codes[0], kMaxHeadDim, ahead, sum);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Float unit_j = V::Set(unit.of[j]), rest_j = V::Set(rest.of[j]);
#pragma GCC unroll 4
        for (int i = 0; i < kPanels * kPanelVectors; ++i) {
          const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
          V::Store(scores + j * kPageTokens + t + i * kLanes, V::Fma(product, unit_j, rest_j));
        }
      }
    }
    if constexpr (kFetch == Fetch::kEveryLine) {
      const std::byte* const scales = page_head + Int4KScales(head_dim);
      const Prefetch prefetch(ahead, scales);
      for (int i = 0; i < Int4V(head_dim) - Int4KScales(head_dim); i += 64) prefetch.Line(scales + i);
    }
  }

  // p times the scales of v, as codes * unit [groups][J], for each group of dims.
  struct Weights {
    alignas(64) std::byte codes[kGroups][V::kMaxTile][kPageTokens];
    float unit[kGroups * V::kMaxTile + kLanes];
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
    constexpr int kAtOnce = Bytes::template kGroupsAtOnce<J>;
    const int groups = Int4Groups(head_dim);
    const Bf16* scales = reinterpret_cast<const Bf16*>(page_head + Int4VScales(head_dim));
    int i = 0;
    for (; i + kAtOnce <= groups; i += kAtOnce, scales += kAtOnce * 2 * kPageTokens) {
      Bytes::template RoundWeights<J, kAtOnce>(scales, 2 * kPageTokens, p, weights->codes[i][0], weights->unit + i * J);
      for (int g = 0; g < kAtOnce; ++g) {
        AddMinima<J>(scales + (2 * g + 1) * kPageTokens, p, groups * kPanelLanes, rests + (i + g) * kPanelLanes);
      }
    }
    if (kAtOnce > 1 && i < groups) {
      Bytes::template RoundWeights<J, 1>(scales, 0, p, weights->codes[i][0], weights->unit + i * J);
      AddMinima<J>(scales + kPageTokens, p, groups * kPanelLanes, rests + i * kPanelLanes);
    }
  }

  // acc[j] += p[j] · v for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const float*,
                         const Weights& weights, bool, float* acc) {
    const std::byte* const v = page_head + Int4V(head_dim);
    constexpr int kPanels = Bytes::kNibblesAtOnce;
    int dim = 0;
    for (; dim + kPanels * kPanelLanes <= head_dim; dim += kPanels * kPanelLanes) {
      AddPanels<J, kPanels, kFetch>(v + dim * kPageTokens / 2, ahead, weights, dim / kInt4GroupDims, head_dim,
                                    acc + dim);
    }
    if (kPanels > 1 && dim < head_dim) {
      AddPanels<J, 1, kFetch>(v + dim * kPageTokens / 2, ahead, weights, dim / kInt4GroupDims, head_dim, acc + dim);
    }
  }

 private:
  // Of 16 lanes, whatever the vectors' width.
  template <int J>
  static inline Float SumEach(const Float (&x)[J][kPanelVectors]) {
    Float sum[J];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) sum[j] = kPanelVectors == 2 ? V::Add(x[j][0], x[j][kPanelVectors - 1]) : x[j][0];
    return V::SumEach(sum);
  }

  template <int J, int kPanels, Fetch kFetch>
  static inline void AddPanels(const std::byte* v, const Ahead& ahead, const Weights& weights, int group, int head_dim,
                               float* acc) {
    Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) Bytes::template Zero<J>(sum[i]);
    Bytes::template MultiplyNibbles<J, kPanels, kFetch, false>(v, kPanelLanes * kPageTokens / 2, kPageTokens / 8,
                                                               weights.codes[group][0], kPageTokens, ahead, sum);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Float unit_j = V::Set(weights.unit[group * J + j]);
#pragma GCC unroll 4
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        float* const at = acc + j * head_dim + i * kLanes;
        const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
        V::Store(at, V::Fma(product, unit_j, V::Load(at)));
      }
    }
  }

  // q[j] * scales = codes[j] * unit[j], rounded, codes [J][kMaxHeadDim]; rest[j] = q[j] · minima.
  template <int J>
  static inline void RoundQueries(int head_dim, const Bf16* scales, const float* q, std::byte* codes, Each* unit,
                                  Each* rest) {
    alignas(64) float scaled[J][kMaxHeadDim];
    const Bf16* const minima = scales + head_dim;
    Float top[J], dot[J][kPanelVectors];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      top[j] = V::Set(Bytes::kTiny);
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) dot[j][w] = V::Zero();
    }
    for (int d = 0; d < head_dim; d += kPanelLanes) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        const int i = d + w * kLanes;
        const Float scale = V::LoadRow(scales + i), minimum = V::LoadRow(minima + i);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const Float x = V::Load(q + j * head_dim + i);
          const Float y = V::Mul(x, scale);
          V::Store(scaled[j] + i, y);
          top[j] = V::MaxAbs(y, top[j]);
          dot[j][w] = V::Fma(x, minimum, dot[j][w]);
        }
      }
    }
    const Float largest = V::MaxEach(top);
    const Each to_code(V::Div(V::Set(127), largest));
    *unit = Each(V::Mul(largest, V::Set(1.0f / 127)));
    *rest = Each(SumEach<J>(dot));
    constexpr int kVectors = kPageTokens / kLanes;  // of 32 dims
    for (int d = 0; d < head_dim; d += 2 * kPageTokens) {
      const int vectors = (head_dim - d) / kLanes;
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Float by = V::Set(to_code.of[j]);
        Int words[2][kVectors];
#pragma GCC unroll 8
        for (int i = 0; i < 2 * kVectors; ++i) {
          words[i / kVectors][i % kVectors] =
              i < vectors ? V::ToWords(V::Load(scaled[j] + d + i * kLanes), by) : V::SetInt(0);
        }
        std::byte* const to = codes + j * kMaxHeadDim + d;
        V::template StoreCodes<true>(to, to + kPageTokens, words[0], words[1]);
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
