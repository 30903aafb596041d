#include "kernels/cpu/avx512_ops.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_template.h"

namespace fastdecode {
namespace {

struct Ops : Avx512Sums {
  static constexpr ElementType kType = ElementType::kF32;
  static constexpr int kParts = 1;
  using Factor = __m512;

  static Factor Weights(const std::byte* p, int) { return _mm512_loadu_ps(p); }
  static Factor Inputs(const std::byte* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return _mm512_set1_ps(value);
  }
  static Vec MultiplyAdd(Factor weights, Factor inputs, Vec sum) { return _mm512_fmadd_ps(weights, inputs, sum); }
};

}  // namespace

void Avx512F32Gemm(const GemmArgs& args) { Gemm<Ops>(args); }

}  // namespace fastdecode
