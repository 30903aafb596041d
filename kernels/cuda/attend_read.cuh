#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_READ_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_READ_CUH_

// Attention of AttendKvArgs by tensor cores for decode steps, which are read rather than computed: a tile is of 8 or 16
// queries, which all warps have, and each warp takes a quarter of a step's tokens, which it copies for itself and waits
// for alone. They join at the end of a cut, as Flash-Decoding's blocks do. Products are of K's tokens by queries, and
// of V's dims by tokens (scores and sums transposed), since queries may be as few as 8 then, where they could not be
// less than 16 the other way round: half the work, with which blocks would else be busy for longer than their K and V
// take to come. A query's bits follow from positions alone, as in attend_kernel.cuh, though they are others.

#include "kernels/cuda/attend_copy.cuh"
#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attend_merge.cuh"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/tensor_operands.cuh"

namespace fastdecode::simt {

// head_dim is kDims, or if not kWhole less. kTiles: 8 queries each.
template <class Operands, int kDims, bool kWhole, int kTiles>
class AttendRead {
 public:
  FD_DEVICE explicit AttendRead(const AttendKvArgs& args)
      : args_(args),
        layout_(Operands::Kv::kType, head_dim(), AttendLayout::kReads),
        copy_(args.pages, layout_),
        scale_(args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E),
        warp_(Thread() / kWarp),
        row_(Thread() % kWarp / 4),
        column_(Thread() % 4 * 2) {}

  FD_DEVICE void Begin(const KvSpan& kv) { copy_.BeginSpan(kv); }
  FD_DEVICE void Do(const AttendItem& item) {
    StartItem(item);
    copy_.Steps(
        item.kv, NextOf(layout_)->kv, [&](unsigned) { Score(item); }, [&](unsigned first) { Weigh(item, first); },
        [&](unsigned) { Add(item); });
    JoinWarps(item);
    if (item.first_cut != item.last_cut && IsLastOfTile(args_, item, CountOf(layout_))) MergeTile(args_, item);
    SyncBlock();
  }

 private:
  using Type = typename Operands::Type;
  static constexpr bool kScaled = Operands::Kv::kScaled;
  static constexpr unsigned kWarps = kAttendThreads / kWarp, kOfTile = 8, kTokens = 16;
  static constexpr int kOperands = kDims / 16;

  FD_DEVICE int head_dim() const { return kWhole ? kDims : args_.pages.head_dim; }
  FD_DEVICE bool Has(int dim) const { return kWhole || dim < head_dim(); }
  // Whether any of the tile's 8 queries is one of the item's.
  FD_DEVICE static bool HasTile(const AttendItem& item, int tile) {
    return kTiles == 1 || static_cast<unsigned>(tile) * kOfTile < item.queries;
  }
  FD_DEVICE TokenRows RowsAt(size_t offset) const {
    return {SharedMemory() + offset + warp_ * kTokens * layout_.stride_bytes, layout_.stride_bytes, layout_.row_bytes,
            layout_.swizzle};
  }
  // What this lane has of results (simt_tensor.h): [2 * h + e] is of the step's token TokenOf(h) and query QueryOf(e).
  FD_DEVICE unsigned TokenOf(unsigned h) const { return warp_ * kTokens + 8 * h + row_; }
  FD_DEVICE unsigned QueryOf(int tile, unsigned e) const { return static_cast<unsigned>(tile) * kOfTile + column_ + e; }

  // ---- Queries: this lane has pairs of dims of query 8 * tile + row_

