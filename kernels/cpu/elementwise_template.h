#ifndef FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_
#define FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_

#include "kernels/cpu/activations.h"
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

  // The sum over a row of what add(sum, x, count) adds of `count` elements, which zeros follow: 64 partial sums in f32,
  // element i in sum i % 64, whatever kLanes is; then their total in double.
  template <class Add>
  static double SumOver(const float* x, int n, Add add) {
    constexpr int kSums = 64 / kLanes;
    Float sums[kSums];
    for (Float& sum : sums) sum = V::Zero();
    int i = 0;
    for (; i + 64 <= n; i += 64) {
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) sums[s] = add(sums[s], V::Load(x + i + s * kLanes), kLanes);
    }
    for (int s = 0; i < n; i += kLanes, ++s) {
      const int count = n - i < kLanes ? n - i : kLanes;
      sums[s] = add(sums[s], Load(x + i, count), count);
    }
    float lanes[64];
    for (int s = 0; s < kSums; ++s) V::Store(lanes + s * kLanes, sums[s]);
    double total[4] = {};
    for (int s = 0; s < 64; ++s) total[s % 4] += lanes[s];
    return (total[0] + total[1]) + (total[2] + total[3]);
  }
  static double SumOfSquares(const float* x, int n) {
    return SumOver(x, n, [](Float sum, Float part, int) { return V::Fma(part, part, sum); });
  }

  // y = x * scale (* weight).
  template <class Out>
  static void RmsNorm(const RowNorm& norm, const float* x, int n, Out* y) {
    const double mean = SumOfSquares(x, n) / n;
    const Float scale = V::Set(static_cast<float>(1.0 / __builtin_sqrt(mean + norm.epsilon)));
    const float* const weight = norm.weight;
    if (weight == nullptr) {
      ForLanes(n, [=](int i, int count) { Store(y + i, V::Mul(Load(x + i, count), scale), count); });
      return;
    }
    ForLanes(n, [=](int i, int count) {
      Store(y + i, V::Mul(V::Mul(Load(x + i, count), scale), Load(weight + i, count)), count);
    });
  }

  // y = (x - mean) * scale (* weight) (+ bias).
  template <class Out>
  static void LayerNorm(const RowNorm& norm, const float* x, int n, Out* y) {
    const double sum = SumOver(x, n, [](Float sum, Float part, int) { return V::Add(sum, part); });
    const Float mean = V::Set(static_cast<float>(sum / n));
    const double squares = SumOver(x, n, [=](Float sum, Float part, int count) {
      const Float deviation = V::Select((1u << count) - 1, V::Sub(part, mean), V::Zero());
      return V::Fma(deviation, deviation, sum);
    });
    const Float scale = V::Set(static_cast<float>(1.0 / __builtin_sqrt(squares / n + norm.epsilon)));
    const float *const weight = norm.weight, *const bias = norm.bias;
    ForLanes(n, [=](int i, int count) {
      Float value = V::Mul(V::Sub(Load(x + i, count), mean), scale);
      if (weight != nullptr) value = V::Mul(value, Load(weight + i, count));
      if (bias != nullptr) value = V::Add(value, Load(bias + i, count));
      Store(y + i, value, count);
    });
  }

  template <class Out>
  static void NormInto(const RowNorm& norm, const float* x, int n, Out* y) {
    switch (norm.kind) {
      case RowNorm::Kind::kNone:
        return ForLanes(n, [=](int i, int count) { Store(y + i, Load(x + i, count), count); });
      case RowNorm::Kind::kRms:
        return RmsNorm(norm, x, n, y);
      case RowNorm::Kind::kLayer:
        return LayerNorm(norm, x, n, y);
    }
  }
  static void Norm(const RowNorm& norm, const float* x, int n, void* out, int padded_n) {
    NormInto(norm, x, n, static_cast<T*>(out));
    ZeroFill(static_cast<T*>(out), n, padded_n);
  }
  static void NormF32(const RowNorm& norm, const float* x, int n, float* out) { NormInto(norm, x, n, out); }

  // With a scale of 1 the same bits as a sum without it.
  static void Add(float* x, const float* y, const float* bias, float scale, int n) {
    const Float scales = V::Set(scale);
    ForLanes(n, [=](int i, int count) {
      Store(x + i, V::Fma(scales, LoadBiased(y, bias, i, count), Load(x + i, count)), count);
    });
  }

  template <class Function>
  static void ActivateBy(const float* gate, const float* up, const float* gate_bias, const float* up_bias, int n,
                         T* y) {
    if (gate == nullptr) {
      ForLanes(n, [=](int i, int count) { Store(y + i, Function::Of(LoadBiased(up, up_bias, i, count)), count); });
      return;
    }
    ForLanes(n, [=](int i, int count) {
      const Float activated = Function::Of(LoadBiased(gate, gate_bias, i, count));
      Store(y + i, V::Mul(activated, LoadBiased(up, up_bias, i, count)), count);
    });
  }
  static void Activate(Activation activation, const float* gate, const float* up, const float* gate_bias,
                       const float* up_bias, int n, void* out) {
    T* const y = static_cast<T*>(out);
    switch (activation) {
      case Activation::kSilu:
        return ActivateBy<Silu<V>>(gate, up, gate_bias, up_bias, n, y);
      case Activation::kGelu:
        return ActivateBy<Gelu<V>>(gate, up, gate_bias, up_bias, n, y);
      case Activation::kGeluTanh:
        return ActivateBy<GeluTanh<V>>(gate, up, gate_bias, up_bias, n, y);
      case Activation::kRelu:
        return ActivateBy<Relu<V>>(gate, up, gate_bias, up_bias, n, y);
      case Activation::kRelu2:
        return ActivateBy<Relu2<V>>(gate, up, gate_bias, up_bias, n, y);
    }
  }

  static void Clip(float* x, float limit, int n) {
    const Float most = V::Set(limit), least = V::Set(-limit);
    ForLanes(n, [=](int i, int count) { Store(x + i, V::Min(most, V::Max(least, Load(x + i, count))), count); });
  }

  static void SoftCap(float* x, float cap, int n) {
    const Float caps = V::Set(cap), share = V::Set(1.0f / cap);
    ForLanes(n,
             [=](int i, int count) { Store(x + i, V::Mul(caps, Tanh<V>(V::Mul(Load(x + i, count), share))), count); });
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

  static ElementwiseKernels Table() { return {Norm, NormF32, Add, Activate, Clip, SoftCap, RopeHead, CopyHead}; }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ELEMENTWISE_TEMPLATE_H_
