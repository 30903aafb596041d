#ifndef FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_
#define FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_

#include <immintrin.h>

#include "kernels/attention.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {

// Everything here is in an anonymous namespace and calls no inline function of another header, std's included: the
// linker keeps one copy of such a function for the whole program, which might be this one, compiled for an ISA that the
// machine has not.
namespace {

// Attention over pages, for one vector type (avx2_vector.h, avx512_vector.h) and element type. The arithmetic of one
// (row, head) is fixed, only how many share a loaded K or V register differs, so every tiling and ISA gives the same
// bits:
//   score    even and odd dims in two chains of FMAs in ascending order, added; in units of log2, q being scaled first
//   max      over the visible tokens; the block's is the running one
//   p        Exp2(score - max), exactly 0 where not visible
//   sum      p of the 32 tokens, halves onto halves;                      sum = sum * factor + that
//   acc      even and odd tokens in two chains of FMAs in ascending order; acc = acc * factor + that
// with factor = Exp2(old max - new max), exactly 1 where the max stays. A page with no visible token changes nothing.
template <class V, typename Element>
class Attention {
 public:
  static AttentionKernels Kernels(const char* name, AppendFn append) {
    return AttentionKernels{name, append, &Attend, &Fold, &Finish};
  }

 private:
  using Float = typename V::Float;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPairElements = 2 * kPanelLanes;                               // two steps of a panel
  static constexpr int kVectorElements = sizeof(Element) == 2 ? 2 * kLanes : kLanes;  // between the vectors of a panel
  static constexpr int kTileFloats = (V::kMaxTile + kLanes - 1) / kLanes * kLanes;
  static constexpr float kInfinity = __builtin_inff();
  static constexpr float kMostNegative = -__FLT_MAX__;
  static constexpr float kLog2E = 1.44269504088896341f;

  // What is the same for all pages and tiles of a call.
  struct Query {
    int head_dim;
    float cap_log2;  // soft_cap * log2(e), 0: none
  };

  // Up to kMaxTile consecutive row-heads: J of them, chosen by the function that takes it.
  struct Tile {
    const float* q;                 // [J][head_dim], scaled
    float* p;                       // [J][32], scores and then probabilities
    float* max;                     // [J]
    float* sum;                     // [J]
    float* acc;                     // [J][head_dim]
    uint32_t visible[kTileFloats];  // [J], bit t: the row sees token t of the page
  };
  using PageFn = void (*)(const Query& query, const Element* page_head, ptrdiff_t prefetch_bytes, const Tile& tile);

  // 2^x for x <= 127, relative error < 1.8e-7 (minimax of degree 5, measured over all of [-0.5, 0.5]), 2^0 = 1 exactly.
  // 0 below 2^-115 (e^-80): that is nothing beside a sum >= 1, and p * v stays clear of denormals. NaN gives NaN.
  static Float Exp2(Float x) {
    const Float n = V::Round(x);
    const Float f = V::Sub(x, n);
    Float y = V::Set(0x1.5bba14p-10f);
    y = V::Fma(y, f, V::Set(0x1.3cea88p-7f));
    y = V::Fma(y, f, V::Set(0x1.c6b752p-5f));
    y = V::Fma(y, f, V::Set(0x1.ebf9bcp-3f));
    y = V::Fma(y, f, V::Set(0x1.62e42ap-1f));
    y = V::Fma(y, f, V::Set(1.0f));
    return V::ZeroWhereLess(V::ScaleByPowerOf2(y, n), x, V::Set(-115.0f));
  }

  // cap * tanh(z / cap) * log2(e), where x = 2 * log2(e) * z / cap.
  static Float SoftCap(Float x, Float cap_log2) {
    const Float e = Exp2(V::Min(V::Set(126.0f), x));  // the second where one is NaN
    const Float tanh = V::Sub(V::Set(1.0f), V::Div(V::Set(2.0f), V::Add(e, V::Set(1.0f))));
    return V::Mul(tanh, cap_log2);
  }

