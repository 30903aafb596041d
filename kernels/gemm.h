#ifndef FASTDECODE_KERNELS_GEMM_H_
#define FASTDECODE_KERNELS_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "kernels/float_types.h"

namespace fastdecode {

// Weights W[n][k] (n output features, k input features: Hugging Face's layout) packed into panels of 64 outputs:
//   f32 : [n/64][k][64]
//   bf16: [n/64][k/32][16][64][2], k padded with zeros to a multiple of 32. Equal to oneDNN's BA16a64b2a, so that the
//         same single copy also feeds its primitives.
// n is padded with zero columns to a multiple of 64. A panel is contiguous: a shard of the outputs is a range of panels.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelDepth = 32;      // bf16: k is padded to its multiples

int64_t PanelCount(int64_t n);
size_t PanelBytes(ElementType type, int64_t k);

// Packs up to 64 output rows (`columns`, the rest become zeros) given as f32 [columns][k] into one panel.
void PackPanel(ElementType type, const float* rows, int columns, int64_t k, std::byte* panel);
// The inverse for one output row (an embedding lookup in tied weights): `out` gets k values as f32.
void UnpackRow(ElementType type, const std::byte* panel, int column, int64_t k, float* out);

// y[m][j] = sum_k x[m][k] * W[j][k] over a range of panels, f32 sums.
// Each y element is one chain of operations in ascending k, whatever the number of rows, panels or threads is: the result
// is bit-identical for every batch size and split.
struct GemmArgs {
  const void* x;                // [rows][x_stride] elements of the type; for bf16 k padded to 32 with zeros
  int64_t x_stride;             // elements
  int rows;
  int64_t k;                    // unpadded
  const std::byte* panels;      // first panel of the range
  int64_t columns;              // outputs to write, <= 64 * panels in the range
  float* y;                     // y[m][j] at y + m * y_stride + j
  int64_t y_stride;             // elements
};
using GemmFn = void (*)(const GemmArgs& args);

struct GemmKernels {
  const char* name = nullptr;
  GemmFn gemm = nullptr;
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_GEMM_H_
