#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_

// Attention of AttendKvArgs by tensor cores for a prompt's chunks, which are computed rather than read. After
// FlashAttention-2 (Dao, arXiv:2307.08691): a warp keeps 16 queries of its own, their scores, weights and sums in
// registers, where a product's result lies as the next one's operand. A query's bits follow from positions alone, as in
// attend_kernel.cuh, though they are others, and so are attend_read.cuh's.

#include "kernels/cuda/attend_copy.cuh"
#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attend_merge.cuh"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/tensor_operands.cuh"

namespace fastdecode::simt {

// head_dim is kDims, or if not kWhole less: then a branch at each product keeps the next operands from being loaded
// meanwhile.
template <class Operands, int kDims, bool kWhole>
class AttendTiles {
 public:
  FD_DEVICE explicit AttendTiles(const AttendKvArgs& args)
      : args_(args),
        layout_(Operands::Kv::kType, head_dim(), AttendLayout::kComputes),
        copy_(args.pages, layout_),
        scale_(args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E),
        warp_(Thread() / kWarp),
        row_(Thread() % kWarp / 4),
        column_(Thread() % 4 * 2) {}

  FD_DEVICE void Begin(const KvSpan& kv) { copy_.BeginSpan(kv); }
  FD_DEVICE void Do(const AttendItem& item) {
    const bool works = FirstQuery() < item.queries;  // all of the warp
    LoadQueries(item);
    copy_.Steps(
        item.kv, NextOf(layout_)->kv,
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
    if (item.first_cut != item.last_cut && IsLastOfTile(args_, item, CountOf(layout_))) MergeTile(args_, item);
    SyncBlock();
  }

 private:
  using Type = typename Operands::Type;
  static constexpr bool kScaled = Operands::Kv::kScaled;
  static constexpr unsigned kOfWarp = 16;  // queries
  static constexpr unsigned kTokens = 64;  // of a step
  static constexpr int kOperands = kDims / 16, kAccs = 2 * kOperands, kTokenOperands = kTokens / 16;

  FD_DEVICE int head_dim() const { return kWhole ? kDims : args_.pages.head_dim; }
  FD_DEVICE bool Has(int dim) const { return kWhole || dim < head_dim(); }
  FD_DEVICE unsigned FirstQuery() const { return warp_ * kOfWarp; }
  FD_DEVICE TokenRows RowsAt(size_t offset, unsigned operand) const {
    return {SharedMemory() + offset + operand * 16 * layout_.stride_bytes, layout_.stride_bytes, layout_.row_bytes,
            layout_.swizzle};
  }
  // What this lane has of a tile's operands and results (simt_tensor.h): queries Query(0) and Query(1); of 8 tokens n,
  // TokenOf(n) and the next one.
  FD_DEVICE unsigned Query(unsigned half) const { return FirstQuery() + row_ + half * 8; }
  FD_DEVICE unsigned TokenOf(unsigned n) const { return 8 * n + column_; }
  // Whether any of the warp's Query(half) is one of the item's.
  FD_DEVICE bool HasHalf(const AttendItem& item, unsigned half) const { return FirstQuery() + half * 8 < item.queries; }

  // This lane's pairs of a query in memory, all on their way at once: [operand][QueryDim's i]. Zeros behind the tile's
  // last query.
  template <class W>
  struct QueryPairs {
    Pack<W, 2> of[kOperands][2];
  };
  template <class W>
  FD_DEVICE QueryPairs<W> QueryPairsOf(const AttendItem& item, unsigned half) const {
    const bool is_one = Query(half) < item.queries;
    const W* const from = QueryAt<W>(args_, item, PlaceOf(args_, item, is_one ? Query(half) : 0));
    QueryPairs<W> pairs = {};
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        if (!is_one || !Has(16 * k)) continue;
        pairs.of[k][i] = LoadPack<2>(from + Operands::QueryDim(k, i, static_cast<int>(column_)));
      }
    }
    return pairs;
  }
  // A power of two that q is multiplied by, NaN if one of it is no finite number; units_[half] makes up for it.
  template <class W>
  FD_DEVICE float QueryFactor(const QueryPairs<W>& pairs, unsigned half) {
    uint32_t largest = uint32_t{15} << 23;  // as bits, of which those of NaN are the largest
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        for (const W value : pairs.of[k][i].v) {
          const uint32_t magnitude = BitsOf(ToFloat(value)) & 0x7fffffffu;
          largest = magnitude > largest ? magnitude : largest;
        }
      }
    }
    for (unsigned mask = 1; mask < 4; mask *= 2) {
      const uint32_t other = ShuffleXor(largest, mask);
      largest = other > largest ? other : largest;
    }
    const uint32_t exponent = largest >> 23;
    units_[half] = FloatOfBits((exponent - 14) << 23) * scale_;
    return FloatOfBits(exponent == 255 ? 0x7fc00000u : (268 - exponent) << 23);
  }
  template <class W>
  FD_DEVICE void LoadQueriesOf(const AttendItem& item) {
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const QueryPairs<W> pairs = QueryPairsOf<W>(item, half);
      const float factor = kScaled ? QueryFactor<W>(pairs, half) : 1;
      FD_UNROLL(unroll)
      for (int k = 0; k < kOperands; ++k) {
        FD_UNROLL(unroll)
        for (int i = 0; i < 2; ++i) {
          const float first = ToFloat(pairs.of[k][i].v[0]), second = ToFloat(pairs.of[k][i].v[1]);
          q_[k].v[half + 2 * static_cast<unsigned>(i)] =
              kScaled ? PairOf<Type>(first * factor, second * factor) : PairOf<Type>(first, second);
        }
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
    for (int n = 0; n < kAccs; ++n) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) acc_[n][i] = 0;
    }
    const unsigned last = FirstQuery() + kOfWarp - 1, last_query = last < item.queries ? last : item.queries - 1;
    const unsigned first_seen = FirstSeen(args_.split, PositionOf(args_, item, last_query));
    const unsigned last_seen = PositionOf(args_, item, FirstQuery());
    all_begin_ = first_seen > item.kv.begin ? first_seen : item.kv.begin;
    all_end_ = last_seen < item.kv.end ? last_seen + 1 : item.kv.end;
  }

  // q · k of 16 queries and the warp's tokens.
  FD_DEVICE void Score() {
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) scores_[2 * n][i] = scores_[2 * n + 1][i] = 0;
      Operands::template ForTokens<Operand::kRight, kWhole, kOperands>(
          RowsAt(layout_.k, n), [&](int k, const uint32_t(&tokens)[4]) {
            MultiplyAdd<Type>(scores_[2 * n], q_[k].v, tokens[0], tokens[2]);
            MultiplyAdd<Type>(scores_[2 * n + 1], q_[k].v, tokens[1], tokens[3]);
          });
    }
    if constexpr (kScaled) TakeScales();
  }

  // They make way for the next step's before V is there.
  FD_DEVICE void TakeScales() {
    const auto scales = [&](size_t offset, unsigned n) {
      return LoadPack<2>(reinterpret_cast<const Bf16*>(SharedMemory() + offset) + TokenOf(n));
    };
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      k_scales_[n] = scales(layout_.k_scales, n);
      v_scales_[n] = scales(layout_.v_scales, n);
    }
  }

  // Scores to weights; what was added before shrinks.
  FD_DEVICE void Weigh(const AttendItem& item, unsigned first) {
    const bool all_seen = first >= all_begin_ && first + layout_.tokens <= all_end_;  // by all warps
    float factors[2] = {1, 1};
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      if (!HasHalf(item, half)) break;  // what comes of such rows nobody reads
      Scale(half);
      if (args_.soft_cap > 0) Cap(half);
      if (!all_seen) Mask(item, first, half);
      factors[half] = WeighHalf(half);
    }
    // Maxima seldom change.
    if (!AnyOfWarp(factors[0] != 1 || factors[1] != 1)) return;
    FD_UNROLL(unroll)
    for (int n = 0; n < kAccs; ++n) {
      FD_UNROLL(unroll)
      for (unsigned i = 0; i < 4; ++i) acc_[n][i] *= factors[i / 2];
    }
  }

  FD_DEVICE void Scale(unsigned half) {
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        float& score = scores_[n][2 * half + e];
        if constexpr (kScaled) {
          score *= ToFloat(k_scales_[n].v[e]) * units_[half];
        } else {
          score *= scale_;
        }
      }
    }
  }

  FD_DEVICE void Cap(unsigned half) {
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        scores_[n][2 * half + e] = args_.soft_cap * kLog2E * Tanh(scores_[n][2 * half + e]);
      }
    }
  }

  // What a query does not see has a score of minus infinity; scales of tokens outside of the item may be anything.
  FD_DEVICE void Mask(const AttendItem& item, unsigned first, unsigned half) {
    const unsigned position = PositionOf(args_, item, Query(half)), first_seen = FirstSeen(args_.split, position);
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned at = first + TokenOf(n) + e;
        const bool in_item = at >= item.kv.begin && at < item.kv.end;
        if (!in_item || at < first_seen || at > position) scores_[n][2 * half + e] = MinusInfinity();
        if constexpr (kScaled) v_scales_[n].v[e] = in_item ? v_scales_[n].v[e] : Bf16{0};
      }
    }
  }

  // Scores to weights. The base that is taken from scores is their largest so far: of what is added up, so that no
  // weight is more than 1 once it has been multiplied by v's scale, or by 2^-100 where that is less. Returns what the
  // base's change makes of what was added before.
  FD_DEVICE float WeighHalf(unsigned half) {
    const float before = maxima_[half];
    float most = before;
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        float added = scores_[n][2 * half + e];
        if constexpr (kScaled) added += Log2(Larger(ToFloat(v_scales_[n].v[e]), 0x1p-100f));
        most = Larger(added, most);
      }
    }
    for (unsigned mask = 1; mask < 4; mask *= 2) most = Larger(ShuffleXor(most, mask), most);
    const float base = most == MinusInfinity() ? 0 : most;
    float sum = 0;
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) {
        float& weight = scores_[n][2 * half + e];
        weight = Exp2(weight - base);
        sum += weight;
        if constexpr (kScaled) weight *= ToFloat(v_scales_[n].v[e]);
      }
    }
    maxima_[half] = most;
    const float factor = Exp2(before - base);
    sums_[half] = sums_[half] * factor + sum;
    return factor;
  }

  // acc += weights · v.
  FD_DEVICE void Add() {
    FD_UNROLL(unroll)
    for (unsigned k = 0; k < kTokenOperands; ++k) {
      const float(&low)[4] = scores_[2 * k];
      const float(&high)[4] = scores_[2 * k + 1];
      const uint32_t weights[4] = {PairOf<Type>(low[0], low[1]), PairOf<Type>(low[2], low[3]),
                                   PairOf<Type>(high[0], high[1]), PairOf<Type>(high[2], high[3])};
      Operands::template ForDims<Operand::kRight, kWhole, kOperands>(
          RowsAt(layout_.v, k), [&](int j, const uint32_t(&dims)[4]) {
            MultiplyAdd<Type>(acc_[2 * j], weights, dims[0], dims[2]);
            MultiplyAdd<Type>(acc_[2 * j + 1], weights, dims[1], dims[3]);
          });
    }
  }

  // Of the tokens of all lanes that have the query.
  FD_DEVICE float SumOf(unsigned half) const {
    float sum = sums_[half];
    for (unsigned mask = 1; mask < 4; mask *= 2) sum += ShuffleXor(sum, mask);
    return sum;
  }

  // What a cut yields for one of the item's queries, which is o itself if there is no other cut.
  struct CutOfQuery {
    QueryPlace place;
    float maximum, sum, inverse;  // 1 / sum
  };
  FD_DEVICE void Put(const AttendItem& item, const CutOfQuery& cut, int dim, DimPair acc) const {
    if (item.first_cut == item.last_cut) {
      PutOutput(args_, item, cut.place, dim, {acc.v[0] * cut.inverse, acc.v[1] * cut.inverse});
    } else {
      PutPartial(args_, QueryIndex(args_, item, cut.place), item.cut, dim, acc, cut.maximum, cut.sum);
    }
  }

  FD_DEVICE void Finish(const AttendItem& item) const {
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const float sum = SumOf(half);
      if (Query(half) >= item.queries) continue;
      const CutOfQuery cut = {PlaceOf(args_, item, Query(half)), maxima_[half], sum, 1 / sum};
      FD_UNROLL(unroll)
      for (int n = 0; n < kAccs; ++n) {
        if (!Has(8 * n)) break;
        Put(item, cut, Operands::DimOf(n, static_cast<int>(column_)), Operands::PairAt(acc_, n, half));
      }
    }
  }

  const AttendKvArgs& args_;
  const AttendLayout layout_;
  KvCopy<typename Operands::Kv, kAttendThreads, /*kScalesFirst=*/true> copy_;
  const float scale_;  // of scores: to units of log2, or to what a cap takes
  const unsigned warp_, row_, column_;
  // Of queries Query(0) and Query(1): as in simt_tensor.h.
  Pack<uint32_t, 4> q_[kOperands];
  float scores_[2 * kTokenOperands][4];  // then weights
  float acc_[kAccs][4];
  float maxima_[2], sums_[2];     // maxima in units of log2; sums: of this lane's tokens
  unsigned all_begin_, all_end_;  // what all of the warp's queries see
  // If there are scales: what a score is multiplied by besides K's, scale_ included, and those of this lane's tokens.
  float units_[2];
  Pack<Bf16, 2> k_scales_[2 * kTokenOperands], v_scales_[2 * kTokenOperands];
};

template <class Operands, int kDims, bool kWhole>
FD_KERNEL void FD_BLOCK_MAX(kAttendThreads) AttendKvTiles(FD_ARGS AttendKvArgs args) {
  AttendToItems<AttendTiles<Operands, kDims, kWhole>>(
      args, NextOf(AttendLayout(args.pages.type, args.pages.head_dim, AttendLayout::kComputes)));
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
