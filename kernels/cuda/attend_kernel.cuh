#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_KERNEL_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_KERNEL_CUH_

// Attention of AttendKvArgs. A block reads each K and V of its item once, for all queries of the tile: 16 bytes a
// thread, all of a step on their way at once, while it works on what came before. Per step: threads multiply a token's
// k by some queries each; a warp a query makes weights of the scores; threads add v to the two dims that each of them
// has. All that is done for one query is in an order that follows from positions alone.

#include "kernels/cuda/attend_copy.cuh"
#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attend_merge.cuh"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

template <class Kv, int kQueries>
class Attend {
 public:
  using Element = typename Kv::Element;

  FD_DEVICE explicit Attend(const AttendKvArgs& args)
      : args_(args),
        layout_(Kv::kType, args.pages.head_dim, args.split.tile_queries),
        copy_(args.pages, layout_),
        dim_(2 * (static_cast<int>(Thread()) % (args.pages.head_dim / 2))),
        group_(static_cast<int>(Thread()) / (args.pages.head_dim / 2)),
        adds_(group_ < AttendGroups(args.pages.head_dim)) {}

  FD_DEVICE void Begin(const KvSpan& kv) { copy_.BeginSpan(kv); }
  FD_DEVICE void Do(const AttendItem& item) {
    LoadQueries(item);
    copy_.Steps(
        item.kv, NextOf(layout_)->kv, [&](unsigned first) { Score(item, first); },
        [&](unsigned first) { Weigh(item, first); }, [&](unsigned first) { Add(item, first); });
    Finish(item);
    SyncBlock();
  }

 private:
  FD_DEVICE float* Floats(size_t offset) const { return reinterpret_cast<float*>(SharedMemory() + offset); }
  FD_DEVICE unsigned queries() const { return args_.split.tile_queries; }
  FD_DEVICE int head_dim() const { return args_.pages.head_dim; }

  // q in units of log2, with what the scores will be multiplied by; zeros behind the tile's last query.
  template <class W>
  FD_DEVICE void LoadQueriesOf(const AttendItem& item) {
    const float scale = args_.soft_cap > 0 ? args_.scale / args_.soft_cap : args_.scale * kLog2E;
    const unsigned quads = static_cast<unsigned>(head_dim()) / 4;
    float* const to = Floats(0);
    for (unsigned i = Thread(); i < queries() * quads; i += Threads()) {
      const unsigned query = i / quads;
      Pack<float, 4> out = {};
      if (query < item.queries) {
        const Pack<W, 4> in = LoadPack<4>(QueryAt<W>(args_, item, PlaceOf(args_, item, query)) + i % quads * 4);
        for (int j = 0; j < 4; ++j) out.v[j] = ToFloat(in.v[j]) * scale;
      }
      StorePack(to + size_t{i} * 4, out);
    }
  }
  FD_DEVICE void LoadQueries(const AttendItem& item) {
    if (args_.wire.type == ElementType::kF32) {
      LoadQueriesOf<float>(item);
    } else {
      LoadQueriesOf<Bf16>(item);
    }
    for (unsigned query = Thread(); query < queries(); query += Threads()) {
      Floats(layout_.maxima)[query] = MinusInfinity();
      Floats(layout_.sums)[query] = 0;
    }
    for (DimPair& of_query : acc_) of_query = {};
  }

  FD_DEVICE float ScaleAt(size_t offset, unsigned token) const {
    return ToFloat(reinterpret_cast<const Bf16*>(SharedMemory() + offset)[token]);
  }

  // q · k: a thread takes one token and kTile queries at a time.
  FD_DEVICE void Score(const AttendItem& item, unsigned first) {
    constexpr unsigned kTile = kQueries == 2 ? 2 : 4;
    const unsigned tokens = layout_.tokens;
    for (unsigned unit = Thread(); unit < tokens * (queries() / kTile); unit += Threads()) {
      const unsigned token = unit % tokens, query = unit / tokens * kTile;
      const unsigned at = first + token;
      if (query >= item.queries || at >= item.kv.end || at < item.kv.begin) continue;
      float dots[kTile] = {};
      Multiply<kTile>(Floats(0) + size_t{query} * head_dim(),
                      reinterpret_cast<const Element*>(SharedMemory() + layout_.k + token * layout_.stride_bytes),
                      dots);
      for (unsigned i = 0; i < kTile; ++i) {
        if constexpr (Kv::kScaled) dots[i] *= ScaleAt(layout_.k_scales, token);
        Floats(layout_.scores)[(query + i) * tokens + token] = dots[i];
      }
    }
  }

  template <unsigned kTile>
  FD_DEVICE void Multiply(const float* q, const Element* k, float* dots) const {
    constexpr int kPack = 16 / sizeof(Element);
    FD_UNROLL(unroll 2)
    for (int d = 0; d < head_dim(); d += kPack) {
      const Pack<Element, kPack> k_pack = LoadPack<kPack>(k + d);
      for (int j = 0; j < kPack; j += 4) {
        for (unsigned i = 0; i < kTile; ++i) {
          const Pack<float, 4> q_pack = LoadPack<4>(q + i * static_cast<size_t>(head_dim()) + d + j);
          for (int e = 0; e < 4; ++e) dots[i] = Fma(q_pack.v[e], Kv::Widen(k_pack.v[j + e]), dots[i]);
        }
      }
    }
  }

  // Scores to weights, a warp a query; how far what was added before shrinks.
  FD_DEVICE void Weigh(const AttendItem& item, unsigned first) {
    for (unsigned query = Thread() / kWarp; query < queries(); query += kAttendThreads / kWarp) {
      WeighQuery(item, first, query);
    }
  }

