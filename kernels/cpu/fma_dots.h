#ifndef FASTDECODE_KERNELS_CPU_FMA_DOTS_H_
#define FASTDECODE_KERNELS_CPU_FMA_DOTS_H_

#include <immintrin.h>

#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Vector times panel in f32: elements are widened, q is scaled beforehand.
template <class V, typename KvElement, class PrefetchKind = HeadAhead>
struct FmaDots {
  using Prefetch = PrefetchKind;
  using Element = KvElement;
  using Factor = float;
  using Float = typename V::Float;
  static constexpr bool kScalesScores = false;
  static constexpr bool kTakesF32Rows = true;
  static constexpr float kPRounding = 0;
  static constexpr int kSparseTileMax = !Prefetch::kMaySkipLines ? 0 : sizeof(Element) == 4 ? 2 : 1;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPairElements = 2 * kPanelLanes;  // two steps of a panel
  // Between the vectors of a panel, whose steps bf16 has in pairs.
  static constexpr int kVectorElements = __is_same(Element, Bf16) ? 2 * kLanes : kLanes;

  template <typename Row>
  static void SetQuery(const Row* from, int count, float scale, Factor* q) {
    for (int i = 0; i < count; i += kLanes) V::Store(q + i, V::Mul(V::LoadRow(from + i), V::Set(scale)));
  }

  // sum[j] = sum over steps of x[j][step] * panel[step], for J vectors x; even and odd steps in chains of their own.
  // Prefetches for the lines that kFetch names. One panel at a time: two would give a single row more chains of FMAs,
  // but the reads would no longer ascend (Zen 4, f32, one query head, of a sequential read: .70 against .53).
  template <int J, Fetch kFetch, bool kOfK>
  static inline void Multiply(const Element* panel, int steps, const float* x, int x_stride, const Ahead& ahead,
                              Float (&sum)[J][kPanelVectors]) {
    const Prefetch prefetch(ahead, panel);
    constexpr int kLineSteps = kLineElements / kPanelLanes;
    Float even[J][kPanelVectors], odd[J][kPanelVectors];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) even[j][w] = odd[j][w] = V::Zero();
    }
    for (int i = 0; i < steps; i += 2) {
      FetchAhead<kFetch>(prefetch, i / kLineSteps, panel);
      if constexpr (kFetch == Fetch::kEveryLine && kLineSteps == 1) prefetch.Line(panel + kLineElements);
      MultiplyStep<0>(panel, x + i, x_stride, even);
      MultiplyStep<1>(panel, x + i + 1, x_stride, odd);
      panel += kPairElements;
    }
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::Add(even[j][w], odd[j][w]);
    }
  }

 private:
  static constexpr int kLineElements = 64 / sizeof(Element);

  template <int kOdd, int J>
  static inline void MultiplyStep(const Element* pair, const float* x, int x_stride, Float (&sum)[J][kPanelVectors]) {
    Float m[kPanelVectors];
#pragma GCC unroll 2
    for (int w = 0; w < kPanelVectors; ++w) m[w] = V::template LoadStep<kOdd>(pair + w * kVectorElements);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Float factor = V::Set(x[j * x_stride]);
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::Fma(factor, m[w], sum[j][w]);
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_FMA_DOTS_H_
