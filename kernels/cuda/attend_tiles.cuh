#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_

// Attention of AttendKvArgs by tensor cores, for tiles of many queries: a prompt's chunk is computed rather than read.
// After FlashAttention-2 (Dao, arXiv:2307.08691): each warp has 16 queries of the tile against all tokens of a step,
// and keeps their q, scores, weights and sums in registers, where a product's result lies as the next one's operand. A
// query's bits follow from positions alone, as in attend_kernel.cuh, though they are others.

#include "kernels/cuda/attend_copy.cuh"
#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attend_merge.cuh"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/simt_tensor.h"

namespace fastdecode::simt {

// head_dim is kDims, or if not kWhole less: then a branch at each product keeps the next operands from being loaded
// meanwhile.
template <class T, int kDims, bool kWhole>
class AttendTiles {
 public:
  FD_DEVICE explicit AttendTiles(const AttendKvArgs& args)
      : args_(args),
        layout_(args.pages.type, args.pages.head_dim, /*tile_queries=*/0),
        copy_(args.pages, layout_),
        lane_(Thread() % kWarp),
        warp_query_(Thread() / kWarp * 16) {}

  FD_DEVICE void Do(const AttendItem& item) {
    const bool works = warp_query_ < item.queries;  // all of the warp
    LoadQueries(item);
    copy_.Steps(
        item, args_.split.cut_tokens,
        [&](unsigned) {
          if (works) Score();
        },
        [&](unsigned first) {
          if (works) Weigh(item, first);
        },
        [&](unsigned) {
          if (works) Add();
        });
    Finish(item);
    SyncBlock();
  }

 private:
  static constexpr unsigned kTokens = 64;  // of a step: rows of up to 256 bytes (AttendLayout)
  static constexpr int kOperands = kDims / 16, kTokenOperands = kTokens / 16;

  FD_DEVICE int head_dim() const { return kWhole ? kDims : args_.pages.head_dim; }
  FD_DEVICE bool Has(int dim) const { return kWhole || dim < head_dim(); }
  // What this lane has of a tile's operands and results (simt_tensor.h).
  FD_DEVICE unsigned Query(unsigned half) const { return warp_query_ + lane_ / 4 + half * 8; }
  FD_DEVICE unsigned Column() const { return lane_ % 4 * 2; }

