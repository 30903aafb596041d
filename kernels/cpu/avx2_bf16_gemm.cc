#include "kernels/cpu/avx2_ops.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_template.h"

namespace fastdecode {
namespace {

// bf16 without vdpbf16ps: both halves of a pair become f32 by shifts, then FMA. A mask for the odd half would take the
// sixteenth register and spill at 6 rows (73 instead of 105 GFLOP/s on Zen 4).
struct Ops : Avx2Sums {
  static constexpr ElementType kType = ElementType::kBf16;
  static constexpr int kParts = 2;
  using Factor = __m256;

  static Factor Weights(const std::byte* p, int part) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(part == 0 ? _mm256_slli_epi32(pairs, 16)
                                         : _mm256_slli_epi32(_mm256_srli_epi32(pairs, 16), 16));
  }
  static Factor Inputs(const std::byte* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return _mm256_set1_ps(value);
  }
  static Vec MultiplyAdd(Factor weights, Factor inputs, Vec sum) { return _mm256_fmadd_ps(weights, inputs, sum); }

  // REQUIRES: steps is a multiple of 4 (k is padded to 32).
  static void WidenInputs(const std::byte* x, int64_t steps, float* out) {
    for (int64_t step = 0; step < steps; step += 4) {
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + step * 4));
      _mm256_storeu_ps(out + step * 2, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16)));
    }
  }
};

}  // namespace

void Avx2Bf16Gemm(const GemmArgs& args) { Gemm<Ops>(args); }

}  // namespace fastdecode
