#ifndef FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_
#define FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_

#include <immintrin.h>

#include "kernels/attention.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/appended_page.h"
#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/partial_rows.h"
#include "kernels/cpu/vector_exp.h"

namespace fastdecode {

// Everything here is in an anonymous namespace and calls no inline function of another header, std's included: the
// linker keeps one copy of such a function for the whole program, which might be this one, compiled for an ISA that the
// machine has not.
namespace {

// What some row of a call sees of its block: from the first row's window to the last row's own token.
struct SeenTokens {
  SeenTokens(const AttentionShape& shape, const AttendArgs& args) {
    const int first = args.first_row_position - shape.sliding_window + 1 - args.first_position;
    const int last = args.first_row_position + args.rows - args.first_position;
    first_page = shape.sliding_window > 0 && first > 0 ? first / kPageTokens : 0;
    end = last < args.tokens ? last : args.tokens;
  }
  int first_page, end;
};

// Attention over pages, for one vector type (avx2_vector.h, avx512_vector.h) and one kind of page: Kv (panel_kv.h,
// int8_kv.h, int4_kv.h), which has
//   Probability         as it multiplies V
//   kTakesF32Rows       whether q may come in f32
//   kScalesScores       whether Scores leaves them to be scaled
//   kPRounding          what a Probability loses, relatively
//   kSparseTileMax      tiles of up to so many row-heads prefetch for some lines where pieces lie one behind the other
//   kOverlapTileMin     tiles of so many row-heads and more overlap: see Pipeline
//   HeadBytes, QueryBytes, SetQuery, Weigh<J>
//   Scores<J, kFetch>   is told, as Add is, how many of the page's tokens are seen by some row, but may take them all
//   Prepare<J>          if it has one: what Scores wants of a page and a tile's queries, done some steps before it
//   Add<J, kFetch>      is told whether no tile of the call is larger: AMX's registers have that one's shape
//   kCoarseP            whether CoarseExp2 will do for p
//   Exponentiate        if it has one, in place of either: p, and its sums
//   RestFloats, AddRests  where Weigh adds up what Add leaves out, [row-heads][RestFloats], and what adds it to acc
// The arithmetic of one (row, head) is fixed, only how many share a loaded K or V register differs, so that every
// tiling gives the same bits:
//   score    q · k as Kv computes it; in units of log2
//   base     the largest visible score when the base last changed, which it does where a page has one that is more than
//            kMaxLag above it
//   p        Exp2(score - base) or CoarseExp2, exactly 0 where not visible, as Probability holds it
//   sums     p, each lane's of some of a page's tokens; added at the end
//   acc      p · v as Kv computes it
// Where the base changes, sums, rests and acc are first multiplied by Exp2(old base - new base). A page with no visible
// token changes nothing. Open is the kind of a page that is not closed yet, if that is another one, for the same
// queries; its Pack makes a page of an OpenPage's KV head.
template <class V, class Kv, class Open = Kv>
class Attention {
 public:
  static AttentionKernels Kernels(const char* name, const AttendCost& cost = {}) {
    return {name, &AppendToPage, &Attend, &PartialRows<V>::Fold, &PartialRows<V>::Finish, Kv::kPRounding, cost};
  }

  // Row-heads of the largest tile of so many. The others have one fewer at most, and it is the last one's size.
  static int LargestTile(int row_heads) {
    const int tiles = TileCount(row_heads);
    return (row_heads + tiles - 1) / tiles;
  }

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const int row_heads = args.rows * shape.group;
    const int all = args.heads * row_heads;
    const Query query = {shape.head_dim, QueryScale(shape), shape.soft_cap * kLog2E};
    const Scratch scratch = ScratchAt(args.scratch, shape, all);
    if (shape.type == ElementType::kBf16) {
      SetQueries<Bf16>(shape, args, scratch);
    } else if constexpr (Kv::kTakesF32Rows) {
      SetQueries<float>(shape, args, scratch);
    }
    for (int i = 0; i < all; ++i) args.out.max[i] = kNoBase;
    const int sum_floats = all * (kPanelLanes + Kv::RestFloats(shape.head_dim));
    for (int i = 0; i < sum_floats; i += kLanes) V::Store(scratch.sums + i, V::Zero());
    for (int i = 0; i < all * shape.head_dim; i += kLanes) V::Store(args.out.acc + i, V::Zero());

