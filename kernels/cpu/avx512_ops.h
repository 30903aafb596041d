#ifndef FASTDECODE_KERNELS_CPU_AVX512_OPS_H_
#define FASTDECODE_KERNELS_CPU_AVX512_OPS_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// What the AVX-512 GEMM files share; see gemm_template.h.
namespace fastdecode {
namespace {

struct Avx512Sums {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  // At most 24 of the 32 registers hold sums. Up to 6 rows read the panel in a single ascending pass.
  static constexpr int kMaxTileRows = 8;
  static constexpr int kVecs(int rows) { return rows <= 6 ? 4 : 2; }

  static __mmask16 Mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec LoadSome(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(Mask(n), p); }
  static void StoreSome(float* p, int64_t n, Vec v) { _mm512_mask_storeu_ps(p, Mask(n), v); }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX512_OPS_H_
