#include <algorithm>
#include <cstring>

#include "kernels/gemm.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

int64_t PaddedDepth(int64_t k) { return (k + kPanelDepth - 1) / kPanelDepth * kPanelDepth; }

// Index of (k, column) in a bf16 panel [k/32][16][64][2]: pairs of adjacent k lie side by side.
int64_t PairIndex(int64_t k, int column) { return (k / 2 * kPanelColumns + column) * 2 + k % 2; }

}  // namespace

int64_t PanelCount(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

size_t PanelBytes(ElementType type, int64_t k) {
  const int64_t depth = type == ElementType::kBf16 ? PaddedDepth(k) : k;
  return static_cast<size_t>(depth) * kPanelColumns * ElementBytes(type);
}

void PackPanel(ElementType type, const float* rows, int columns, int64_t k, std::byte* panel) {
  FD_CHECK(columns >= 0 && columns <= kPanelColumns, "a panel has 0 to 64 columns");
  std::memset(panel, 0, PanelBytes(type, k));
  float* f32 = reinterpret_cast<float*>(panel);
  Bf16* bf16 = reinterpret_cast<Bf16*>(panel);
  for (int64_t block = 0; block < k; block += kPanelDepth) {  // few enough lines to stay in L1 while columns fill them
    const int64_t end = std::min(k, block + kPanelDepth);
    for (int column = 0; column < columns; ++column) {
      const float* row = rows + column * k;
      if (type == ElementType::kF32) {
        for (int64_t i = block; i < end; ++i) f32[i * kPanelColumns + column] = row[i];
      } else {
        Bf16 narrow[kPanelDepth] = {};
        for (int64_t i = block; i < end; ++i) narrow[i - block] = ToBf16(row[i]);
        for (int i = 0; i < kPanelDepth; i += 2) std::memcpy(&bf16[PairIndex(block + i, column)], narrow + i, 4);
      }
    }
  }
}

void UnpackRow(ElementType type, const std::byte* panel, int column, int64_t k, float* out) {
  FD_CHECK(column >= 0 && column < kPanelColumns, "a panel has 64 columns");
  if (type == ElementType::kF32) {
    const float* in = reinterpret_cast<const float*>(panel) + column;
    for (int64_t i = 0; i < k; ++i) out[i] = in[i * kPanelColumns];
  } else {
    const Bf16* in = reinterpret_cast<const Bf16*>(panel);
    for (int64_t i = 0; i < k; ++i) out[i] = FromBf16(in[PairIndex(i, column)]);
  }
}

}  // namespace fastdecode