    const SeenTokens seen(shape, args);
    const int end = seen.end;
    Pipeline<Kv> pipeline(query);
    const auto is_open = [&](int page) { return args.open_pages != nullptr && (page + 1) * kPageTokens >= end; };
    const int pages = (end + kPageTokens - 1) / kPageTokens - seen.first_page;
    AppendAhead<kHasOpenPages> append_ahead(shape, Kv::HeadBytes(shape.head_dim), args.next_append, pages * args.heads);
    for (int page = seen.first_page; page * kPageTokens < end; ++page) {
      const int page_position = args.first_position + page * kPageTokens;
      uint32_t visible[kMaxAttendRows];
      for (int r = 0; r < args.rows; ++r) {
        visible[r] = VisibleTokens(args.first_row_position + r, shape.sliding_window, page_position,
                                   args.first_position + args.tokens);
      }
      const bool more = (page + 1) * kPageTokens < end && !is_open(page + 1);
      const std::byte* const next = more ? FirstHeadAt(shape, args, page + 1) : args.next;
      if (!is_open(page)) {
        AttendHeads(shape, args, scratch, FirstHeadAt(shape, args, page), next, visible, &append_ahead, &pipeline);
      } else if constexpr (kHasOpenPages) {
        pipeline.Finish();
        AttendOpenPage(shape, query, args, scratch, end - page * kPageTokens, next, visible, &append_ahead);
      }
    }
    pipeline.Finish();
    FinishSums(scratch.sums, all, args.out);
    for (int i = 0; i < all; ++i) {
      float* const acc = args.out.acc + i * shape.head_dim;
      Kv::AddRests(shape.head_dim, scratch.rests + i * Kv::RestFloats(shape.head_dim), acc);
      if (args.into.acc == nullptr) MakeZerosPositive(shape.head_dim, acc);  // else folding does
    }
    if (args.o == nullptr) {
      if (args.into.acc != nullptr) PartialRows<V>::Fold(shape, args.into, args.out, all);
    } else if (args.into.acc == nullptr) {
      PartialRows<V>::Finish(shape, args.out, args.heads, args.rows, args.o, args.o_row_stride_bytes);
    } else {
      PartialRows<V>::template FinishSome<true>(shape, args.into, args.out, args.rows, 0, all, args.o,
                                                args.o_row_stride_bytes);
    }
  }

 protected:
  using Float = typename V::Float;
  using Probability = typename Kv::Probability;
  static constexpr bool kHasOpenPages = !__is_same(Open, Kv);
  static constexpr int kLanes = V::kLanes;
  static constexpr int kPanelVectors = kPanelLanes / kLanes;
  static constexpr int kPageVectors = kPageTokens / kLanes;
  static constexpr float kInfinity = __builtin_inff();
  static constexpr float kNoBase = -__FLT_MAX__;  // while nothing is visible: -inf - base is no NaN
  static constexpr float kLog2E = 1.44269504088896341f;

  // What is the same for all pages and tiles of a call.
  struct Query {
    int head_dim;
    float scale;     // of a score, if Kv leaves it to us
    float cap_log2;  // soft_cap * log2(e), 0: none
  };

  // One page's KV head against up to kMaxTile consecutive row-heads: J of them, chosen by the functions that take it.
  struct Tile {
    const std::byte* page_head;
    Ahead ahead;                    // what is wanted in the caches for later
    bool largest;                   // none of the call's has more row-heads
    int seen;                       // tokens of the page up to the last one that a row sees: others may be left out
    const std::byte* q;             // [J], QueryBytes each
    float* scores;                  // [J][32]
    Probability* p;                 // [J][32]
    float* base;                    // [J]
    float* sums;                    // [J][16]
    float* rests;                   // [J][RestFloats]
    float* acc;                     // [J][head_dim]
    uint32_t visible[V::kMaxTile];  // [J], bit t: the row sees token t of the page
  };

  // What is done with a tile, in this order.
  template <class Page>
  struct Steps {
    void (*prepare)(const Query& query, const Tile& tile, typename Page::Prepared* prepared);
    void (*score)(const Query& query, const Tile& tile, const typename Page::Prepared& prepared);
    void (*weigh)(const Query& query, Tile* tile, typename Page::Weights* weights);
    void (*add)(const Query& query, const Tile& tile, const typename Page::Weights& weights);
    bool overlaps;
  };

