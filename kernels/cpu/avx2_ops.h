#ifndef FASTDECODE_KERNELS_CPU_AVX2_OPS_H_
#define FASTDECODE_KERNELS_CPU_AVX2_OPS_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// What the AVX2 GEMM files share; see gemm_template.h.
namespace fastdecode {
namespace {

struct Avx2Sums {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  // At most 12 of the 16 registers hold sums. One row reads the panel in a single ascending pass.
  static constexpr int kMaxTileRows = 6;
  static constexpr int kVecs(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

  static __m256i Mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static Vec LoadSome(const float* p, int64_t n) { return _mm256_maskload_ps(p, Mask(n)); }
  static void StoreSome(float* p, int64_t n, Vec v) { _mm256_maskstore_ps(p, Mask(n), v); }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AVX2_OPS_H_