  // sum[j] = sum over steps of x[j][step] * panel[step], for J vectors x. Prefetches, prefetch_bytes on, the lines that
  // it reads: every line, into L2, is what random pages want. One panel at a time: two would give a single row more
  // chains of FMAs, but the reads would no longer ascend (Zen 4, f32, one query head, of a sequential read: .70 against
  // .53).
  template <int J>
  static inline void Multiply(const Element* panel, int steps, const float* x, int x_stride, ptrdiff_t prefetch_bytes,
                              Float (&sum)[J][kPanelVectors]) {
    Float even[J][kPanelVectors], odd[J][kPanelVectors];
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) even[j][w] = odd[j][w] = V::Zero();
    }
    for (int i = 0; i < steps; i += 2) {
      const char* line = reinterpret_cast<const char*>(panel) + prefetch_bytes;
      _mm_prefetch(line, _MM_HINT_T1);
      if constexpr (sizeof(Element) == 4) _mm_prefetch(line + 64, _MM_HINT_T1);
      MultiplyStep<0>(panel, x + i, x_stride, even);
      MultiplyStep<1>(panel, x + i + 1, x_stride, odd);
      panel += kPairElements;
    }
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::Add(even[j][w], odd[j][w]);
    }
  }

  template <int kOdd, int J>
  static inline void MultiplyStep(const Element* pair, const float* x, int x_stride, Float (&sum)[J][kPanelVectors]) {
    Float m[kPanelVectors];
#pragma GCC unroll 2
    for (int w = 0; w < kPanelVectors; ++w) m[w] = V::template LoadStep<kOdd>(pair + w * kVectorElements);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Float factor = V::Set(x[j * x_stride]);
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) sum[j][w] = V::Fma(factor, m[w], sum[j][w]);
    }
  }

  // tile.p = q · k for the 32 tokens of a page.
  template <int J>
  static inline void Scores(const Query& query, const Element* k, ptrdiff_t prefetch_bytes, const Tile& tile) {
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      Float score[J][kPanelVectors];
      Multiply<J>(k + t * query.head_dim, query.head_dim, tile.q, query.head_dim, prefetch_bytes, score);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) V::Store(tile.p + j * kPageTokens + t + w * kLanes, score[j][w]);
      }
    }
  }

  // Caps and masks the scores of one row-head in place; returns their max.
  static inline float FinishScores(const Query& query, uint32_t visible, float* scores) {
    Float max = V::Set(-kInfinity);
#pragma GCC unroll 4
    for (int t = 0; t < kPageTokens; t += kLanes) {
      Float score = V::Load(scores + t);
      if (query.cap_log2 > 0) score = SoftCap(score, V::Set(query.cap_log2));
      score = V::Select(visible >> t, score, V::Set(-kInfinity));
      V::Store(scores + t, score);
      max = V::Max(max, score);
    }
    return V::MaxLanes(max);
  }

  // p = Exp2(score - base) of one row-head in place; returns their sum.
  static inline float Exponentiate(float base, float* scores) {
    constexpr int kVectors = kPageTokens / kLanes;
    Float p[kVectors];
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) {
      p[w] = Exp2(V::Sub(V::Load(scores + w * kLanes), V::Set(base)));
      V::Store(scores + w * kLanes, p[w]);
    }