  FD_DEVICE void WeighQuery(const AttendItem& item, unsigned first, unsigned query) {
    constexpr unsigned kOfLane = 2;  // of up to 64 tokens
    const unsigned position = PositionOf(args_, item, query);
    const unsigned first_seen = FirstSeen(args_.split, position);
    float* const row = Floats(layout_.scores) + query * layout_.tokens;
    float* const maximum = Floats(layout_.maxima) + query;
    const float before = *maximum;
    float scores[kOfLane], most = before;
    bool sees[kOfLane];
    for (unsigned i = 0; i < kOfLane; ++i) {
      const unsigned token = Thread() % kWarp + i * kWarp, at = first + token;
      sees[i] = query < item.queries && token < layout_.tokens && at >= first_seen && at <= position &&
                at >= item.kv.begin && at < item.kv.end;
      scores[i] = sees[i] ? Capped(row[token]) : MinusInfinity();
      most = scores[i] > most ? scores[i] : most;  // NaN is not
    }
    most = MostOverWarp(most);
    const float base = most == MinusInfinity() ? 0 : most;
    float sum = 0;
    for (unsigned i = 0; i < kOfLane; ++i) {
      const unsigned token = Thread() % kWarp + i * kWarp;
      const float weight = sees[i] ? Exp2(scores[i] - base) : 0;
      sum += weight;
      if (token < layout_.tokens) row[token] = weight;
    }
    sum = SumOverWarp(sum);
    SyncWarp();  // behind all that read the maximum before
    if (Thread() % kWarp != 0) return;
    const float factor = Exp2(before - base);
    *maximum = most;
    Floats(layout_.factors)[query] = factor;
    Floats(layout_.sums)[query] = Floats(layout_.sums)[query] * factor + sum;
  }

  FD_DEVICE float Capped(float score) const {
    return args_.soft_cap > 0 ? args_.soft_cap * kLog2E * Tanh(score) : score;
  }

  // acc = acc * factor + weights · v, four tokens at a time.
  FD_DEVICE void Add(const AttendItem& item, unsigned first) {
    if (!adds_) return;
    const float* const factors = Floats(layout_.factors) + group_ * kQueries;
    FD_UNROLL(unroll)
    for (int i = 0; i < kQueries; ++i) {
      for (float& value : acc_[i].v) value *= factors[i];
    }
    const unsigned left = item.kv.end - first, end = left < layout_.tokens ? left : layout_.tokens;
    const float* const weights = Floats(layout_.scores) + static_cast<size_t>(group_) * kQueries * layout_.tokens;
    FD_UNROLL(unroll 1)
    for (unsigned token = 0; token < end; token += 4) {
      DimPair v[4];
      for (unsigned j = 0; j < 4; ++j) v[j] = LoadV(item, first, token + j);
      FD_UNROLL(unroll)
      for (int i = 0; i < kQueries; ++i) {
        const Pack<float, 4> weight = LoadPack<4>(weights + i * layout_.tokens + token);
        for (int j = 0; j < 4; ++j) {
          for (int e = 0; e < 2; ++e) acc_[i].v[e] = Fma(weight.v[j], v[j].v[e], acc_[i].v[e]);
        }
      }
    }
  }

  // This thread's dims of a token's v. Codes times scales are exact.
  FD_DEVICE DimPair LoadV(const AttendItem& item, unsigned first, unsigned token) const {
    const std::byte* const row = SharedMemory() + layout_.v + token * layout_.stride_bytes;
    const Pack<Element, 2> pack = LoadPack<2>(reinterpret_cast<const Element*>(row) + dim_);
    DimPair v = {Kv::Widen(pack.v[0]), Kv::Widen(pack.v[1])};
    if constexpr (Kv::kScaled) {
      const bool seen = first + token >= item.kv.begin && first + token < item.kv.end;
      const float scale = seen ? ScaleAt(layout_.v_scales, token) : 0;
      for (float& value : v.v) value *= scale;
    }
    return v;
  }

  // A tile that sees one cut has its result; of several, the block that comes last merges all. A kernel of its own for
  // that would cost each layer a launch, also where no context is so long.
  FD_DEVICE void Finish(const AttendItem& item) {
    const bool alone = item.first_cut == item.last_cut;
    FD_UNROLL(unroll)
    for (int i = 0; i < kQueries; ++i) {
      const unsigned query = static_cast<unsigned>(group_ * kQueries + i);
      if (!adds_ || query >= item.queries) continue;
      const QueryPlace place = PlaceOf(args_, item, query);
      const float maximum = Floats(layout_.maxima)[query], sum = Floats(layout_.sums)[query];
      if (alone) {
        PutOutput(args_, item, place, dim_, {acc_[i].v[0] / sum, acc_[i].v[1] / sum});
      } else {
        PutPartial(args_, QueryIndex(args_, item, place), item.cut, dim_, acc_[i], maximum, sum);
      }
    }
    if (alone || !IsLastOfTile(args_, item, CountOf(layout_))) return;
    MergeTile(args_, item);
  }

  const AttendKvArgs& args_;
  const AttendLayout layout_;
  KvCopy<Kv> copy_;
  const int dim_, group_;  // which dims, and which kQueries queries, are this thread's
  const bool adds_;        // it has any
  DimPair acc_[kQueries];
};

template <class Kv, int kQueries>
FD_KERNEL void FD_BLOCK_MAX(kAttendThreads) AttendKv(FD_ARGS AttendKvArgs args) {
  const AttendLayout layout(args.pages.type, args.pages.head_dim, args.split.tile_queries);
  AttendToItems<Attend<Kv, kQueries>>(args, NextOf(layout));
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_KERNEL_CUH_