  // A thread's AttendScratchBytes.
  struct Scratch {
    std::byte* q;       // [heads][row_heads], QueryBytes each
    std::byte* open_q;  // behind them, the same for open pages, if there are any
    float* sums;        // [heads][row_heads][16]
    float* rests;       // [heads][row_heads][RestFloats], behind them
    float* scores;      // [kMaxTile][32]
    Probability* p;     // [kMaxTile][32]
    std::byte* open;    // what Open::Pack makes of a KV head of an open page, if there are any
  };

  // cap * tanh(z / cap) * log2(e), where x = 2 * log2(e) * z / cap.
  static Float SoftCap(Float x, Float cap_log2) {
    const Float e = Exp2<V>(V::Min(V::Set(126.0f), x));  // the second where one is NaN
    const Float tanh = V::Sub(V::Set(1.0f), V::Div(V::Set(2.0f), V::Add(e, V::Set(1.0f))));
    return V::Mul(tanh, cap_log2);
  }

  // The scores of one row-head, scaled, capped and masked; returns their largest, lane by lane.
  static inline Float FinishScores(const Query& query, uint32_t visible, const float* scores,
                                   Float (&score)[kPageVectors]) {
    Float top;
#pragma GCC unroll 4
    for (int w = 0; w < kPageVectors; ++w) {
      score[w] = V::Load(scores + w * kLanes);
      if constexpr (Kv::kScalesScores) score[w] = V::Mul(score[w], V::Set(query.scale));
      if (query.cap_log2 > 0) score[w] = SoftCap(score[w], V::Set(query.cap_log2));
      if (__builtin_expect(visible != ~uint32_t{0}, 0)) {
        score[w] = V::Select(visible >> (w * kLanes), score[w], V::Set(-kInfinity));
      }
      top = w == 0 ? score[0] : V::Max(top, score[w]);
    }
    return top;
  }

  // p = Exp2(score - base) of one row-head, and its sums.
  static inline void Exponentiate(float base, Float (&score)[kPageVectors], Probability* p, float* sums) {
#pragma GCC unroll 4
    for (int w = 0; w < kPageVectors; ++w) score[w] = V::Sub(score[w], V::Set(base));
    if constexpr (requires { Kv::Exponentiate(score, p, sums); }) {
      Kv::Exponentiate(score, p, sums);
    } else {
#pragma GCC unroll 4
      for (int w = 0; w < kPageVectors; ++w) {
        score[w] = Kv::kCoarseP ? CoarseExp2<V>(score[w]) : Exp2<V>(score[w]);
        V::Store(p + w * kLanes, score[w]);
      }
#pragma GCC unroll 2
      for (int w = 0; w < kPanelVectors; ++w) {
        float* const at = sums + w * kLanes;
        V::Store(at, V::Add(V::Load(at), V::Add(score[w], score[w + kPanelVectors])));
      }
    }
  }

  static void ScaleRow(float factor, int count, float* row) {
    for (int i = 0; i < count; i += kLanes) V::Store(row + i, V::Mul(V::Load(row + i), V::Set(factor)));
  }

  // One row-head's scores of a page to probabilities; updates its base and sums. Returns the factor, of acc.
  static inline float WeighRow(const Query& query, uint32_t visible, const float* scores, Probability* p, float* base,
                               float* sums) {
    Float score[kPageVectors];
    const Float top = FinishScores(query, visible, scores, score);
    float factor = 1;
    if (__builtin_expect(V::AnyGreater(top, V::Set(*base + kMaxLag)), 0)) {
      const float new_base = V::MaxLanes(top);
      if (*base != kNoBase) {  // else there is nothing yet
        factor = V::First(Exp2<V>(V::Set(*base - new_base)));
        ScaleRow(factor, kPanelLanes, sums);
      }
      *base = new_base;
    }
    Exponentiate(*base, score, p, sums);
    return factor;
  }

