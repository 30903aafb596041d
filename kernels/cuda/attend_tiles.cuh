#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_

// Attention of AttendKvArgs by tensor cores. After FlashAttention-2 (Dao, arXiv:2307.08691): a warp keeps 16 queries,
// their scores, weights and sums in registers, where a product's result lies as the next one's operand. For chunks,
// which are computed rather than read, each warp has 16 queries of the tile against all tokens of a step; for decode
// steps, which are read rather than computed, all have the same ones and a quarter of the tokens each (kSharedQueries),
// and join at the end of a cut, as Flash-Decoding's blocks do. A query's bits follow from positions alone, as in
// attend_kernel.cuh, though they are others, and the two ways' are, too.

#include "kernels/cuda/attend_copy.cuh"
#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attend_merge.cuh"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/tensor_operands.cuh"

namespace fastdecode::simt {

// head_dim is kDims, or if not kWhole less: then a branch at each product keeps the next operands from being loaded
// meanwhile.
template <class Operands, int kDims, bool kWhole, bool kSharedQueries>
class AttendTiles {
 public:
  FD_DEVICE explicit AttendTiles(const AttendKvArgs& args)
      : args_(args),
        layout_(Operands::Kv::kType, head_dim(), /*tile_queries=*/0),
        copy_(args.pages, layout_),
        scale_(args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E),
        warp_(Thread() / kWarp),
        row_(Thread() % kWarp / 4),
        column_(Thread() % 4 * 2) {}

  FD_DEVICE void Begin(const KvSpan& kv) const { copy_.BeginSpan(kv); }
  FD_DEVICE void Do(const AttendItem& item) {
    const bool works = FirstQuery() < item.queries;  // all of the warp
    LoadQueries(item);
    copy_.Steps(
        item.kv, NextOf(layout_)->kv,
        [&](const Step& step) {
          if (works) Score(step);
        },
        [&](const Step& step) {
          if (works) Weigh(item, step.first);
        },
        [&](const Step& step) {
          if (works) Add(step);
        });
    if constexpr (kSharedQueries) {
      JoinWarps(item);
    } else {
      Finish(item);
    }
    if (item.first_cut != item.last_cut &&
        IsLastOfTile(args_, item, reinterpret_cast<uint32_t*>(SharedMemory() + layout_.count))) {
      Merge(item);
    }
    SyncBlock();
  }

 private:
  using Type = typename Operands::Type;
  using Copy = KvCopy<typename Operands::Kv, /*kInWarps=*/true>;
  using Step = typename Copy::Step;
  static constexpr bool kScaled = Operands::Kv::kScaled;
  static constexpr unsigned kWarps = kAttendThreads / kWarp;
  static constexpr unsigned kTokens = kSharedQueries ? 16 : 64;  // of a step, the warp's
  static constexpr int kOperands = kDims / 16, kAccs = 2 * kOperands, kTokenOperands = kTokens / 16;

  FD_DEVICE int head_dim() const { return kWhole ? kDims : args_.pages.head_dim; }
  FD_DEVICE bool Has(int dim) const { return kWhole || dim < head_dim(); }
  FD_DEVICE float* Floats(size_t offset) const { return reinterpret_cast<float*>(SharedMemory() + offset); }
  FD_DEVICE unsigned FirstQuery() const { return kSharedQueries ? 0 : warp_ * kTensorQueries; }
  FD_DEVICE unsigned FirstToken() const { return kSharedQueries ? warp_ * kTokens : 0; }
  FD_DEVICE TokenRows RowsAt(const std::byte* rows, unsigned operand) const {
    const size_t token = FirstToken() + operand * size_t{16};
    return {rows + token * layout_.stride_bytes, layout_.stride_bytes, layout_.row_bytes};
  }
  // What this lane has of a tile's operands and results (simt_tensor.h): queries Query(0) and Query(1); of 8 tokens n,
  // TokenOf(n) and the next one.
  FD_DEVICE unsigned Query(unsigned half) const { return FirstQuery() + row_ + half * 8; }
  FD_DEVICE unsigned TokenOf(unsigned n) const { return FirstToken() + 8 * n + column_; }
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
        if (!is_one || !Has(16 * k) || (!kScaled && !Makes(k))) continue;
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
  // Which operands of q this warp is to make.
  FD_DEVICE bool Makes(int k) const { return !kSharedQueries || static_cast<unsigned>(k) % kWarps == warp_; }
  FD_DEVICE Pack<uint32_t, 4>* SharedOperands() const {
    return reinterpret_cast<Pack<uint32_t, 4>*>(SharedMemory() + layout_.tensor_q) + Thread() % kWarp;
  }
  FD_DEVICE Pack<uint32_t, 4> QueryOperand(int k) const {
    if constexpr (kSharedQueries) {
      return SharedOperands()[static_cast<unsigned>(k) * kWarp];
    } else {
      return q_[k];
    }
  }