  template <class W>
  FD_DEVICE void LoadQueriesOf(const AttendItem& item, int tile) {
    const unsigned query = static_cast<unsigned>(tile) * kOfTile + row_;
    const bool is_one = query < item.queries;
    const W* const from = QueryAt<W>(args_, item, PlaceOf(args_, item, is_one ? query : 0));
    Pack<W, 2> pairs[kOperands][2] = {};  // all on their way at once; zeros behind the tile's last query
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        if (!is_one || !Has(16 * k)) continue;
        pairs[k][i] = LoadPack<2>(from + Operands::QueryDim(k, i, static_cast<int>(column_)));
      }
    }
    float factor = 1;
    if constexpr (kScaled) factor = QueryFactor<W>(pairs, tile);
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        const float first = ToFloat(pairs[k][i].v[0]), second = ToFloat(pairs[k][i].v[1]);
        q_[tile][k][i] = kScaled ? PairOf<Type>(first * factor, second * factor) : PairOf<Type>(first, second);
      }
    }
  }
  // The power of two that q is multiplied by, NaN if one of it is no finite number; units_ make up for it.
  template <class W>
  FD_DEVICE float QueryFactor(const Pack<W, 2> (&pairs)[kOperands][2], int tile) {
    uint32_t largest = uint32_t{15} << 23;  // as bits, of which those of NaN are the largest
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        for (const W value : pairs[k][i].v) {
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
    const float unit = FloatOfBits((exponent - 14) << 23) * scale_;
    FD_UNROLL(unroll)
    for (unsigned e = 0; e < 2; ++e) units_[tile][e] = ShuffleFrom(unit, 4 * (column_ + e));
    return FloatOfBits(exponent == 255 ? 0x7fc00000u : (268 - exponent) << 23);
  }

  FD_DEVICE void StartItem(const AttendItem& item) {
    FD_UNROLL(unroll)
    for (int t = 0; t < kTiles; ++t) {
      if (args_.wire.type == ElementType::kF32) {
        LoadQueriesOf<float>(item, t);
      } else {
        LoadQueriesOf<Bf16>(item, t);
      }
      FD_UNROLL(unroll)
      for (int e = 0; e < 2; ++e) {
        maxima_[t][e] = MinusInfinity();
        sums_[t][e] = 0;
      }
      FD_UNROLL(unroll)
      for (int j = 0; j < kOperands; ++j) {
        FD_UNROLL(unroll)
        for (int i = 0; i < 4; ++i) acc_[t][j][i] = 0;
      }
    }
    const unsigned first_seen = FirstSeen(args_.split, PositionOf(args_, item, item.queries - 1));
    const unsigned last_seen = PositionOf(args_, item, 0);
    all_begin_ = first_seen > item.kv.begin ? first_seen : item.kv.begin;
    all_end_ = last_seen < item.kv.end ? last_seen + 1 : item.kv.end;
  }

  // ---- A step

  // k · q of the warp's tokens. A tile alone has two sums: a product waits for the one before in its sum.
  FD_DEVICE void Score(const AttendItem& item) {
    float other[4] = {};
    FD_UNROLL(unroll)
    for (int t = 0; t < kTiles; ++t) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) scores_[t][i] = 0;
    }
    Operands::template ForTokens<Operand::kLeft, kWhole, kOperands>(
        RowsAt(layout_.k), [&](int k, const uint32_t(&tokens)[4]) {
          FD_UNROLL(unroll)
          for (int t = 0; t < kTiles; ++t) {
            if (!HasTile(item, t)) break;
            MultiplyAdd<Type>(kTiles > 1 || k % 2 == 0 ? scores_[t] : other, tokens, q_[t][k][0], q_[t][k][1]);
          }
        });
    if constexpr (kTiles == 1) {
      FD_UNROLL(unroll)
      for (int i = 0; i < 4; ++i) scores_[0][i] += other[i];
    }
    if constexpr (kScaled) TakeScales();
  }
  // They make way for the next step's before V is there.
  FD_DEVICE void TakeScales() {
    const auto scale = [&](size_t offset, unsigned h) {
      return ToFloat(reinterpret_cast<const Bf16*>(SharedMemory() + offset)[TokenOf(h)]);
    };
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      k_scales_[h] = scale(layout_.k_scales, h);
      v_scales_[h] = scale(layout_.v_scales, h);
    }
  }

  // Scores to weights; what was added before shrinks.
  FD_DEVICE void Weigh(const AttendItem& item, unsigned first) {
    const bool all_seen = first >= all_begin_ && first + layout_.tokens <= all_end_;  // by all queries
    bool seen[2];
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      const unsigned at = first + TokenOf(h);
      seen[h] = all_seen || (at >= item.kv.begin && at < item.kv.end);
      if constexpr (kScaled) v_scales_[h] = seen[h] ? v_scales_[h] : 0;  // another's may be anything
    }
    FD_UNROLL(unroll)
    for (int t = 0; t < kTiles; ++t) {
      if (!HasTile(item, t)) break;  // what comes of such queries nobody reads
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) ScaleAndMask(item, first, t, e, all_seen, seen);
      float factors[2];
      FD_UNROLL(unroll)
      for (unsigned e = 0; e < 2; ++e) factors[e] = WeighQuery(t, e);
      FD_UNROLL(unroll)
      for (unsigned h = 0; h < 2; ++h) {
        weights_[t][h] = TransposeInWarp(PairOf<Type>(scores_[t][2 * h], scores_[t][2 * h + 1]));
      }
      // Maxima seldom change.
      if (!AnyOfWarp(factors[0] != 1 || factors[1] != 1)) continue;
      FD_UNROLL(unroll)
      for (int j = 0; j < kOperands; ++j) {
        FD_UNROLL(unroll)
        for (unsigned i = 0; i < 4; ++i) acc_[t][j][i] *= factors[i % 2];
      }
    }
  }

  // Of a query's tokens. What it does not see has a score of minus infinity.
  FD_DEVICE void ScaleAndMask(const AttendItem& item, unsigned first, int tile, unsigned e, bool all_seen,
                              const bool (&seen)[2]) {
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      float& score = scores_[tile][2 * h + e];
      score *= kScaled ? k_scales_[h] * units_[tile][e] : scale_;
      if (args_.soft_cap > 0) score = args_.soft_cap * kLog2E * Tanh(score);
    }
    if (all_seen) return;
    const unsigned position = PositionOf(args_, item, QueryOf(tile, e)), first_seen = FirstSeen(args_.split, position);
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      const unsigned at = first + TokenOf(h);
      if (!seen[h] || at < first_seen || at > position) scores_[tile][2 * h + e] = MinusInfinity();
    }
  }

  // Scores to weights. The base that is taken from scores is their largest so far: of what is added up, so that no
  // weight is more than 1 once it has been multiplied by v's scale, or by 2^-100 where that is less. Returns what the
  // base's change makes of what was added before.
  FD_DEVICE float WeighQuery(int tile, unsigned e) {
    const float before = maxima_[tile][e];
    float most = before;
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      float added = scores_[tile][2 * h + e];
      if constexpr (kScaled) added += Log2(Larger(v_scales_[h], 0x1p-100f));
      most = Larger(added, most);
    }
    for (unsigned mask = 4; mask < kWarp; mask *= 2) most = Larger(ShuffleXor(most, mask), most);
    const float base = most == MinusInfinity() ? 0 : most;
    float sum = 0;
    FD_UNROLL(unroll)
    for (unsigned h = 0; h < 2; ++h) {
      float& weight = scores_[tile][2 * h + e];
      weight = Exp2(weight - base);
      sum += weight;
      if constexpr (kScaled) weight *= v_scales_[h];
    }
    maxima_[tile][e] = most;
    const float factor = Exp2(before - base);
    sums_[tile][e] = sums_[tile][e] * factor + sum;
    return factor;
  }

  // acc += v · weights.
  FD_DEVICE void Add(const AttendItem& item) {
    Operands::template ForDims<Operand::kLeft, kWhole, kOperands>(
        RowsAt(layout_.v), [&](int j, const uint32_t(&dims)[4]) {
          FD_UNROLL(unroll)
          for (int t = 0; t < kTiles; ++t) {
            if (!HasTile(item, t)) break;
            MultiplyAdd<Type>(acc_[t][j], dims, weights_[t][0], weights_[t][1]);
          }
        });
  }

  // ---- The end of a cut

  // Of each warp f32 [8][kStride] of what it has added up, for as many dims at a time, and behind all warps' their
  // maxima and sums, [warps][8] each. A lane's queries begin in other banks than its neighbours'.
  static constexpr unsigned kStride = AttendLayout::kJoinDims + 4;
  FD_DEVICE float* Joined() const { return reinterpret_cast<float*>(SharedMemory() + layout_.joined); }
  FD_DEVICE float* Maxima() const { return Joined() + kWarps * kOfTile * kStride; }
  FD_DEVICE float* Sums() const { return Maxima() + kWarps * kOfTile; }

  FD_DEVICE void JoinWarps(const AttendItem& item) const {
    FD_UNROLL(unroll)
    for (int t = 0; t < kTiles; ++t) {
      if (!HasTile(item, t)) break;
      FD_UNROLL(unroll)
      for (int first = 0; first < kDims; first += AttendLayout::kJoinDims) {
        if (!Has(first)) break;
        if (t > 0 || first > 0) SyncBlock();
        ShowSums(t, first);
        SyncBlock();
        PutJoined(item, t, first);
      }
    }
  }
  FD_DEVICE void ShowSums(int tile, int first) const {
    FD_UNROLL(unroll)
    for (unsigned e = 0; e < 2; ++e) {
      float sum = sums_[tile][e];
      for (unsigned mask = 4; mask < kWarp; mask *= 2) sum += ShuffleXor(sum, mask);
      if (row_ == 0 && first == 0) {
        Maxima()[warp_ * kOfTile + column_ + e] = maxima_[tile][e];
        Sums()[warp_ * kOfTile + column_ + e] = sum;
      }
      float* const to = Joined() + (warp_ * kOfTile + column_ + e) * kStride;
      FD_UNROLL(unroll)
      for (int j = 0; j < AttendLayout::kJoinDims / 16; ++j) {
        const int at = first / 16 + j;
        if (at >= kOperands || !Has(16 * at)) break;
        FD_UNROLL(unroll)
        for (unsigned h = 0; h < 2; ++h) {
          to[Operands::DimOf(j, h, static_cast<int>(row_))] = acc_[tile][at < kOperands ? at : 0][2 * h + e];
        }
      }
    }
  }
  // All threads add up what the warps have shown, in their order.
  FD_DEVICE void PutJoined(const AttendItem& item, int tile, int first) const {
    const unsigned left = item.queries - static_cast<unsigned>(tile) * kOfTile;
    const unsigned queries = left < kOfTile ? left : kOfTile;
    const int dims = head_dim() - first < AttendLayout::kJoinDims ? head_dim() - first : AttendLayout::kJoinDims;
    const unsigned pairs = static_cast<unsigned>(dims) / 2;
    FD_UNROLL(unroll 1)
    for (unsigned i = Thread(); i < queries * pairs; i += kAttendThreads) {
      const unsigned query = i / pairs, dim = i % pairs * 2;
      float most = MinusInfinity();
      FD_UNROLL(unroll)
      for (unsigned warp = 0; warp < kWarps; ++warp) most = Larger(Maxima()[warp * kOfTile + query], most);
      const float base = most == MinusInfinity() ? 0 : most;
      float sum = 0;
      DimPair acc = {};
      FD_UNROLL(unroll)
      for (unsigned warp = 0; warp < kWarps; ++warp) {
        const unsigned of_warp = warp * kOfTile + query;
        const float factor = Exp2(Maxima()[of_warp] - base);
        const Pack<float, 2> more = LoadPack<2>(Joined() + of_warp * kStride + dim);
        sum = Fma(Sums()[of_warp], factor, sum);
        for (int e = 0; e < 2; ++e) acc.v[e] = Fma(more.v[e], factor, acc.v[e]);
      }
      const QueryPlace place = PlaceOf(args_, item, static_cast<unsigned>(tile) * kOfTile + query);
      const int at = first + static_cast<int>(dim);
      if (item.first_cut == item.last_cut) {
        PutOutput(args_, item, place, at, {acc.v[0] / sum, acc.v[1] / sum});
      } else {
        PutPartial(args_, QueryIndex(args_, item, place), item.cut, at, acc, most, sum);
      }
    }
  }

  const AttendKvArgs& args_;
  const AttendLayout layout_;
  KvCopy<typename Operands::Kv, kWarp, /*kScalesFirst=*/true> copy_;
  const float scale_;  // of scores: to units of log2, or to what a cap takes
  const unsigned warp_, row_, column_;
  uint32_t q_[kTiles][kOperands][2];  // of query 8 * tile + row_
  float scores_[kTiles][4];           // then weights
  uint32_t weights_[kTiles][2];       // as an operand: of query 8 * tile + row_ and tokens 8 * h + column_ and the next
  float acc_[kTiles][kOperands][4];   // of DimOf(j, h, row_) and QueryOf(e): [2 * h + e]
  float maxima_[kTiles][2], sums_[kTiles][2];  // of QueryOf(e): in units of log2; of this lane's tokens
  unsigned all_begin_, all_end_;               // what all of the item's queries see
  // If there are scales: what a score is multiplied by besides K's, scale_ included, and those of this lane's tokens.
  float units_[kTiles][2];
  float k_scales_[2], v_scales_[2];
};

// Four blocks side by side: what they read has to be on its way.
template <class Operands, int kDims, bool kWhole, int kTiles>
FD_KERNEL void FD_BLOCKS_MIN(kAttendThreads, kTiles == 1 && kDims <= 128 ? 4 : 1)
    AttendKvReading(FD_ARGS AttendKvArgs args) {
  AttendToItems<AttendRead<Operands, kDims, kWhole, kTiles>>(
      args, NextOf(AttendLayout(args.pages.type, args.pages.head_dim, AttendLayout::kReads)));
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_READ_CUH_
