#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_
#define FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_

#include <cstddef>
#include <initializer_list>

#include "kernels/bits.h"
#include "kernels/cuda/kv_pages.h"

namespace fastdecode {

// The shared memory of a block that attends: its parts in bytes from its beginning. It takes its KV in steps of
// `tokens`, as many as make 16 KiB of K. All multiples of 16. tile_queries kComputes and kReads: queries, scores and
// sums are in registers, by tensor cores, and steps are of 64 tokens.
struct AttendLayout {
  static constexpr unsigned kComputes = 0, kReads = ~0u;  // attend_tiles.cuh, attend_read.cuh
  static constexpr int kJoinDims = 128;
  static constexpr size_t kLine = 128;  // of all banks

  constexpr AttendLayout(KvType type, int head_dim, unsigned tile_queries)
      : row_bytes(GpuRowBytes(type, head_dim)),
        swizzle((tile_queries == kComputes || tile_queries == kReads) && row_bytes >= kLine &&
                        IsPowerOfTwo(row_bytes)
                    ? 7
                    : 0),
        stride_bytes(row_bytes + (swizzle != 0          ? 0
                                  : row_bytes % 32 == 0 ? 16
                                                        : 32)),
        tokens(tile_queries == kComputes || tile_queries == kReads || row_bytes <= 256 ? 64
               : row_bytes <= 512                                                      ? 32
                                                                                       : 16) {
    const size_t queries = tile_queries == kReads ? 0 : (tile_queries + 3) / 4 * 4;
    scores = queries * static_cast<size_t>(head_dim) * sizeof(float);
    maxima = scores + queries * tokens * sizeof(float);
    sums = maxima + queries * sizeof(float);
    factors = sums + queries * sizeof(float);
    count = factors + queries * sizeof(float);
    next = count + 16;
    joined = next + 32;
    const size_t joined_bytes = tile_queries == kReads ? 4 * 8 * (kJoinDims + 4 + 2) * sizeof(float) : 0;
    k = (joined + joined_bytes + kLine - 1) / kLine * kLine;
    v = k + tokens * stride_bytes;
    const size_t scales = type == KvType::kInt8 ? tokens * sizeof(Bf16) : 0;
    k_scales = v + tokens * stride_bytes;
    v_scales = k_scales + scales;
    bytes = v_scales + scales;
  }

  size_t row_bytes;  // of one token in a page
  // Of a step's token t, chunk c of 16 bytes is at t * stride_bytes + (c ^ (t & swizzle)) * 16: those of 8 tokens are
  // in different banks. Rows are an odd number of chunks apart, with a gap of one at least, or, by tensor cores,
  // swizzled if they are 1, 2 or 4 lines: a copy then writes whole lines at once, and takes less time than one that
  // writes parts of several. (Of 3 lines a copy's rows would not be as many as a power of two: KvCopy.)
  unsigned swizzle;
  size_t stride_bytes;
  unsigned tokens;  // 16, 32 or 64
  // q, scaled: f32 [tile_queries][head_dim], at 0.
  size_t scores;         // f32 [tile_queries][tokens], then weights
  size_t maxima;         // f32 [tile_queries], in units of log2
  size_t sums, factors;  // f32 [tile_queries]
  size_t count;          // a word
  size_t next;           // NextItem, of attention_items.cuh
  size_t joined;         // of kReads: what warps join, f32 [4][8][kJoinDims + 4], with maxima and sums, [4][8] each
  size_t k, v;           // [tokens], stride_bytes apart
  size_t k_scales, v_scales;  // of int8: bf16 [tokens]
  size_t bytes;
};

// Whether what the comment of `swizzle` says of banks and lines is so.
constexpr bool SuitsBanks(const AttendLayout& layout) {
  if (layout.swizzle != 0 && (layout.k | layout.v | layout.stride_bytes) % AttendLayout::kLine != 0) return false;
  for (unsigned chunk = 0; chunk < layout.row_bytes / 16; ++chunk) {
    unsigned banks = 0;
    for (unsigned token = 0; token < 8; ++token) {
      banks |= 1u << (token * layout.stride_bytes / 16 + (chunk ^ (token & layout.swizzle))) % 8;
    }
    if (banks != 255) return false;
  }
  return true;
}
// What every GPU that the kernels are compiled for gives a block, if it is asked.
inline constexpr size_t kSharedBytesMax = 99 << 10;
// With tensor cores.
constexpr bool AttendLayoutsFit(unsigned tile_queries) {
  for (const KvType type : {KvType::kBf16, KvType::kFp16, KvType::kInt8}) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      const AttendLayout layout(type, head_dim, tile_queries);
      if (layout.bytes > kSharedBytesMax || layout.k % 16 != 0 || layout.v % 16 != 0 || layout.k_scales % 16 != 0 ||
          !SuitsBanks(layout)) {
        return false;
      }
    }
  }
  return true;
}
static_assert(AttendLayoutsFit(AttendLayout::kReads) && AttendLayoutsFit(AttendLayout::kComputes));

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_
