#ifndef FASTDECODE_KERNELS_CPU_VECTOR_EXP_H_
#define FASTDECODE_KERNELS_CPU_VECTOR_EXP_H_

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// e^x within 2 ulp for x in [-86, 88]; outside, the value at the nearer end. NaN stays NaN.
// x = n ln2 + r with |r| <= ln2/2; Taylor's remainder after r^7 is below 6e-9.
template <class V>
typename V::Float Exp(typename V::Float x) {
  x = V::Min(V::Set(88.0f), V::Max(V::Set(-86.0f), x));  // the second operand is returned for NaN
  const typename V::Float n = V::Round(V::Mul(x, V::Set(1.44269504f)));
  typename V::Float r = V::Fma(n, V::Set(-0x1.62e4p-1f), x);  // ln2's first 15 bits: exact for |n| < 512
  r = V::Fma(n, V::Set(-0x1.7f7d1cp-20f), r);                 // and the rest
  typename V::Float sum = V::Set(1.0f / 5040);
  sum = V::Fma(sum, r, V::Set(1.0f / 720));
  sum = V::Fma(sum, r, V::Set(1.0f / 120));
  sum = V::Fma(sum, r, V::Set(1.0f / 24));
  sum = V::Fma(sum, r, V::Set(1.0f / 6));
  sum = V::Fma(sum, r, V::Set(0.5f));
  sum = V::Fma(sum, r, V::Set(1.0f));
  sum = V::Fma(sum, r, V::Set(1.0f));
  return V::ScaleByPowerOf2(sum, n);
}

// 2^x for x <= 127, relative error < 1.8e-7 (minimax of degree 5, measured over all of [-0.5, 0.5]), 2^0 = 1 exactly.
// 0 below 2^-115 (e^-80): that is nothing beside a sum >= 1, and p * v stays clear of denormals. NaN gives NaN.
template <class V>
typename V::Float Exp2(typename V::Float x) {
  const typename V::Float n = V::Round(x);
  const typename V::Float f = V::Sub(x, n);
  typename V::Float y = V::Set(0x1.5bba14p-10f);
  y = V::Fma(y, f, V::Set(0x1.3cea88p-7f));
  y = V::Fma(y, f, V::Set(0x1.c6b752p-5f));
  y = V::Fma(y, f, V::Set(0x1.ebf9bcp-3f));
  y = V::Fma(y, f, V::Set(0x1.62e42ap-1f));
  y = V::Fma(y, f, V::Set(1.0f));
  return V::ZeroWhereLess(V::ScaleByPowerOf2(y, n), x, V::Set(-115.0f));
}

// The same of degree 3 over [0, 1], relatively off by this much, for numbers that are rounded further: to bytes, or to
// bf16.
constexpr float kCoarseExp2Error = 8.7e-5f;
template <class V>
typename V::Float CoarsePowerOf2(typename V::Float f) {
  typename V::Float y = V::Set(0x1.3baaa6p-4f);
  y = V::Fma(y, f, V::Set(0x1.d2378ap-3f));
  y = V::Fma(y, f, V::Set(0x1.63e658p-1f));
  return V::Fma(y, f, V::Set(1.0f));
}
template <class V>
typename V::Float CoarseExp2(typename V::Float x) {
  const typename V::Float n = V::Floor(x);
  return V::ScaleOrZero(CoarsePowerOf2<V>(V::Sub(x, n)), n, V::Set(-115.0f));
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_VECTOR_EXP_H_
