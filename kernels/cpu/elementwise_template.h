#ifndef FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_
#define FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_

#include "kernels/cpu/vector_exp.h"
#include "kernels/elementwise.h"

// The row-wise kernels over vectors V (Avx2Vector, Avx512Vector) with outputs of type T (float or Bf16). All vectors
// give the same bits. Anonymous for the reason that gemm_template.h gives.
namespace fastdecode {
namespace {

template <class V, class T>
struct Elementwise {
  using Float = typename V::Float;
  static constexpr int kLanes = V::kLanes;

  // Calls body(i, count) for i = 0, kLanes, ...: count is kLanes, but what is left at the end.
  template <class Body>
  static void ForLanes(int n, Body body) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
    if (i < n) body(i, n - i);
  }
  // The first `count` lanes; zeros beyond.
  static Float Load(const float* p, int count) {
    if (count == kLanes) return V::Load(p);
    float lanes[kLanes] = {};
    __builtin_memcpy(lanes, p, count * sizeof(float));
    return V::Load(lanes);
  }
  template <class Out>
  static void Store(Out* p, Float x, int count) {
    if (count == kLanes) return V::StoreRow(p, x);
    Out lanes[kLanes];
    V::StoreRow(lanes, x);
    __builtin_memcpy(p, lanes, count * sizeof(Out));
  }
  static Float LoadBiased(const float* p, const float* bias, int i, int count) {
    const Float x = Load(p + i, count);
    return bias == nullptr ? x : V::Add(x, Load(bias + i, count));
  }
  static void ZeroFill(T* out, int from, int to) {
    if (to > from) __builtin_memset(out + from, 0, (to - from) * sizeof(T));
  }

  // 64 partial sums in f32, element i in sum i % 64, whatever kLanes is; then their total in double.
  static double SumOfSquares(const float* x, int n) {
    constexpr int kSums = 64 / kLanes;
    Float sums[kSums];
    for (Float& sum : sums) sum = V::Zero();
    int i = 0;
    for (; i + 64 <= n; i += 64) {
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) {
        const Float part = V::Load(x + i + s * kLanes);
        sums[s] = V::Fma(part, part, sums[s]);
      }
    }
    for (int s = 0; i < n; i += kLanes, ++s) {
      const Float part = Load(x + i, n - i < kLanes ? n - i : kLanes);
      sums[s] = V::Fma(part, part, sums[s]);
    }
    float lanes[64];
    for (int s = 0; s < kSums; ++s) V::Store(lanes + s * kLanes, sums[s]);
    double total[4] = {};
    for (int s = 0; s < 64; ++s) total[s % 4] += lanes[s];
    return (total[0] + total[1]) + (total[2] + total[3]);
  }

  static void RmsNorm(const float* x, const float* weight, double epsilon, int n, void* out, int padded_n) {
    T* y = static_cast<T*>(out);
    const double mean = SumOfSquares(x, n) / n;
    const Float scale = V::Set(static_cast<float>(1.0 / __builtin_sqrt(mean + epsilon)));
    ForLanes(n, [=](int i, int count) {
      Store(y + i, V::Mul(V::Mul(Load(x + i, count), scale), Load(weight + i, count)), count);
    });
    ZeroFill(y, n, padded_n);
  }

  static void Add(float* x, const float* y, const float* bias, int n) {
    ForLanes(n,
             [=](int i, int count) { Store(x + i, V::Add(Load(x + i, count), LoadBiased(y, bias, i, count)), count); });
  }

  static void SiluMul(const float* gate, const float* up, const float* gate_bias, const float* up_bias, int n,
                      void* out) {
    T* y = static_cast<T*>(out);
    ForLanes(n, [=](int i, int count) {
      const Float g = LoadBiased(gate, gate_bias, i, count);
      const Float silu = V::Div(g, V::Add(V::Set(1.0f), Exp<V>(V::Sub(V::Zero(), g))));
      Store(y + i, V::Mul(silu, LoadBiased(up, up_bias, i, count)), count);
    });
  }

  static void RopeHead(const float* in, const float* bias, const float* cosines, const float* sines, int head_dim,
                       void* out, int padded_head_dim) {
    T* y = static_cast<T*>(out);
    const int half = head_dim / 2;
    ForLanes(half, [=](int i, int count) {
      const Float a = LoadBiased(in, bias, i, count);
      const Float b = LoadBiased(in, bias, i + half, count);
      const Float cosine = Load(cosines + i, count);
      const Float sine = Load(sines + i, count);
      Store(y + i, V::Sub(V::Mul(a, cosine), V::Mul(b, sine)), count);
      Store(y + i + half, V::Add(V::Mul(b, cosine), V::Mul(a, sine)), count);
    });
    ZeroFill(y, head_dim, padded_head_dim);
  }

  static void CopyHead(const float* in, const float* bias, int head_dim, void* out, int padded_head_dim) {
    T* y = static_cast<T*>(out);
    ForLanes(head_dim, [=](int i, int count) { Store(y + i, LoadBiased(in, bias, i, count), count); });
    ZeroFill(y, head_dim, padded_head_dim);
  }

  static ElementwiseKernels Table() { return {RmsNorm, Add, SiluMul, RopeHead, CopyHead}; }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_