  template <class Page, int J>
  static void Prepare(const Query& query, const Tile& tile, typename Page::Prepared* prepared) {
    if constexpr (requires { Page::template Prepare<J>(0, nullptr, nullptr, prepared); }) {
      Page::template Prepare<J>(query.head_dim, tile.page_head, tile.q, prepared);
    }
  }
  template <class Page, int J, Fetch kFetch>
  static void Score(const Query& query, const Tile& tile, const typename Page::Prepared& prepared) {
    Page::template Scores<J, kFetch>(query.head_dim, tile.page_head, tile.ahead, tile.q, tile.seen, prepared,
                                     tile.scores);
  }
  template <class Page, int J>
  static void Weigh(const Query& query, Tile* tile, typename Page::Weights* weights) {
    for (int j = 0; j < J; ++j) {
      const float factor = WeighRow(query, tile->visible[j], tile->scores + j * kPageTokens, tile->p + j * kPageTokens,
                                    tile->base + j, tile->sums + j * kPanelLanes);
      if (__builtin_expect(factor != 1, 0)) {
        ScaleRow(factor, query.head_dim, tile->acc + j * query.head_dim);
        ScaleRow(factor, Kv::RestFloats(query.head_dim), tile->rests + j * Kv::RestFloats(query.head_dim));
      }
    }
    Page::template Weigh<J>(query.head_dim, tile->page_head, tile->p, weights, tile->rests);
  }
  template <class Page, int J, Fetch kFetch>
  static void Add(const Query& query, const Tile& tile, const typename Page::Weights& weights) {
    Page::template Add<J, kFetch>(query.head_dim, tile.page_head, tile.ahead, tile.p, tile.seen, weights, tile.largest,
                                  tile.acc);
  }

  // Some lines are enough for pieces that lie one behind the other, where the CPU's own prefetcher runs ahead, and for
  // kernels that take little time for a line (decision 19). Tiles that share a page are half full at least.
  template <class Page, int J = 1>
  static const Steps<Page>& StepsFor(int tile_rows, Fetch fetch) {
    if constexpr (J < V::kMaxTile) {
      if (tile_rows != J) return StepsFor<Page, J + 1>(tile_rows, fetch);
    }
    if constexpr (J <= Page::kSparseTileMax) {
      if (fetch == Fetch::kSomeLines) return kSteps<Page, J, Fetch::kSomeLines>;
    }
    if constexpr (J >= V::kMaxTile / 2) {
      if (fetch == Fetch::kNoLine) return kSteps<Page, J, Fetch::kNoLine>;
    }
    return kSteps<Page, J, Fetch::kEveryLine>;
  }
  template <class Page, int J, Fetch kFetch>
  static constexpr Steps<Page> kSteps = {&Prepare<Page, J>, &Score<Page, J, kFetch>, &Weigh<Page, J>,
                                         &Add<Page, J, kFetch>, J >= Page::kOverlapTileMin};

  // Takes tiles one after the other. Weighing and preparing are chains of operations that wait for each other, which a
  // CPU fills with others if those are next: a tile is prepared between the weighing of the one before and its adding.
  // Those that overlap are scored there, too: tiles with much arithmetic, because memory is no longer read in ascending
  // order. No bit depends on it.
  template <class Page>
  class Pipeline {
   public:
    explicit Pipeline(const Query& query) : query_(query) {}

    // The next tile is to be filled in here.
    Tile* tile() { return &tiles_[now_]; }
    void Push(const Steps<Page>& steps) {
      const Tile& tile = tiles_[now_];
      if (waiting_ != nullptr && waiting_->overlaps) Weigh();
      steps.prepare(query_, tile, &prepared_);
      if (!steps.overlaps) Add();
      steps.score(query_, tile, prepared_);
      Add();
      waiting_ = &steps;
      now_ = 1 - now_;
      if (!steps.overlaps) Weigh();
    }
    void Finish() {
      if (waiting_ != nullptr && waiting_->overlaps) Weigh();
      Add();
    }

   private:
    // The one that waits.
    void Weigh() { waiting_->weigh(query_, &tiles_[1 - now_], &weights_); }
    void Add() {
      if (waiting_ != nullptr) waiting_->add(query_, tiles_[1 - now_], weights_);
      waiting_ = nullptr;
    }

    const Query& query_;
    const Steps<Page>* waiting_ = nullptr;  // of tiles_[1 - now_], which is scored, and if it does not overlap, weighed
    int now_ = 0;
    Tile tiles_[2];
    typename Page::Prepared prepared_;
    typename Page::Weights weights_;
  };