#pragma GCC unroll 2
    for (int half = kVectors / 2; half > 0; half /= 2) {
#pragma GCC unroll 2
      for (int w = 0; w < half; ++w) p[w] = V::Add(p[w], p[w + half]);
    }
    return V::SumLanes(p[0]);
  }

  // Scores to probabilities; updates tile.max and tile.sum; factor[j] rescales what was accumulated before.
  template <int J>
  static inline void Softmax(const Query& query, const Tile& tile, float (&factor)[kTileFloats]) {
    alignas(64) float old_max[kTileFloats] = {}, new_max[kTileFloats] = {}, base[kTileFloats];
    for (int j = 0; j < J; ++j) {
      old_max[j] = tile.max[j];
      new_max[j] = FinishScores(query, tile.visible[j], tile.p + j * kPageTokens);
    }
#pragma GCC unroll 2
    for (int j = 0; j < kTileFloats; j += kLanes) {
      const Float old_j = V::Load(old_max + j);
      const Float new_j = V::Max(V::Load(new_max + j), old_j);
      const Float base_j = V::Max(new_j, V::Set(kMostNegative));  // while nothing is visible: -inf - base is no NaN
      V::Store(new_max + j, new_j);
      V::Store(base + j, base_j);
      V::Store(factor + j, Exp2(V::Sub(old_j, base_j)));
    }
    for (int j = 0; j < J; ++j) {
      const float page_sum = Exponentiate(base[j], tile.p + j * kPageTokens);
      tile.sum[j] = __builtin_fmaf(tile.sum[j], factor[j], page_sum);
      tile.max[j] = new_max[j];
    }
  }

  // acc = acc * factor + p · v for the 32 tokens of a page.
  template <int J>
  static inline void Accumulate(const Query& query, const Element* v, ptrdiff_t prefetch_bytes, const Tile& tile,
                                const float (&factor)[kTileFloats]) {
    for (int dim = 0; dim < query.head_dim; dim += kPanelLanes) {
      Float sum[J][kPanelVectors];
      Multiply<J>(v + dim * kPageTokens, kPageTokens, tile.p, kPageTokens, prefetch_bytes, sum);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) {
        const Float factor_j = V::Set(factor[j]);
#pragma GCC unroll 2
        for (int w = 0; w < kPanelVectors; ++w) {
          float* acc = tile.acc + j * query.head_dim + dim + w * kLanes;
          V::Store(acc, V::Fma(V::Load(acc), factor_j, sum[j][w]));
        }
      }
    }
  }

  // One page against one tile of J row-heads.
  template <int J>
  static void AttendPage(const Query& query, const Element* page_head, ptrdiff_t prefetch_bytes, const Tile& tile) {
    alignas(64) float factor[kTileFloats];
    Scores<J>(query, page_head, prefetch_bytes, tile);
    Softmax<J>(query, tile, factor);
    Accumulate<J>(query, page_head + PageKElements(query.head_dim), prefetch_bytes, tile, factor);
  }

  template <int J = 1>
  static PageFn SelectPageFn(int tile_rows) {
    if constexpr (J < V::kMaxTile) {
      if (tile_rows != J) return SelectPageFn<J + 1>(tile_rows);
    }
    return &AttendPage<J>;
  }

  // Bit t: a row at `position` sees token page_position + t, where tokens up to `end` are stored.
  static uint32_t VisibleTokens(int position, int sliding_window, int page_position, int end) {
    const int last = position < end ? position + 1 : end;
    const int high = Clamp(last - page_position);
    const int low = sliding_window > 0 ? Clamp(position - sliding_window + 1 - page_position) : 0;
    return static_cast<uint32_t>((uint64_t{1} << high) - 1) & ~static_cast<uint32_t>((uint64_t{1} << low) - 1);
  }
  static int Clamp(int slot) { return slot < 0 ? 0 : slot > kPageTokens ? kPageTokens : slot; }

  // q in f32, times what turns q · k into the argument of Exp2 or SoftCap.
  static void ScaleQuery(const AttentionShape& shape, const AttendArgs& args, float* scaled) {
    const float log2_scale = shape.scale * kLog2E;
    const Float factor = V::Set(shape.soft_cap > 0 ? 2 * log2_scale / shape.soft_cap : log2_scale);
    const int row_elements = shape.group * shape.head_dim;
    for (int r = 0; r < args.rows; ++r) {
      const Element* q = reinterpret_cast<const Element*>(args.q + r * args.q_row_stride_bytes);
      for (int i = 0; i < row_elements; i += kLanes) {
        V::Store(scaled + r * row_elements + i, V::Mul(V::LoadRow(q + i), factor));
      }
    }
  }

  // One page against all rows, tile by tile.
  static void AttendRows(const AttentionShape& shape, const AttendArgs& args, const Query& query, int page,
                         ptrdiff_t prefetch_bytes, float* scratch) {
    const int row_heads = args.rows * shape.group;
    const int page_position = args.first_position + page * kPageTokens;
    const int tiles = (row_heads + V::kMaxTile - 1) / V::kMaxTile;
    const Element* page_head = PageHead(shape, args, page);
    for (int i = 0; i < tiles; ++i) {
      const int first = row_heads * i / tiles;
      const int count = row_heads * (i + 1) / tiles - first;
      Tile tile;
      tile.q = scratch + first * shape.head_dim;
      tile.p = scratch + row_heads * shape.head_dim;
      tile.max = args.out.max + first;
      tile.sum = args.out.sum + first;
      tile.acc = args.out.acc + first * shape.head_dim;
      uint32_t any = 0;
      for (int j = 0; j < count; ++j) {
        const int position = args.first_row_position + (first + j) / shape.group;
        tile.visible[j] =
            VisibleTokens(position, shape.sliding_window, page_position, args.first_position + args.tokens);
        any |= tile.visible[j];
      }
      if (any == 0) continue;
      SelectPageFn(count)(query, page_head, prefetch_bytes, tile);
      prefetch_bytes = 0;  // done; the later tiles find the page itself in the cache
    }
  }

  static const Element* PageHead(const AttentionShape& shape, const AttendArgs& args, int page) {
    const std::byte* base = args.layer_base + args.page_ids[page] * args.page_stride_bytes;
    return reinterpret_cast<const Element*>(base) + args.kv_head * PageHeadElements(shape.head_dim);
  }

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const Query query = {shape.head_dim, shape.soft_cap * kLog2E};
    const int row_heads = args.rows * shape.group;
    const int acc_floats = row_heads * shape.head_dim;
    float* scratch = reinterpret_cast<float*>(args.scratch);
    ScaleQuery(shape, args, scratch);
    for (int i = 0; i < row_heads; ++i) {
      args.out.max[i] = -kInfinity;
      args.out.sum[i] = 0;
    }
    for (int i = 0; i < acc_floats; i += kLanes) V::Store(args.out.acc + i, V::Zero());

    // The pages that some row sees: from the first row's window to the last row's own token.
    const int first_seen =
        shape.sliding_window > 0 ? args.first_row_position - shape.sliding_window + 1 - args.first_position : 0;
    const int last_seen = args.first_row_position + args.rows - args.first_position;
    const int end = last_seen < args.tokens ? last_seen : args.tokens;
    for (int page = first_seen > 0 ? first_seen / kPageTokens : 0; page * kPageTokens < end; ++page) {
      const bool more = (page + 1) * kPageTokens < end;
      const ptrdiff_t prefetch_bytes = more ? reinterpret_cast<const char*>(PageHead(shape, args, page + 1)) -
                                                  reinterpret_cast<const char*>(PageHead(shape, args, page))
                                            : 0;
      AttendRows(shape, args, query, page, prefetch_bytes, scratch);
    }
    // A masked token adds p * v = ±0: -0 becomes +0, so that not even a zero's sign tells what else is in the page.
    for (int i = 0; i < acc_floats; i += kLanes) {
      V::Store(args.out.acc + i, V::Add(V::Load(args.out.acc + i), V::Zero()));
    }
  }

  static void Fold(const AttentionShape& shape, const Partial& into, const Partial& from, int n) {
    for (int i = 0; i < n; ++i) {
      if (from.sum[i] == 0) continue;  // empty. By the sum, not the max: a NaN must not be lost
      const Float into_max = V::Set(into.max[i]), from_max = V::Set(from.max[i]);
      const Float max = V::Max(into_max, from_max);
      const Float into_factor = Exp2(V::Sub(into_max, max));
      const Float from_factor = Exp2(V::Sub(from_max, max));
      const Float from_sum = V::Mul(V::Set(from.sum[i]), from_factor);
      into.sum[i] = V::First(V::Fma(V::Set(into.sum[i]), into_factor, from_sum));
      into.max[i] = V::First(max);
      for (int d = 0; d < shape.head_dim; d += kLanes) {
        float* acc = into.acc + i * shape.head_dim + d;
        const Float from_acc = V::Mul(V::Load(from.acc + i * shape.head_dim + d), from_factor);
        V::Store(acc, V::Fma(V::Load(acc), into_factor, from_acc));
      }
    }
  }

  static void Finish(const AttentionShape& shape, const Partial& from, int rows, std::byte* o,
                     size_t o_row_stride_bytes) {
    for (int i = 0; i < rows * shape.group; ++i) {
      Element* out =
          reinterpret_cast<Element*>(o + i / shape.group * o_row_stride_bytes) + i % shape.group * shape.head_dim;
      const Float sum = V::Set(from.sum[i] == 0 ? 1.0f : from.sum[i]);  // empty: acc is 0
      for (int d = 0; d < shape.head_dim; d += kLanes) {
        V::StoreRow(out + d, V::Div(V::Load(from.acc + i * shape.head_dim + d), sum));
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_
