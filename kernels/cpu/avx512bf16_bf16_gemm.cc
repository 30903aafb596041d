#include "kernels/cpu/avx512_ops.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_template.h"

namespace fastdecode {
namespace {

struct Ops : Avx512Sums {
  static constexpr ElementType kType = ElementType::kBf16;
  static constexpr int kParts = 1;
  using Factor = __m512bh;

  static Factor Weights(const std::byte* p, int) { return reinterpret_cast<Factor>(_mm512_loadu_si512(p)); }
  static Factor Inputs(const std::byte* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return reinterpret_cast<Factor>(_mm512_set1_epi32(pair));
  }
  static Vec MultiplyAdd(Factor weights, Factor inputs, Vec sum) { return _mm512_dpbf16_ps(sum, weights, inputs); }
};

}  // namespace

void Avx512Bf16Bf16Gemm(const GemmArgs& args) { Gemm<Ops>(args); }

}  // namespace fastdecode