  // Bit t: a row at `position` sees token page_position + t, where tokens up to `end` are stored.
  static uint32_t VisibleTokens(int position, int sliding_window, int page_position, int end) {
    const int last = position < end ? position + 1 : end;
    const int high = Clamp(last - page_position);
    const int low = sliding_window > 0 ? Clamp(position - sliding_window + 1 - page_position) : 0;
    return static_cast<uint32_t>((uint64_t{1} << high) - 1) & ~static_cast<uint32_t>((uint64_t{1} << low) - 1);
  }
  static int TileCount(int row_heads) { return (row_heads + V::kMaxTile - 1) / V::kMaxTile; }
  static int Clamp(int slot) { return slot < 0 ? 0 : slot > kPageTokens ? kPageTokens : slot; }

  static Scratch ScratchAt(std::byte* at, const AttentionShape& shape, int all_row_heads) {
    Scratch scratch;
    scratch.scores = reinterpret_cast<float*>(at);
    scratch.p = reinterpret_cast<Probability*>(scratch.scores + kMaxTileRows * kPageTokens);
    scratch.sums = scratch.scores + 2 * kMaxTileRows * kPageTokens;
    scratch.rests = scratch.sums + all_row_heads * kPanelLanes;
    scratch.q = reinterpret_cast<std::byte*>(scratch.rests + all_row_heads * Kv::RestFloats(shape.head_dim));
    scratch.open_q = scratch.q + all_row_heads * Kv::QueryBytes(shape.head_dim);
    scratch.open = at + AttendScratchBytes(shape) - kOpenPieces * OpenPieceBytes(shape);
    return scratch;
  }

  static float QueryScale(const AttentionShape& shape) {
    return shape.soft_cap > 0 ? 2 * shape.scale * kLog2E / shape.soft_cap : shape.scale * kLog2E;
  }

  // q as Kv and Open want it, KV head by KV head.
  template <typename Row>
  static void SetQueries(const AttentionShape& shape, const AttendArgs& args, const Scratch& scratch) {
    if (!args.same_queries) SetQueries<Row>(shape, args, scratch.q);
    if constexpr (kHasOpenPages) {
      if (args.open_pages != nullptr) SetQueries<Row, Open>(shape, args, scratch.open_q);
    }
  }
  template <typename Row, class Page = Kv>
  static void SetQueries(const AttentionShape& shape, const AttendArgs& args, std::byte* q) {
    constexpr ptrdiff_t kRowBytes = sizeof(Row);
    const int head_elements = shape.group * shape.head_dim;
    constexpr int kAhead = 2;  // rows lie far apart, where a CPU's own prefetcher does not follow
    for (int head = 0; head < args.heads; ++head) {
      for (int r = 0; r < args.rows; ++r) {
        const std::byte* const row = args.q + r * args.q_row_stride_bytes + head * head_elements * kRowBytes;
        if (r + kAhead < args.rows) {
          for (ptrdiff_t i = 0; i < head_elements * kRowBytes; i += 64) {
            PrefetchIntoL1(row + kAhead * args.q_row_stride_bytes + i);
          }
        }
        const Row* from = reinterpret_cast<const Row*>(row);
        for (int g = 0; g < shape.group; ++g, from += shape.head_dim, q += Page::QueryBytes(shape.head_dim)) {
          Page::SetQuery(from, shape.head_dim, QueryScale(shape), q);
        }
      }
    }
  }

  // One page of one KV head against all rows, tile by tile; `first` is the head's first row-head.
  template <class Page>
  static void AttendRows(const AttentionShape& shape, const AttendArgs& args, const Scratch& scratch,
                         const std::byte* page_head, Ahead ahead, bool adjacent, const uint32_t* visible, int first,
                         Pipeline<Page>* pipeline) {
    const int row_heads = args.rows * shape.group;
    const int tiles = TileCount(row_heads);
    int row = 0, of_row = 0;  // the row-head that the tile begins with
    for (int i = 0, begin = 0; i < tiles; ++i) {
      const int end = row_heads * (i + 1) / tiles;
      const int count = end - begin;
      Tile& tile = *pipeline->tile();
      tile.page_head = page_head;
      tile.ahead = ahead;
      tile.largest = count == LargestTile(row_heads);
      std::byte* const q = __is_same(Page, Kv) ? scratch.q : scratch.open_q;
      tile.q = q + (first + begin) * Page::QueryBytes(shape.head_dim);
      tile.scores = scratch.scores;
      tile.p = scratch.p;
      tile.base = args.out.max + first + begin;
      tile.sums = scratch.sums + (first + begin) * kPanelLanes;
      tile.rests = scratch.rests + (first + begin) * Kv::RestFloats(shape.head_dim);
      tile.acc = args.out.acc + (first + begin) * shape.head_dim;
      uint32_t any = 0;
      for (int j = 0; j < end - begin; ++j) {
        any |= tile.visible[j] = visible[row];
        if (++of_row == shape.group) of_row = 0, ++row;
      }
      begin = end;
      if (any == 0) continue;
      tile.seen = kPageTokens - __builtin_clz(any);
      const Fetch fetch = adjacent ? Fetch::kSomeLines : Fetch::kEveryLine;
      pipeline->Push(StepsFor<Page>(count, ahead.any() ? fetch : Fetch::kNoLine));
      ahead = {};  // done; the later tiles find the page itself in the cache
    }
  }

