#ifndef FASTDECODE_KERNELS_CUDA_KV_PAGES_H_
#define FASTDECODE_KERNELS_CUDA_KV_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/float_types.h"

namespace fastdecode {

// The KV pages of a home that is a GPU. A page is kPageTokens tokens of one sequence in one layer, its KV heads one
// after another, as large as the CPU homes' (PageBytes). Inside of a head a token's elements lie together, so that a
// warp reads a token's row, and the next tokens', as one piece:
//   K [32][head_dim]   V [32][head_dim]   int8: scales of K [32], of V [32]
// int8: a code is round(x / scale) + 128, unsigned; the scale is that of a token's largest |x| / 127, in bf16 rounded
// up, as the CPU homes have it (cpu/attention_page.h). A k or v with a NaN or an infinity has NaN for its scale. There
// is no int4 here.
inline constexpr bool GpuHolds(KvType type) { return type != KvType::kInt4; }

// REQUIRES of all: GpuHolds(type).
inline constexpr size_t GpuKvBytes(KvType type) { return type == KvType::kF32 ? 4 : type == KvType::kInt8 ? 1 : 2; }
inline constexpr size_t GpuRowBytes(KvType type, int head_dim) {
  return GpuKvBytes(type) * static_cast<size_t>(head_dim);
}
inline constexpr size_t GpuVOffset(KvType type, int head_dim) { return kPageTokens * GpuRowBytes(type, head_dim); }
inline constexpr size_t GpuScalesOffset(KvType type, int head_dim) { return 2 * GpuVOffset(type, head_dim); }
inline constexpr size_t GpuHeadBytes(KvType type, int head_dim) {
  return GpuScalesOffset(type, head_dim) + (type == KvType::kInt8 ? 2 * kPageTokens * sizeof(Bf16) : 0);
}

// Where the pages of one layer lie, and which of them are whose. Device memory; a plain view.
struct KvPages {
  KvType type = KvType::kF32;
  int kv_heads = 0;
  int head_dim = 0;                  // a multiple of 16, at most 256
  std::byte* layer = nullptr;        // page p begins at layer + p * page_stride_bytes
  size_t page_stride_bytes = 0;      // a multiple of 16
  const uint32_t* tables = nullptr;  // [slots][table_pages]: page i of the sequence in a slot
  uint32_t table_pages = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_KV_PAGES_H_
