#ifndef FASTDECODE_KERNELS_CUDA_SIMT_TENSOR_H_
#define FASTDECODE_KERNELS_CUDA_SIMT_TENSOR_H_

#include "kernels/cuda/simt.h"

// What simt.h has no word for: products by a warp's tensor cores, and how their operands come from shared memory. All
// lanes of a warp come to each of these together. T is Bf16 or Fp16, two of which, the first one below, are a uint32_t.
//
// In terms of a lane's row = lane / 4 and column = 2 * (lane % 4), of which it has that and the next one (NVIDIA, PTX
// ISA, "Matrix Fragments for mma.m16n8k16"):
//   a [16][16]: [0] (row, column), [1] (row + 8, column), [2] (row, column + 8), [3] (row + 8, column + 8)
//   b [16][8], by columns: b0 (k = column, n = row), b1 (k = column + 8, n = row)
//   d [16][8]: [0], [1] (row, column), [2], [3] (row + 8, column)

namespace fastdecode::simt {

#if defined(__CUDACC__)

// d += a * b in f32.
template <class T>
FD_DEVICE void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four matrices [8][8] from shared memory; lane i says where row i % 8 of matrix i / 8 begins, a multiple of 16 bytes.
// out[m]: (row, column) of matrix m and the next one.
FD_DEVICE void LoadMatrices(const std::byte* shared, uint32_t (&out)[4]) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(from)
               : "memory");
}
// out[m]: (row = column of the lane, column = its row) of matrix m, and that of the next row.
FD_DEVICE void LoadMatricesTransposed(const std::byte* shared, uint32_t (&out)[4]) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(from)
               : "memory");
}

// Of a matrix [8][8] of which a lane has (row, column) and the next one: (column, row) and that of the next row.
FD_DEVICE uint32_t TransposeInWarp(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// Two elements, as FromFloat has them.
template <class T>
FD_DEVICE uint32_t PairOf(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// Two of four bytes, each less 128, as fp16: 1024 + a byte has the bits of 1024 and the byte.
template <unsigned kFirst, unsigned kSecond>
FD_DEVICE uint32_t PairOfCodes(uint32_t bytes) {
  const uint32_t shifted = __byte_perm(bytes, 0x64646464u, 0x4040u | kSecond << 8 | kFirst);
  uint32_t pair;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(shifted), "r"(0x64806480u));  // 1152
  return pair;
}

#else

// `widen`: ToFloat of the 16 bits of an element.
void MultiplyAddInWarp(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (*widen)(uint16_t),
                       Site here);
template <class T>
void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site here = Site::current()) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  MultiplyAddInWarp(
      d, a, b0, b1, [](uint16_t bits) { return ToFloat(std::bit_cast<T>(bits)); }, here);
}
void LoadMatrices(const std::byte* shared, uint32_t (&out)[4], Site here = Site::current());
void LoadMatricesTransposed(const std::byte* shared, uint32_t (&out)[4], Site here = Site::current());
inline uint32_t TransposeInWarp(uint32_t pair, Site here = Site::current()) {
  const unsigned row = Thread() % kWarp / 4, column = Thread() % 4 * 2;
  uint32_t out = 0;
  for (unsigned i = 0; i < 2; ++i) {
    const uint32_t theirs = ShuffleFrom(pair, (column + i) * 4 + row / 2, here);
    out |= (theirs >> (16 * (row % 2)) & 0xffff) << (16 * i);
  }
  return out;
}
template <class T>
uint32_t PairOf(float first, float second) {
  return std::bit_cast<uint16_t>(FromFloat<T>(first)) | uint32_t{std::bit_cast<uint16_t>(FromFloat<T>(second))} << 16;
}
template <unsigned kFirst, unsigned kSecond>
uint32_t PairOfCodes(uint32_t bytes) {
  const auto value = [bytes](unsigned i) { return static_cast<float>(static_cast<int>(bytes >> 8 * i & 255) - 128); };
  return PairOf<Fp16>(value(kFirst), value(kSecond));
}

#endif

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_SIMT_TENSOR_H_
