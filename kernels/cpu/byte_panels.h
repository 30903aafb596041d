#ifndef FASTDECODE_KERNELS_CPU_BYTE_PANELS_H_
#define FASTDECODE_KERNELS_CPU_BYTE_PANELS_H_

#include <immintrin.h>

#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Vectors of bytes times panels of bytes or of half bytes, in sums of 32 bits: exact, so that every ISA and every order
// gives the same. One of the two is unsigned: the panel in K, the vectors (probabilities) in V.
template <class V, class PrefetchKind = HeadAhead>
struct BytePanels {
  using Prefetch = PrefetchKind;
  using Float = typename V::Float;
  using Int = typename V::Int;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPageVectors = kPageTokens / kLanes;
  static constexpr int kPageWords = kPageVectors / 2;
  static constexpr float kTiny = 1e-30f;
  static constexpr int kLineBytes = 64;

  template <int J>
  static inline void Zero(Int (&sum)[J][kPanelVectors]) {
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::SetInt(0);
    }
  }

  // A number of each vector; the others mean nothing.
  struct alignas(64) Each {
    Each() = default;
    // In memory, where a load spreads one over a vector at no cost: GCC would shuffle the register.
    explicit Each(Float x) {
      V::Store(of, x);
      asm("" : "+m"(*this));
    }
    float of[kLanes];
    static_assert(V::kMaxTile <= kLanes);
  };

  // Two rows of a page's tokens, words that are bytes, one behind the other.
  static inline void StoreTokens(std::byte* p, const Int (&x)[kPageWords], const Int (&y)[kPageWords]) {
    if constexpr (kPageWords == 1) {
      V::template StoreWordsAsBytes<false>(p, x[0], y[0]);
    } else {
      V::template StoreWordsAsBytes<false>(p, x[0], x[1]);
      V::template StoreWordsAsBytes<false>(p + kPageTokens, y[0], y[1]);
    }
  }
  static constexpr int kTokenRows = (V::kMaxTile + 1) / 2 * 2;  // that there is room for

  // p[j] * scales = codes[j] * unit[j], rounded to 255ths of the largest. p is [J][32], codes are
  // [kTokenRows][32].
  template <int J>
  static inline void RoundWeights(const Bf16* scales, const float* p, std::byte* codes, Each* unit) {
    Float weight[J][kPageVectors], top[J], scale[kPageVectors];
#pragma GCC unroll 4
    for (int w = 0; w < kPageVectors; ++w) scale[w] = V::LoadRow(scales + w * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      top[j] = V::Set(kTiny);
#pragma GCC unroll 4
      for (int w = 0; w < kPageVectors; ++w) {
        weight[j][w] = V::Mul(V::Load(p + j * kPageTokens + w * kLanes), scale[w]);
        top[j] = V::Max(weight[j][w], top[j]);
      }
    }
    const Float largest = V::MaxEach(top);
    *unit = Each(V::Mul(largest, V::Set(1.0f / 255)));
    const Each to_code(V::Div(V::Set(255), largest));
#pragma GCC unroll 8
    for (int j = 0; j < J; j += 2) {
      const int next = j + 1 < J ? j + 1 : j;
      Int words[2][kPageWords];
#pragma GCC unroll 2
      for (int w = 0; w < kPageWords; ++w) {
        words[0][w] = ToWords(weight[j][2 * w], weight[j][2 * w + 1], V::Set(to_code.of[j]));
        words[1][w] = ToWords(weight[next][2 * w], weight[next][2 * w + 1], V::Set(to_code.of[next]));
      }
      StoreTokens(codes + j * kPageTokens, words[0], words[1]);
    }
  }
  static inline Int ToWords(Float low, Float high, Float by) {
    return V::JoinWords(V::ToWords(low, by), V::ToWords(high, by));
  }

  // Panels that MultiplyBytes takes at once. Two share each load of x, which is what bounds tiles of many row-heads
  // (Zen 5, 64 row-heads against 16 KB: 430 GFLOP/s one by one, 510 in pairs).
  template <int J>
  static constexpr int kAtOnce = J >= 5 && V::kHasDotBytes ? 2 : 1;

  // sum[i][j] += x[j] · panel i for J vectors of bytes x and one or two panels, the second `stride` bytes behind the
  // first, of `lines` of 4 steps, a multiple of 4.
  template <int J, int kPanels, Fetch kFetch, bool kPanelUnsigned>
  static inline void MultiplyBytes(const std::byte* panel, ptrdiff_t stride, int lines, const std::byte* x,
                                   ptrdiff_t x_bytes, const Ahead& ahead, Int (&sum)[kPanels][J][kPanelVectors]) {
    constexpr bool kTwoChains = kPanels == 1;  // few vectors would wait for one
    const Prefetch first(ahead, panel), second(ahead, panel + (kPanels - 1) * stride);
    Int odd[J][kPanelVectors];
    if constexpr (kTwoChains) Zero<J>(odd);
#pragma GCC unroll 2
    for (int i = 0; i < lines; i += 4) {
#pragma GCC unroll 4
      for (int line = 0; line < 4; ++line) {
        const std::byte* const at = panel + (i + line) * kLineBytes;
        Int m[kPanels][kPanelVectors];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          FetchAhead<kFetch>(p == 0 ? first : second, line, at + p * stride);
#pragma GCC unroll 2
          for (int w = 0; w < kPanelVectors; ++w) m[p][w] = V::LoadInt(at + p * stride + w * 4 * kLanes);
        }
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const Int factor = Quad(x + 4 * (i + line) + j * x_bytes);
#pragma GCC unroll 2
          for (int p = 0; p < kPanels; ++p) {
            MultiplyQuad<kPanelUnsigned>(m[p], factor, kTwoChains && line % 2 ? odd[j] : sum[p][j]);
          }
        }
      }
    }
    if constexpr (kTwoChains) Add<J>(odd, sum[0]);
  }

  // The same of half bytes: `lines` of 8 steps, a multiple of 2.
  static constexpr int kNibblesAtOnce = V::kHasDotBytes ? 2 : 1;
  template <int J, int kPanels, Fetch kFetch, bool kPanelUnsigned>
  static inline void MultiplyNibbles(const std::byte* panel, ptrdiff_t stride, int lines, const std::byte* x,
                                     ptrdiff_t x_bytes, const Ahead& ahead, Int (&sum)[kPanels][J][kPanelVectors]) {
    constexpr bool kTwoChains = kPanels * J < 5;  // few vectors would wait for one
    const Prefetch first(ahead, panel), second(ahead, panel + (kPanels - 1) * stride);
    Int odd[kPanels][J][kPanelVectors];
    if constexpr (kTwoChains) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) Zero<J>(odd[p]);
    }
    for (int i = 0; i < lines; i += 2) {
#pragma GCC unroll 2
      for (int line = 0; line < 2; ++line) {
        Int low[kPanels][kPanelVectors], high[kPanels][kPanelVectors];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          const std::byte* const at = panel + p * stride + (i + line) * kLineBytes;
          FetchAhead<kFetch>(p == 0 ? first : second, i + line, at);
#pragma GCC unroll 2
          for (int w = 0; w < kPanelVectors; ++w) V::LoadNibbles(at + w * 4 * kLanes, &low[p][w], &high[p][w]);
        }
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          const std::byte* const at_j = x + 8 * (i + line) + j * x_bytes;
          const Int even_quad = Quad(at_j), odd_quad = Quad(at_j + 4);
#pragma GCC unroll 2
          for (int p = 0; p < kPanels; ++p) {
            MultiplyQuad<kPanelUnsigned>(low[p], even_quad, sum[p][j]);
            MultiplyQuad<kPanelUnsigned>(high[p], odd_quad, kTwoChains ? odd[p][j] : sum[p][j]);
          }
        }
      }
    }
    if constexpr (kTwoChains) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) Add<J>(odd[p], sum[p]);
    }
  }

 private:
  // 4 bytes in every lane.
  static inline Int Quad(const std::byte* x) {
    int32_t quad;
    __builtin_memcpy(&quad, x, sizeof(quad));
    return V::SetInt(quad);
  }

  template <bool kPanelUnsigned>
  static inline void MultiplyQuad(const Int (&m)[kPanelVectors], Int factor, Int (&sum)[kPanelVectors]) {
#pragma GCC unroll 2
    for (int w = 0; w < kPanelVectors; ++w) {
      sum[w] = kPanelUnsigned ? V::DotBytes(sum[w], m[w], factor) : V::DotBytes(sum[w], factor, m[w]);
    }
  }

  template <int J>
  static inline void Add(const Int (&from)[J][kPanelVectors], Int (&sum)[J][kPanelVectors]) {
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::AddInt(sum[j][w], from[j][w]);
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_BYTE_PANELS_H_
