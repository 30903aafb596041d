#ifndef FASTDECODE_KERNELS_CPU_AVX512BF16_DOTS_H_
#define FASTDECODE_KERNELS_CPU_AVX512BF16_DOTS_H_

#include <immintrin.h>

#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/vector_exp.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Vector times panel by vdpbf16ps: a line of a panel is the operand as it lies, q is multiplied as it came, and the
// probabilities are rounded to bf16, in their sum as in the product.
template <class PrefetchKind>
struct Bf16Dots {
  using Prefetch = PrefetchKind;
  using Element = Bf16;
  using Factor = Bf16;
  static constexpr bool kScalesScores = true;
  static constexpr bool kTakesF32Rows = false;
  static constexpr float kPRounding = 0x1p-9f;
  static constexpr int kSparseTileMax = Prefetch::kMaySkipLines ? 2 : 0;
  static constexpr short kBf16One = 0x3f80;

  static void SetQuery(const Bf16* from, int count, float, Bf16* q) {
    __builtin_memcpy(q, from, static_cast<size_t>(count) * sizeof(Bf16));
  }
  // p = 2^x, rounded, in the order of tokens; its sums take two neighbours a lane.
  static void Exponentiate(__m512 (&x)[2], Bf16* p, float* sums) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(Exp2<Avx512Vector>(x[1]), Exp2<Avx512Vector>(x[0]));
    const __m512bh ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(kBf16One));
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(pairs));
    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), pairs, ones));
  }

  // As FmaDots::Multiply; the chains are those of even and odd lines, each of which holds two steps.
  template <int J, Fetch kFetch, bool kOfK>
  static inline void Multiply(const Bf16* panel, int steps, const Bf16* x, int x_stride, const Ahead& ahead,
                              __m512 (&sum)[J][1]) {
    const Prefetch prefetch(ahead, panel);
    constexpr int kLineElements = 2 * kPanelLanes;
    __m512 chain[2][J];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) chain[0][j] = chain[1][j] = _mm512_setzero_ps();
    for (int i = 0; i < steps; i += 8) {
#pragma GCC unroll 4
      for (int line = 0; line < 4; ++line) {
        const Bf16* at = panel + line * kLineElements;
        FetchAhead<kFetch>(prefetch, line, at);
        const __m512bh m = reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          int32_t pair;
          __builtin_memcpy(&pair, x + j * x_stride + i + 2 * line, sizeof(pair));
          const __m512bh factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
          chain[line % 2][j] = _mm512_dpbf16_ps(chain[line % 2][j], m, factor);
        }
      }
      panel += 4 * kLineElements;
    }
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) sum[j][0] = _mm512_add_ps(chain[0][j], chain[1][j]);
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX512BF16_DOTS_H_