  // One page against all of the call's KV heads, the first of which lies at `at`; `next` is read afterwards.
  static void AttendHeads(const AttentionShape& shape, const AttendArgs& args, const Scratch& scratch,
                          const std::byte* at, const std::byte* next, const uint32_t* visible,
                          AppendAhead<kHasOpenPages>* append_ahead, Pipeline<Kv>* pipeline) {
    const ptrdiff_t head_bytes = Kv::HeadBytes(shape.head_dim);
    const std::byte* const end = at + args.heads * head_bytes;
    const ptrdiff_t bytes = end - at, wanted = Kv::Prefetch::kBytes != 0 ? Kv::Prefetch::kBytes : head_bytes;
    const Ahead ahead = {end, (next != nullptr ? next : at) - end, wanted < bytes ? wanted : bytes};
    for (int head = 0; head < args.heads; ++head, at += head_bytes) {
      append_ahead->Step();
      const bool adjacent = next == end || at + head_bytes + ahead.bytes <= end;  // what is prefetched meanwhile
      AttendRows<Kv>(shape, args, scratch, at, ahead, adjacent, visible, head * args.rows * shape.group, pipeline);
    }
  }

  // The open page, of so many tokens, against them: each head is packed first, as far as it has tokens.
  static void AttendOpenPage(const AttentionShape& shape, const Query& query, const AttendArgs& args,
                             const Scratch& scratch, int tokens, const std::byte* next, const uint32_t* visible,
                             AppendAhead<kHasOpenPages>* append_ahead) {
    Pipeline<Open> pipeline(query);
    for (int head = 0; head < args.heads; ++head) {
      append_ahead->Step();
      Open::Pack(shape.head_dim, tokens < kPageTokens ? tokens : kPageTokens, *args.open_pages, args.first_head + head,
                 scratch.open);
      const bool last = head + 1 == args.heads;
      const Ahead ahead = last && next != nullptr ? Ahead{scratch.open, next - scratch.open, 0} : Ahead{};
      AttendRows<Open>(shape, args, scratch, scratch.open, ahead, false, visible, head * args.rows * shape.group,
                       &pipeline);
      pipeline.Finish();
    }
  }

  // The first of the call's KV heads in a page.
  static const std::byte* FirstHeadAt(const AttentionShape& shape, const AttendArgs& args, int page) {
    return args.layer_base + args.page_ids[page] * args.page_stride_bytes +
           args.first_head * Kv::HeadBytes(shape.head_dim);
  }

  // A masked token adds p * v = ±0: -0 becomes +0, so that not even a zero's sign tells what else is in the page.
  static void MakeZerosPositive(int count, float* acc) {
    for (int i = 0; i < count; i += kLanes) V::Store(acc + i, V::Add(V::Load(acc + i), V::Zero()));
  }
  static void FinishSums(const float* sums, int n, const Partial& out) {
    const auto sum_of = [&](int i) {
      const Float sum = V::Load(sums + i * kPanelLanes);
      return kPanelVectors == 2 ? V::Add(sum, V::Load(sums + i * kPanelLanes + kLanes)) : sum;
    };
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Float each[kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) each[j] = sum_of(i + j);
      V::Store(out.sum + i, V::SumEach(each));
    }
    for (; i < n; ++i) out.sum[i] = V::SumLanes(sum_of(i));
    for (i = 0; i < n; ++i) {
      if (out.max[i] == kNoBase) out.max[i] = -kInfinity;
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_TEMPLATE_H_
