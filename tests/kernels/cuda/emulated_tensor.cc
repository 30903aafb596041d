// What simt_tensor.h declares, for threads of kernels on emulated threads.
#include <cstring>

#include "kernels/cuda/simt_tensor.h"
#include "tests/kernels/cuda/emulator.h"

namespace fastdecode::simt {

using simt_internal::Emulator;
using simt_internal::running;

namespace {

struct Product {
  float* d;           // [4]
  const uint32_t* a;  // [4]
  uint32_t b[2];
  float (*widen)(uint16_t);
};
struct Load {
  const std::byte* row;
  uint32_t* out;  // [4]
};

float Half(const Product& of, uint32_t pair, unsigned i) { return of.widen(static_cast<uint16_t>(pair >> 16 * i)); }

void MultiplyTogether(void* const* given) {
  float a[16][16], b[16][8], d[16][8];
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const Product& mine = *static_cast<const Product*>(given[lane]);
    const unsigned row = lane / 4, column = 2 * (lane % 4);
    for (unsigned i = 0; i < 2; ++i) {
      for (unsigned r = 0; r < 4; ++r) a[row + r % 2 * 8][column + r / 2 * 8 + i] = Half(mine, mine.a[r], i);
      for (unsigned r = 0; r < 2; ++r) b[column + r * 8 + i][row] = Half(mine, mine.b[r], i);
      for (unsigned r = 0; r < 2; ++r) d[row + r * 8][column + i] = mine.d[2 * r + i];
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned n = 0; n < 8; ++n) d[row][n] += a[row][k] * b[k][n];
    }
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    float* const mine = static_cast<const Product*>(given[lane])->d;
    const unsigned row = lane / 4, column = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) mine[i] = d[row + i / 2 * 8][column + i % 2];
  }
}

template <bool kTransposed>
void LoadTogether(void* const* given) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    uint32_t* const out = static_cast<const Load*>(given[lane])->out;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      out[matrix] = 0;
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned first = lane / 4, second = 2 * (lane % 4) + i;
        const unsigned row = kTransposed ? second : first, column = kTransposed ? first : second;
        uint16_t element;
        std::memcpy(&element, static_cast<const Load*>(given[8 * matrix + row])->row + column * sizeof(element),
                    sizeof(element));
        out[matrix] |= uint32_t{element} << 16 * i;
      }
    }
  }
}

void LoadInWarp(const std::byte* shared, uint32_t* out, void (*together)(void* const*), Site here) {
  ExpectAligned(reinterpret_cast<uintptr_t>(shared) % 16 == 0);
  Load load = {shared, out};
  running->emulator.Meet(&load, together, "a load of matrices", here);
}

}  // namespace

void MultiplyAddInWarp(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (*widen)(uint16_t),
                       Site here) {
  Product product = {d, a, {b0, b1}, widen};
  running->emulator.Meet(&product, &MultiplyTogether, "a product of matrices", here);
}
void LoadMatrices(const std::byte* shared, uint32_t (&out)[4], Site here) {
  LoadInWarp(shared, out, &LoadTogether<false>, here);
}
void LoadMatricesTransposed(const std::byte* shared, uint32_t (&out)[4], Site here) {
  LoadInWarp(shared, out, &LoadTogether<true>, here);
}

}  // namespace fastdecode::simt
