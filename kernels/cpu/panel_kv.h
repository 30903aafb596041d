#ifndef FASTDECODE_KERNELS_CPU_PANEL_KV_H_
#define FASTDECODE_KERNELS_CPU_PANEL_KV_H_

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/fma_dots.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Pages of panels (attention_page.h) in f32, bf16 or fp16, as Attention takes them. Dots is how a vector is multiplied
// by a panel (fma_dots.h, avx512bf16_dots.h, amx_panels.h):
//   Element, Factor     of a panel, and of the vectors that it is multiplied by (q, and the probabilities)
//   Prefetch, kTakesF32Rows, kScalesScores, kPRounding, kSparseTileMax, SetQuery, and perhaps Exponentiate
//   Multiply<J, kFetch, kOfK>  in two chains in ascending order, which are added; all FmaDots give the same bits
// kStops: tiles leave out what none of their rows sees. Loops of constant length are 2 % faster (bf16).
template <class V, class Dots, bool kStops = false>
struct PanelKv : Dots {
  using Float = typename V::Float;
  using Element = typename Dots::Element;
  using Factor = typename Dots::Factor;
  using Probability = Factor;
  using Prefetch = typename Dots::Prefetch;
  static constexpr bool kCoarseP = false;
  static constexpr int kOverlapTileMin = V::kMaxTile + 1;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;

  static ptrdiff_t HeadBytes(int head_dim) { return PageHeadElements(head_dim) * sizeof(Element); }
  static ptrdiff_t QueryBytes(int head_dim) { return head_dim * sizeof(Factor); }
  static constexpr int RestFloats(int) { return 0; }
  static void AddRests(int, const float*, float*) {}
  struct Prepared {};

  template <typename Row>
  static void SetQuery(const Row* from, int head_dim, float scale, std::byte* q) {
    Dots::SetQuery(from, head_dim, scale, reinterpret_cast<Factor*>(q));
  }

  // scores[j] = q[j] · k for the 32 tokens of a page, or those that are seen.
  template <int J, Fetch kFetch>
  static inline void Scores(int head_dim, const std::byte* page_head, const Ahead& ahead, const std::byte* q, int seen,
                            const Prepared&, float* scores) {
    const Element* k = reinterpret_cast<const Element*>(page_head);
    const int tokens = kStops ? seen : kPageTokens;
    for (int t = 0; t < tokens; t += kPanelLanes) {
      Float score[J][kPanelVectors];
      const Element* const panel = k + t * head_dim;
      Dots::template Multiply<J, kFetch, true>(panel, head_dim, reinterpret_cast<const Factor*>(q), head_dim, ahead,
                                               score);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) V::Store(scores + j * kPageTokens + t + w * kLanes, score[j][w]);
      }
    }
  }

  // p is multiplied as it is.
  struct Weights {};
  template <int J>
  static inline void Weigh(int, const std::byte*, const Probability*, Weights*, float*) {}

  // acc[j] += p[j] · v for the 32 tokens of a page, or those that are seen.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const Probability* p, int seen,
                         const Weights&, bool, float* acc) {
    const Element* v = reinterpret_cast<const Element*>(page_head) + PageKElements(head_dim);
    const int steps = kStops ? (seen + 1) / 2 * 2 : kPageTokens;
    for (int dim = 0; dim < head_dim; dim += kPanelLanes) {
      Float sum[J][kPanelVectors];
      const Element* const panel = v + dim * kPageTokens;
      Dots::template Multiply<J, kFetch, false>(panel, steps, p, kPageTokens, ahead, sum);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) {
          float* at = acc + j * head_dim + dim + w * kLanes;
          V::Store(at, V::Add(V::Load(at), sum[j][w]));
        }
      }
    }
  }
};

// Open pages of int4, which have half of their tokens on average. K is packed, and V multiplied where its rows are:
// what is called a page here is K's panels, and behind them these rows' addresses.
template <class V>
struct OpenPages : PanelKv<V, FmaDots<V, Bf16>, true> {
  using Base = PanelKv<V, FmaDots<V, Bf16>, true>;
  using Base::kLanes, Base::kPanelVectors;
  using typename Base::Float, typename Base::Weights;
  using Row = const Bf16*;

  static void Pack(int head_dim, int tokens, const OpenPage& from, int kv_head, std::byte* to) {
    alignas(64) static constexpr Bf16 kZeros[256] = {};
    Avx2PackOpenK(head_dim, tokens, from, kv_head, to);
    Row* const rows = reinterpret_cast<Row*>(to + PageKElements(head_dim) * sizeof(Bf16));
    for (int t = 0; t < tokens; ++t) {
      rows[t] = reinterpret_cast<Row>(OpenTokenAt(head_dim, from, kv_head, t)) + head_dim;
    }
    if (tokens % 2 == 1) rows[tokens] = kZeros;
  }

  // With the bits of PanelKv.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead&, const float* p, int seen,
                         const Weights&, bool, float* acc) {
    const Row* const rows = reinterpret_cast<const Row*>(page_head + PageKElements(head_dim) * sizeof(Bf16));
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      Float even[J], odd[J];
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) even[j] = odd[j] = V::Zero();
      for (int t = 0; t < seen; t += 2) {
        const Float of_even = V::LoadRow(rows[t] + dim), of_odd = V::LoadRow(rows[t + 1] + dim);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          even[j] = V::Fma(V::Set(p[j * kPageTokens + t]), of_even, even[j]);
          odd[j] = V::Fma(V::Set(p[j * kPageTokens + t + 1]), of_odd, odd[j]);
        }
      }
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        float* const at = acc + j * head_dim + dim;
        V::Store(at, V::Add(V::Load(at), V::Add(even[j], odd[j])));
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PANEL_KV_H_
