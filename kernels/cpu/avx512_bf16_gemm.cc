#include "kernels/cpu/avx512_ops.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_template.h"

namespace fastdecode {
namespace {

// bf16 for CPUs without vdpbf16ps: both halves of a pair become f32 by a shift or a mask, then FMA.
struct Ops : Avx512Sums {
  static constexpr ElementType kType = ElementType::kBf16;
  static constexpr int kParts = 2;
  using Factor = __m512;

  static Factor Weights(const std::byte* p, int part) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(part == 0 ? _mm512_slli_epi32(pairs, 16)
                                         : _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
  static Factor Inputs(const std::byte* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return _mm512_set1_ps(value);
  }
  static Vec MultiplyAdd(Factor weights, Factor inputs, Vec sum) { return _mm512_fmadd_ps(weights, inputs, sum); }

  // REQUIRES: steps is a multiple of 8 (k is padded to 32).
  static void WidenInputs(const std::byte* x, int64_t steps, float* out) {
    for (int64_t step = 0; step < steps; step += 8) {
      const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + step * 4));
      _mm512_storeu_ps(out + step * 2, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)));
    }
  }
};

}  // namespace

void Avx512Bf16Gemm(const GemmArgs& args) { Gemm<Ops>(args); }

}  // namespace fastdecode