  template <class W>
  FD_DEVICE void LoadQueriesOf(const AttendItem& item) {
    Pack<uint32_t, 4> operands[kOperands];
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const QueryPairs<W> pairs = QueryPairsOf<W>(item, half);
      const float factor = kScaled ? QueryFactor<W>(pairs, half) : 1;
      FD_UNROLL(unroll)
      for (int k = 0; k < kOperands; ++k) {
        FD_UNROLL(unroll)
        for (int i = 0; i < 2; ++i) {
          const float first = ToFloat(pairs.of[k][i].v[0]), second = ToFloat(pairs.of[k][i].v[1]);
          operands[k].v[half + 2 * static_cast<unsigned>(i)] =
              kScaled ? PairOf<Type>(first * factor, second * factor) : PairOf<Type>(first, second);
        }
      }
    }
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      if constexpr (kSharedQueries) {
        if (Makes(k) && Has(16 * k)) StorePack(SharedOperands()[static_cast<unsigned>(k) * kWarp].v, operands[k]);
      } else {
        q_[k] = operands[k];
      }
    }
  }
  // With kSharedQueries seen by other warps after the next SyncBlock.
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
    const unsigned last = FirstQuery() + kTensorQueries - 1, last_query = last < item.queries ? last : item.queries - 1;
    const unsigned first_seen = FirstSeen(args_.split, PositionOf(args_, item, last_query));
    const unsigned last_seen = PositionOf(args_, item, FirstQuery());
    all_begin_ = first_seen > item.kv.begin ? first_seen : item.kv.begin;
    all_end_ = last_seen < item.kv.end ? last_seen + 1 : item.kv.end;
  }

  // q · k of 16 queries and the warp's tokens.
  FD_DEVICE void Score(const Step& step) {
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < kTokenOperands; ++n) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) scores_[2 * n][i] = scores_[2 * n + 1][i] = 0;
      Operands::template Score<kWhole, kOperands>(
          RowsAt(step.k, n), [&](int k) { return QueryOperand(k); }, scores_[2 * n], scores_[2 * n + 1]);
    }
    if constexpr (kScaled) TakeScales(step);
  }

  FD_DEVICE void TakeScales(const Step& step) {
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < 2 * kTokenOperands; ++n) {
      k_scales_[n] = LoadPack<2>(step.k_scales + TokenOf(n));
      v_scales_[n] = LoadPack<2>(step.v_scales + TokenOf(n));
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
  FD_DEVICE void Add(const Step& step) {
    FD_UNROLL(unroll)
    for (unsigned k = 0; k < kTokenOperands; ++k) {
      const float(&low)[4] = scores_[2 * k];
      const float(&high)[4] = scores_[2 * k + 1];
      const uint32_t weights[4] = {PairOf<Type>(low[0], low[1]), PairOf<Type>(low[2], low[3]),
                                   PairOf<Type>(high[0], high[1]), PairOf<Type>(high[2], high[3])};
      Operands::template Add<kWhole>(RowsAt(step.v, k), weights, acc_);
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
      PutOutput<2>(args_, item, cut.place, dim, {acc.v[0] * cut.inverse, acc.v[1] * cut.inverse});
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

  // As Finish, after all warps' sums have been added up in the order of the warps: f32 [16][JoinStride]; behind them
  // each warp's maxima and sums, f32 [warps][16].
  FD_DEVICE void JoinWarps(const AttendItem& item) const {
    float* const acc = Floats(layout_.joined);
    float* const maxima = acc + kTensorQueries * JoinStride();
    float* const sums = maxima + kWarps * kTensorQueries;
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      const float sum = SumOf(half);
      if (column_ != 0) continue;
      maxima[warp_ * kTensorQueries + Query(half)] = maxima_[half];
      sums[warp_ * kTensorQueries + Query(half)] = sum;
    }
    SyncBlock();
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      if (warp == warp_) AddTo(item, acc, maxima);
      SyncBlock();
    }
    const unsigned pairs = static_cast<unsigned>(head_dim()) / 2;
    FD_UNROLL(unroll 1)
    for (unsigned i = Thread(); i < item.queries * pairs; i += kAttendThreads) {
      const unsigned query = i / pairs, dim = i % pairs * 2;
      const float most = MostOfWarps(maxima, query);
      float sum = 0;
      for (unsigned warp = 0; warp < kWarps; ++warp) {
        sum += sums[warp * kTensorQueries + query] * FactorFor(maxima[warp * kTensorQueries + query], most);
      }
      const Pack<float, 2> pair = LoadPack<2>(acc + query * JoinStride() + dim);
      const CutOfQuery cut = {PlaceOf(args_, item, query), most, sum, 1 / sum};
      Put(item, cut, static_cast<int>(dim), {pair.v[0], pair.v[1]});
    }
  }
  // A lane's rows begin in other banks than its neighbours'.
  FD_DEVICE unsigned JoinStride() const { return static_cast<unsigned>(head_dim()) + 8; }
  FD_DEVICE void AddTo(const AttendItem& item, float* acc, const float* maxima) const {
    FD_UNROLL(unroll)
    for (unsigned half = 0; half < 2; ++half) {
      if (!HasHalf(item, half)) break;
      const float factor = FactorFor(maxima_[half], MostOfWarps(maxima, Query(half)));
      FD_UNROLL(unroll)
      for (int n = 0; n < kAccs; ++n) {
        if (!Has(8 * n)) break;
        const DimPair mine = Operands::PairAt(acc_, n, half);
        float* const at = acc + Query(half) * JoinStride() + Operands::DimOf(n, static_cast<int>(column_));
        Pack<float, 2> sum = {};
        if (warp_ != 0) sum = LoadPack<2>(at);
        for (int e = 0; e < 2; ++e) sum.v[e] = Fma(mine.v[e], factor, sum.v[e]);
        StorePack(at, sum);
      }
    }
  }
  FD_DEVICE float MostOfWarps(const float* maxima, unsigned query) const {
    float most = maxima[query];
    for (unsigned warp = 1; warp < kWarps; ++warp) {
      most = Larger(maxima[warp * kTensorQueries + query], most);
    }
    return most;
  }
  FD_DEVICE static float FactorFor(float maximum, float most) {
    return Exp2(maximum - (most == MinusInfinity() ? 0 : most));
  }

  // Threads take four dims of a query each, of several queries at once.
  FD_DEVICE void Merge(const AttendItem& item) const {
    const unsigned quads = static_cast<unsigned>(head_dim()) / 4;
    FD_UNROLL(unroll 2)
    for (unsigned i = Thread(); i < item.queries * quads; i += kAttendThreads) {
      const int dim = static_cast<int>(i % quads) * 4;
      const QueryPlace place = PlaceOf(args_, item, i / quads);
      const size_t index = QueryIndex(args_, item, place);
      const Pack<float, 4> o = MergePartials<4>(args_, index, item.first_cut, item.last_cut, dim);
      PutOutput<2>(args_, item, place, dim, {o.v[0], o.v[1]});
      PutOutput<2>(args_, item, place, dim + 2, {o.v[2], o.v[3]});
    }
  }

  const AttendKvArgs& args_;
  const AttendLayout layout_;
  Copy copy_;
  const float scale_;  // of scores: to units of log2, or to what a cap takes
  const unsigned warp_, row_, column_;
  // Of queries Query(0) and Query(1): as in simt_tensor.h. With kSharedQueries operands of q are in shared memory, where
  // any warp has put them: registers for them would keep blocks from being side by side.
  Pack<uint32_t, 4> q_[kSharedQueries ? 1 : kOperands];
  float scores_[2 * kTokenOperands][4];  // then weights
  float acc_[kAccs][4];
  float maxima_[2], sums_[2];     // maxima in units of log2; sums: of this lane's tokens
  unsigned all_begin_, all_end_;  // what all of the warp's queries see
  // If there are scales: what a score is multiplied by besides K's, scale_ included, and those of this lane's tokens.
  float units_[2];
  Pack<Bf16, 2> k_scales_[2 * kTokenOperands], v_scales_[2 * kTokenOperands];
};

// Three blocks of a decode step's are side by side: what they read has to be on its way.
template <class Operands, int kDims, bool kWhole, bool kSharedQueries>
FD_KERNEL void FD_BLOCKS_MIN(kAttendThreads, kSharedQueries&& kDims <= 128 ? 3 : 1)
    AttendKvTiles(FD_ARGS AttendKvArgs args) {
  const AttendLayout layout(args.pages.type, args.pages.head_dim, /*tile_queries=*/0);
  AttendToItems<AttendTiles<Operands, kDims, kWhole, kSharedQueries>>(
      args, NextOf(layout));
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_TILES_CUH_
