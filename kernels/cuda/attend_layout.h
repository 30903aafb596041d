#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_
#define FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_

#include <cstddef>

#include "kernels/cuda/kv_pages.h"

namespace fastdecode {

// The shared memory of a block that attends: pieces in bytes from its beginning. It takes its KV in steps of `tokens`,
// as many as make 16 KiB of K. A step's K and V are one buffer each, of which there are three if they are not too large:
// two are on their way while the block works on the third. All multiples of 16. tile_queries 0: queries, scores and sums
// are in registers, by tensor cores, and steps are of 64 tokens.
struct AttendLayout {
  constexpr AttendLayout(KvType type, int head_dim, unsigned tile_queries)
      : row_bytes(GpuRowBytes(type, head_dim)),
        stride_bytes(row_bytes + 16),
        tokens(tile_queries == 0 || row_bytes <= 256 ? 64
               : row_bytes <= 512                    ? 32
                                                     : 16) {
    const size_t queries = (tile_queries + 3) / 4 * 4;
    scores = queries * static_cast<size_t>(head_dim) * sizeof(float);
    maxima = scores + queries * tokens * sizeof(float);
    sums = maxima + queries * sizeof(float);
    factors = sums + queries * sizeof(float);
    count = factors + queries * sizeof(float);
    next = count + 16;
    tensor_q = next + 32;
    joined = tensor_q + (tile_queries == 0 ? 32 * static_cast<size_t>(head_dim) : 0);
    kv = joined + (tile_queries == 0 ? (16 * (static_cast<size_t>(head_dim) + 8) + 128) * sizeof(float) : 0);
    buffers = buffer_bytes() <= kTripledBytes ? 3 : 2;
    scales = kv + buffers * buffer_bytes();
    bytes = scales + 4 * scale_bytes();
  }

  constexpr size_t buffer_bytes() const { return tokens * stride_bytes; }
  constexpr size_t scale_bytes() const { return tokens * sizeof(Bf16); }

  // Larger ones would leave no room for another block, and on some GPUs none for this one.
  static constexpr size_t kTripledBytes = 18 << 10;

  size_t row_bytes;     // of one token in a page
  size_t stride_bytes;  // of one token here: rows begin in different banks
  unsigned tokens;      // 16, 32 or 64
  // q, scaled: f32 [tile_queries][head_dim], at 0.
  size_t scores;              // f32 [tile_queries][tokens], then weights
  size_t maxima;              // f32 [tile_queries], in units of log2
  size_t sums, factors;       // f32 [tile_queries]
  size_t count;               // a word
  size_t next;                // NextItem, of attention_items.cuh
  // With tensor cores: the 16 queries that all warps have, as operands, and f32 [16][head_dim + 8] of what warps join,
  // with their maxima and sums, [4][16] each.
  size_t tensor_q, joined;
  unsigned buffers;  // 2 or 3
  size_t kv;         // [buffers] of [tokens], stride_bytes apart
  size_t scales;     // of a step's K and of its V, and of another step's: bf16 [tokens] each
  size_t bytes;
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_LAYOUT_H_
