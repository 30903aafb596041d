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
  static constexpr float kPRounding = 0;
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
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      Int sum[J][kPanelVectors];
      Bytes::template Zero<J>(sum);
      const std::byte* const panel = page_head + t * head_dim / 2;
      Bytes::template MultiplyNibbles<J, kFetch, true>(panel, head_dim / 8, codes[0], kMaxHeadDim, ahead, sum);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Float unit_j = V::Set(unit.of[j]), rest_j = V::Set(rest.of[j]);
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) {
          V::Store(scores + j * kPageTokens + t + w * kLanes, V::Fma(V::ToFloat(sum[j][w]), unit_j, rest_j));
        }
      }
    }
    if constexpr (kFetch == Fetch::kEveryLine) {
      const std::byte* const scales = page_head + Int4KScales(head_dim);
      const Prefetch prefetch(ahead, scales);
      for (int i = 0; i < Int4V(head_dim) - Int4KScales(head_dim); i += 64) prefetch.Line(scales + i);
    }
  }

  // p times the scales of v, as codes * unit, and p · minima, for each group of dims.
  struct Weights {
    alignas(64) std::byte codes[kGroups][V::kMaxTile][kPageTokens];
    Each unit[kGroups], rest[kGroups];
  };
  template <int J>
  static inline void Weigh(int head_dim, const std::byte* page_head, const float* p, Weights* weights) {
    const Bf16* scales = reinterpret_cast<const Bf16*>(page_head + Int4VScales(head_dim));
    for (int i = 0; i < Int4Groups(head_dim); ++i, scales += 2 * kPageTokens) {
      Bytes::template RoundWeights<J>(scales, p, weights->codes[i][0], &weights->unit[i]);
      DotMinima<J>(scales + kPageTokens, p, &weights->rest[i]);
    }
  }

  // acc[j] += p[j] · v for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const float*,
                         const Weights& weights, bool, float* acc) {
    const std::byte* const v = page_head + Int4V(head_dim);
    for (int group = 0, i = 0; group < head_dim; group += kInt4GroupDims, ++i) {
      const int end = group + kInt4GroupDims < head_dim ? group + kInt4GroupDims : head_dim;
      for (int dim = group; dim < end; dim += kPanelLanes) {
        Int sum[J][kPanelVectors];
        Bytes::template Zero<J>(sum);
        const std::byte* const panel = v + dim * kPageTokens / 2;
        Bytes::template MultiplyNibbles<J, kFetch, false>(panel, kPageTokens / 8, weights.codes[i][0], kPageTokens,
                                                          ahead, sum);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const Float unit_j = V::Set(weights.unit[i].of[j]), rest_j = V::Set(weights.rest[i].of[j]);
#pragma GCC unroll 2
          for (int w = 0; w < kPanelVectors; ++w) {
            float* at = acc + j * head_dim + dim + w * kLanes;
            V::Store(at, V::Fma(V::ToFloat(sum[j][w]), unit_j, V::Add(V::Load(at), rest_j)));
          }
        }
      }
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
          top[j] = V::Max(V::Abs(y), top[j]);
          dot[j][w] = V::Fma(x, minimum, dot[j][w]);
        }
      }
    }
    const Float largest = V::MaxEach(top);
    Each to_code;
    V::Store(to_code.of, V::Div(V::Set(127), largest));
    V::Store(unit->of, V::Mul(largest, V::Set(1.0f / 127)));
    V::Store(rest->of, SumEach<J>(dot));
    for (int d = 0; d < head_dim; d += kLanes) {
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j)
        V::StoreBytes(codes + j * kMaxHeadDim + d, V::ToInt(V::Mul(V::Load(scaled[j] + d), V::Set(to_code.of[j]))));
    }
  }

  // rest[j] = p[j] · minima.
  template <int J>
  static inline void DotMinima(const Bf16* minima, const float* p, Each* rest) {
    Float minimum[2 * kPanelVectors], dot[J][kPanelVectors];
#pragma GCC unroll 4
    for (int w = 0; w < 2 * kPanelVectors; ++w) minimum[w] = V::LoadRow(minima + w * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j, p += kPageTokens) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        const int i = w * kLanes, k = kPanelLanes + i;
        dot[j][w] = V::Fma(V::Load(p + k), minimum[w + kPanelVectors], V::Mul(V::Load(p + i), minimum[w]));
      }
    }
    V::Store(rest->of, SumEach<J>(dot));
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_INT4_KV_H_