  // Zeros behind the tile's last query.
  template <class W>
  FD_DEVICE void LoadQueriesOf(const AttendItem& item) {
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const bool is_there = Query(half) < item.queries;
      const W* const from = QueryAt<W>(args_, item, is_there ? Query(half) : 0) + Column();
      FD_UNROLL(unroll)
      for (int k = 0; k < 2 * kOperands; ++k) {
        Pack<W, 2> pair = {};
        if (is_there && Has(8 * k)) pair = LoadPack<2>(from + 8 * k);
        q_[k / 2][half + k % 2 * 2] = PairOf<T>(ToFloat(pair.v[0]), ToFloat(pair.v[1]));
      }
    }
  }
  FD_DEVICE void LoadQueries(const AttendItem& item) {
    if (args_.wire.type == ElementType::kF32) {
      LoadQueriesOf<float>(item);
    } else {
      LoadQueriesOf<Bf16>(item);
    }
    FD_UNROLL(unroll)
    for (int i = 0; i < 2; ++i) {
      maxima_[i] = MinusInfinity();
      sums_[i] = 0;
    }
    FD_UNROLL(unroll)
    for (int n = 0; n < 2 * kOperands; ++n) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) acc_[n][i] = 0;
    }
  }

  // q · k of 16 queries and all of the step's tokens.
  FD_DEVICE void Score() {
    const std::byte* const mine =
        SharedMemory() + layout_.k + (lane_ / 16 * 8 + lane_ % 8) * layout_.stride_bytes + lane_ / 8 % 2 * size_t{16};
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) scores_[2 * n][i] = scores_[2 * n + 1][i] = 0;
      FD_UNROLL(unroll)
      for (int k = 0; k < kOperands; ++k) {
        if (!Has(16 * k)) break;
        uint32_t tokens[4];  // two operands of 8 tokens
        LoadMatrices(mine + n * 16 * layout_.stride_bytes + k * size_t{32}, tokens);
        MultiplyAdd<T>(scores_[2 * n], q_[k], tokens[0], tokens[1]);
        MultiplyAdd<T>(scores_[2 * n + 1], q_[k], tokens[2], tokens[3]);
      }
    }
  }

  // Scores to weights; what was added before shrinks.
  FD_DEVICE void Weigh(const AttendItem& item, unsigned first) {
    const bool sees_all = SeesAll(item, first);
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const float before = maxima_[half];
      maxima_[half] = CapAndMask(item, first, half, sees_all);
      const float base = maxima_[half] == MinusInfinity() ? 0 : maxima_[half];
      float sum = 0;
      FD_UNROLL(unroll)
      for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
        FD_UNROLL(unroll)
        for (unsigned e = 0; e < 2; ++e) {
          float& weight = scores_[n][2 * half + e];
          weight = Exp2(weight - base);
          sum += weight;
        }
      }
      const float factor = Exp2(before - base);
      sums_[half] = sums_[half] * factor + sum;
      FD_UNROLL(unroll)
      for (int n = 0; n < 2 * kOperands; ++n) {
        acc_[n][2 * half] *= factor;
        acc_[n][2 * half + 1] *= factor;
      }
    }
  }

  // Each of the warp's queries sees all of the step's tokens.
  FD_DEVICE bool SeesAll(const AttendItem& item, unsigned first) const {
    const unsigned last_query = warp_query_ + 15 < item.queries ? warp_query_ + 15 : item.queries - 1;
    return first >= item.begin && first + kTokens <= item.end &&
           first + kTokens - 1 <= PositionOf(args_, item, warp_query_) &&
           first >= FirstSeen(args_.split, PositionOf(args_, item, last_query));
  }

  // In units of log2; minus infinity for what a query does not see. Returns its largest so far.
  FD_DEVICE float CapAndMask(const AttendItem& item, unsigned first, unsigned half, bool sees_all) {
    const float scale = args_.soft_cap > 0 ? args_.soft_cap * kLog2E : args_.scale * kLog2E;
    const unsigned position = PositionOf(args_, item, Query(half)), first_seen = FirstSeen(args_.split, position);
    if (args_.soft_cap > 0) Cap(half);
    float most = maxima_[half];
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        float& score = scores_[n][2 * half + e];
        score *= scale;
        const unsigned at = first + 8 * n + Column() + e;
        const bool sees = at >= first_seen && at <= position && at >= item.begin && at < item.end;
        if (!sees_all && !sees) score = MinusInfinity();
        most = score > most ? score : most;  // NaN is not
      }
    }
    for (unsigned mask = 1; mask < 4; mask *= 2) {
      const float other = ShuffleXor(most, mask);
      most = other > most ? other : most;
    }
    return most;
  }

  FD_DEVICE void Cap(unsigned half) {
    const float scale = args_.scale / args_.soft_cap;
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) scores_[n][2 * half + e] = Tanh(scores_[n][2 * half + e] * scale);
    }
  }

  // acc += weights · v.
  FD_DEVICE void Add() {
    const std::byte* const mine =
        SharedMemory() + layout_.v + lane_ % 16 * layout_.stride_bytes + lane_ / 16 * size_t{16};
    FD_UNROLL(unroll)
    for (unsigned k = 0; k < kTokenOperands; ++k) {
      const float(&low)[4] = scores_[2 * k];
      const float(&high)[4] = scores_[2 * k + 1];
      const uint32_t weights[4] = {PairOf<T>(low[0], low[1]), PairOf<T>(low[2], low[3]), PairOf<T>(high[0], high[1]),
                                   PairOf<T>(high[2], high[3])};
      FD_UNROLL(unroll)
      for (int n = 0; n < kOperands; ++n) {
        if (!Has(16 * n)) break;
        uint32_t dims[4];  // two operands of 8 dims
        LoadMatricesTransposed(mine + k * 16 * layout_.stride_bytes + n * size_t{32}, dims);
        MultiplyAdd<T>(acc_[2 * n], weights, dims[0], dims[1]);
        MultiplyAdd<T>(acc_[2 * n + 1], weights, dims[2], dims[3]);
      }
    }
  }

  // As Attend has it.
  FD_DEVICE void Finish(const AttendItem& item) {
    const bool alone = item.first_cut == item.last_cut;
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      float sum = sums_[half];
      for (unsigned mask = 1; mask < 4; mask *= 2) sum += ShuffleXor(sum, mask);
      const unsigned query = Query(half);
      if (query >= item.queries) continue;
      FD_UNROLL(unroll)
      for (int n = 0; n < 2 * kOperands; ++n) {
        const int dim = 8 * n + static_cast<int>(Column());
        const DimPair acc = {acc_[n][2 * half], acc_[n][2 * half + 1]};
        if (!Has(8 * n)) break;
        if (alone) {
          PutOutput(args_, item, query, dim, {acc.v[0] / sum, acc.v[1] / sum});
        } else {
          PutPartial(args_, QueryIndex(args_, item, query), item.cut, dim, acc, maxima_[half], sum);
        }
      }
    }
    if (alone || !IsLastOfTile(args_, item, reinterpret_cast<uint32_t*>(SharedMemory() + layout_.count))) return;
    Merge(item);
  }

  // Threads take two dims of a query each.
  FD_DEVICE void Merge(const AttendItem& item) const {
    const unsigned pairs = static_cast<unsigned>(head_dim()) / 2;
    FD_UNROLL(unroll 1)
    for (unsigned i = Thread(); i < item.queries * pairs; i += kAttendThreads) {
      const unsigned query = i / pairs;
      const int dim = static_cast<int>(i % pairs) * 2;
      const size_t index = QueryIndex(args_, item, query);
      PutOutput(args_, item, query, dim, MergePartials(args_, index, item.first_cut, item.last_cut, dim));
    }
  }

  const AttendKvArgs& args_;
  const AttendLayout layout_;
  const KvCopy<PlainKv<T>> copy_;
  const unsigned lane_, warp_query_;  // the warp's first query of the tile
  // Of queries Query(0) and Query(1): as in simt_tensor.h.
  uint32_t q_[kOperands][4];
  float scores_[2 * kTokenOperands][4];  // then weights
  float acc_[2 * kOperands][4];
  float maxima_[2], sums_[2];  // sums: of this lane's columns
};

template <class T, int kDims, bool kWhole>
FD_KERNEL void FD_BLOCK_MAX(kAttendThreads) AttendKvTiles(FD_ARGS AttendKvArgs args) {
  AttendToItems<AttendTiles<T, kDims, kWhole>>(args);
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
