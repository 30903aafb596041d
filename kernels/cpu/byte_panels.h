#ifndef FASTDECODE_KERNELS_CPU_BYTE_PANELS_H_
#define FASTDECODE_KERNELS_CPU_BYTE_PANELS_H_

#include <immintrin.h>

#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Vectors of bytes times panels of bytes or of half bytes, in sums of 32 bits: exact, so that every ISA and every order
// gives the same. One of the two is unsigned: the panel in K, the vectors (probabilities) in V.
template <class V, class Prefetching = HeadAhead>
struct BytePanels {
  using Prefetch = Prefetching;
  using Float = typename V::Float;
  using Int = typename V::Int;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPageVectors = kPageTokens / kLanes;
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

  // p[j] * scales = codes[j] * unit[j], rounded to 255ths of the largest; codes [J][32].
  template <int J>
  static inline void RoundWeights(const Bf16* scales, const float* p, std::byte* codes, float* unit) {
    Float scale[kPageVectors];
#pragma GCC unroll 4
    for (int w = 0; w < kPageVectors; ++w) scale[w] = V::LoadRow(scales + w * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      Float weight[kPageVectors];
      Float top = V::Set(kTiny);
#pragma GCC unroll 4
      for (int w = 0; w < kPageVectors; ++w) {
        weight[w] = V::Mul(V::Load(p + j * kPageTokens + w * kLanes), scale[w]);
        top = V::Max(weight[w], top);
      }
      const float largest = V::MaxLanes(top);
      const Float to_code = V::Set(255 / largest);
      unit[j] = largest * (1.0f / 255);
#pragma GCC unroll 4
      for (int w = 0; w < kPageVectors; ++w) {
        V::StoreBytes(codes + j * kPageTokens + w * kLanes, V::ToInt(V::Mul(weight[w], to_code)));
      }
    }
  }

  // sum[j] += x[j] · panel for J vectors of bytes x and `lines` of 4 steps, a multiple of 4. Prefetches as FmaDots
  // does.
  template <int J, bool kSparse, bool kPanelUnsigned>
  static inline void MultiplyBytes(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                                   const Ahead& ahead, Int (&sum)[J][kPanelVectors]) {
    const Prefetch prefetch(ahead, panel);
    Int odd[J][kPanelVectors];
    Zero<J>(odd);
    for (int i = 0; i < lines; i += 4) {
#pragma GCC unroll 4
      for (int line = 0; line < 4; ++line) {
        const std::byte* const at = panel + (i + line) * kLineBytes;
        if (!kSparse || line == 0) prefetch.Line(at);
        Int m[kPanelVectors];
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) m[w] = V::LoadInt(at + w * 4 * kLanes);
        MultiplyQuad<J, kPanelUnsigned>(m, x + 4 * (i + line), x_bytes, line % 2 ? odd : sum);
      }
    }
    Add<J>(odd, sum);
  }

  // The same of half bytes: `lines` of 8 steps, a multiple of 2. Every line is prefetched.
  template <int J, bool kPanelUnsigned>
  static inline void MultiplyNibbles(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                                     const Ahead& ahead, Int (&sum)[J][kPanelVectors]) {
    const Prefetch prefetch(ahead, panel);
    Int odd[J][kPanelVectors];
    Zero<J>(odd);
    for (int i = 0; i < lines; i += 2) {
#pragma GCC unroll 2
      for (int line = 0; line < 2; ++line) {
        const std::byte* const at = panel + (i + line) * kLineBytes;
        prefetch.Line(at);
        Int low[kPanelVectors], high[kPanelVectors];
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) V::LoadNibbles(at + w * 4 * kLanes, &low[w], &high[w]);
        MultiplyQuad<J, kPanelUnsigned>(low, x + 8 * (i + line), x_bytes, sum);
        MultiplyQuad<J, kPanelUnsigned>(high, x + 8 * (i + line) + 4, x_bytes, odd);
      }
    }
    Add<J>(odd, sum);
  }

 private:
  template <int J, bool kPanelUnsigned>
  static inline void MultiplyQuad(const Int (&m)[kPanelVectors], const std::byte* x, ptrdiff_t x_bytes,
                                  Int (&sum)[J][kPanelVectors]) {
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      int32_t quad;
      __builtin_memcpy(&quad, x + j * x_bytes, sizeof(quad));
      const Int factor = V::SetInt(quad);
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        sum[j][w] = kPanelUnsigned ? V::DotBytes(sum[j][w], m[w], factor) : V::DotBytes(sum[j][w], factor, m[w]);
      }
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
