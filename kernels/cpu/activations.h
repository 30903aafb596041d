#ifndef FASTDECODE_KERNELS_CPU_ACTIVATIONS_H_
#define FASTDECODE_KERNELS_CPU_ACTIVATIONS_H_

#include "kernels/activation.h"
#include "kernels/cpu/vector_exp.h"

// The functions of activation.h, and tanh, over vectors V (Avx2Vector, Avx512Vector). NaN stays NaN.
namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// tanh(x) within 4 ulp, also of the smallest x: with e = e^2x - 1 it is e / (e + 2). e is 2^n (e^r - 1) + (2^n - 1),
// n and r as in Exp, so that nothing cancels where x is small. Beyond +-10 it is +-1.
template <class V>
typename V::Float Tanh(typename V::Float x) {
  x = V::Min(V::Set(10.0f), V::Max(V::Set(-10.0f), x));  // the second operand is returned for NaN
  const typename V::Float twice = V::Add(x, x);
  const typename V::Float n = V::Round(V::Mul(twice, V::Set(1.44269504f)));
  typename V::Float r = V::Fma(n, V::Set(-0x1.62e4p-1f), twice);
  r = V::Fma(n, V::Set(-0x1.7f7d1cp-20f), r);
  typename V::Float sum = V::Set(1.0f / 5040);
  sum = V::Fma(sum, r, V::Set(1.0f / 720));
  sum = V::Fma(sum, r, V::Set(1.0f / 120));
  sum = V::Fma(sum, r, V::Set(1.0f / 24));
  sum = V::Fma(sum, r, V::Set(1.0f / 6));
  sum = V::Fma(sum, r, V::Set(0.5f));
  sum = V::Fma(V::Mul(r, r), sum, r);
  const typename V::Float power = V::ScaleByPowerOf2(V::Set(1.0f), n);
  const typename V::Float e = V::Fma(sum, power, V::Sub(power, V::Set(1.0f)));
  return V::Div(e, V::Add(e, V::Set(2.0f)));
}

template <class V>
struct Silu {
  static typename V::Float Of(typename V::Float x) {
    return V::Div(x, V::Add(V::Set(1.0f), Exp<V>(V::Sub(V::Zero(), x))));
  }
};

// max(x, 0) - |x| q, q being what the normal distribution has beyond |x|. erf as in M. Abramowitz and I. A. Stegun,
// Handbook of Mathematical Functions, 7.1.26: within 1.5e-7, q within half of that.
template <class V>
struct Gelu {
  static typename V::Float Of(typename V::Float x) {
    constexpr float kP = 0.3275911f * 0.70710678f;  // of |x|, not |x| / sqrt(2)
    const typename V::Float magnitude = V::Abs(x);
    const typename V::Float t = V::Div(V::Set(1.0f), V::Fma(V::Set(kP), magnitude, V::Set(1.0f)));
    typename V::Float sum = V::Set(0.5f * 1.061405429f);
    sum = V::Fma(sum, t, V::Set(0.5f * -1.453152027f));
    sum = V::Fma(sum, t, V::Set(0.5f * 1.421413741f));
    sum = V::Fma(sum, t, V::Set(0.5f * -0.284496736f));
    sum = V::Fma(sum, t, V::Set(0.5f * 0.254829592f));
    const typename V::Float q = V::Mul(V::Mul(sum, t), Exp<V>(V::Mul(V::Mul(V::Set(-0.5f), x), x)));
    return V::Sub(V::Max(V::Zero(), x), V::Mul(magnitude, q));
  }
};

// (1 + tanh(u)) / 2 is 1 / (1 + e^-2u).
template <class V>
struct GeluTanh {
  static typename V::Float Of(typename V::Float x) {
    constexpr float kTwice = -2 * 0.79788456f;  // sqrt(2 / pi)
    const typename V::Float cubic = V::Fma(V::Set(kTwice * 0.044715f), V::Mul(x, x), V::Set(kTwice));
    return V::Div(x, V::Add(V::Set(1.0f), Exp<V>(V::Mul(cubic, x))));
  }
};

template <class V>
struct Relu {
  static typename V::Float Of(typename V::Float x) { return V::Max(V::Zero(), x); }
};

template <class V>
struct Relu2 {
  static typename V::Float Of(typename V::Float x) {
    const typename V::Float positive = V::Max(V::Zero(), x);
    return V::Mul(positive, positive);
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ACTIVATIONS_H_
