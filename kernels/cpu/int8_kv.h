#ifndef FASTDECODE_KERNELS_CPU_INT8_KV_H_
#define FASTDECODE_KERNELS_CPU_INT8_KV_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/byte_panels.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Pages of int8 (attention_page.h), as Attention takes them. Products are of bytes and exact, so that every ISA gives
// the same bits:
//   score    q is rounded to 127ths of its largest element; (q · k) * (scale of q) * (scale of the token's k)
//   acc      w = p * (scale of the token's v) is rounded to 255ths of the page's largest w
template <class V, class Multiplier = BytePanels<V>>
struct Int8Kv {
  using Float = typename V::Float;
  using Int = typename V::Int;
  using Probability = float;
  static constexpr bool kScalesScores = false;
  static constexpr bool kTakesF32Rows = true;
  static constexpr bool kCoarseP = true;
  static constexpr float kPRounding = kCoarseExp2Error;
  static constexpr int kOverlapTileMin = 6;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  using Bytes = Multiplier;
  using Prefetch = typename Bytes::Prefetch;
  static constexpr int kSparseTileMax = 0;

  // A query: its codes [head_dim], then this, and padding.
  struct QueryScale {
    float scale;
    int32_t start;  // of a sum: takes back the 128 that the codes of k are larger by
  };

  static ptrdiff_t HeadBytes(int head_dim) { return Int8HeadBytes(head_dim); }
  static ptrdiff_t QueryBytes(int head_dim) { return head_dim + 16; }
  static constexpr int RestFloats(int) { return 0; }
  static void AddRests(int, const float*, float*) {}
  struct Prepared {};

  template <typename Row>
  static void SetQuery(const Row* from, int head_dim, float scale, std::byte* q) {
    Float top = V::Zero(), nan = V::Zero();
    for (int d = 0; d < head_dim; d += kLanes) {
      const Float x = V::LoadRow(from + d);
      top = V::Max(V::Abs(x), top);
      nan = V::Add(nan, V::Sub(x, x));  // of infinities, too
    }
    const float most = V::MaxLanes(top), largest = most > Bytes::kTiny ? most : Bytes::kTiny;
    const Float to_code = V::Set(127 / largest);
    Float total = V::Zero();  // of the codes: exact
    for (int d = 0; d < head_dim; d += kLanes) {
      const Int codes = V::ToInt(V::Mul(V::LoadRow(from + d), to_code));
      V::StoreBytes(q + d, codes);
      total = V::Add(total, V::ToFloat(codes));
    }
    const float sum = V::SumLanes(total);
    const bool finite = sum >= -127 * head_dim && sum <= 127 * head_dim;  // else some q is not, and all scores are NaN
    const QueryScale to = {largest / 127 * scale + V::SumLanes(nan), finite ? -128 * static_cast<int32_t>(sum) : 0};
    __builtin_memcpy(q + head_dim, &to, sizeof(to));
  }

  // scores[j] = q[j] · k for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Scores(int head_dim, const std::byte* page_head, const Ahead& ahead, const std::byte* q, int,
                            const Prepared&, float* scores) {
    const Bf16* k_scales = reinterpret_cast<const Bf16*>(page_head + Int8KScales(head_dim));
    const ptrdiff_t q_bytes = QueryBytes(head_dim);
    constexpr int kPanels = Bytes::template kAtOnce<J>;
    for (int t = 0; t < kPageTokens; t += kPanels * kPanelLanes) {
      Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Int start = V::SetInt(QueryScaleOf(q, q_bytes, j)->start);
#pragma GCC unroll 2
        for (int i = 0; i < kPanels * kPanelVectors; ++i) sum[i / kPanelVectors][j][i % kPanelVectors] = start;
      }
      Bytes::template MultiplyBytes<J, kPanels, kFetch, true>(page_head + t * head_dim, kPanelLanes * head_dim,
                                                              head_dim / 4, q, q_bytes, ahead, sum);
#pragma GCC unroll 2
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        const int token = t + i * kLanes;
        const Float k_scale = V::LoadRow(k_scales + token);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
          const Float scaled = V::Mul(product, V::Set(QueryScaleOf(q, q_bytes, j)->scale));
          V::Store(scores + j * kPageTokens + token, V::Mul(scaled, k_scale));
        }
      }
    }
    if constexpr (kFetch == Fetch::kEveryLine) {
      const std::byte* const scales = page_head + Int8KScales(head_dim);
      const Prefetch prefetch(ahead, scales);
      prefetch.Line(scales);
      prefetch.Line(scales + 64);
    }
  }

  // p times the scales of v, as codes * unit.
  struct Weights {
    alignas(64) std::byte codes[Bytes::kTokenRows][kPageTokens];
    typename Bytes::Each unit;
  };
  template <int J>
  static inline void Weigh(int head_dim, const std::byte* page_head, const float* p, Weights* weights, float*) {
    const Bf16* const scales = reinterpret_cast<const Bf16*>(page_head + Int8VScales(head_dim));
    Bytes::template RoundWeights<J>(scales, p, weights->codes[0], &weights->unit);
  }

  // acc[j] += p[j] · v for the 32 tokens of a page.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const float*, int,
                         const Weights& weights, bool, float* acc) {
    const std::byte* const v = page_head + Int8V(head_dim);
    constexpr int kPanels = Bytes::template kAtOnce<J>;
    int dim = 0;
    for (; dim + kPanels * kPanelLanes <= head_dim; dim += kPanels * kPanelLanes) {
      AddPanels<J, kPanels, kFetch>(v + dim * kPageTokens, ahead, weights, head_dim, acc + dim);
    }
    if (kPanels > 1 && dim < head_dim) {
      AddPanels<J, 1, kFetch>(v + dim * kPageTokens, ahead, weights, head_dim, acc + dim);
    }
  }

 private:
  template <int J, int kPanels, Fetch kFetch>
  static inline void AddPanels(const std::byte* v, const Ahead& ahead, const Weights& weights, int head_dim,
                               float* acc) {
    Int sum[kPanels][J][kPanelVectors];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) Bytes::template Zero<J>(sum[p]);
    Bytes::template MultiplyBytes<J, kPanels, kFetch, false>(v, kPanelLanes * kPageTokens, kPageTokens / 4,
                                                             weights.codes[0], kPageTokens, ahead, sum);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Float unit_j = V::Set(weights.unit.of[j]);
#pragma GCC unroll 2
      for (int i = 0; i < kPanels * kPanelVectors; ++i) {
        float* const at = acc + j * head_dim + i * kLanes;
        const Float product = V::ToFloat(sum[i / kPanelVectors][j][i % kPanelVectors]);
        V::Store(at, V::Fma(product, unit_j, V::Load(at)));
      }
    }
  }

  static const QueryScale* QueryScaleOf(const std::byte* q, ptrdiff_t q_bytes, int j) {
    return reinterpret_cast<const QueryScale*>(q + (j + 1) * q_bytes - 16);
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_INT8_KV_H_
