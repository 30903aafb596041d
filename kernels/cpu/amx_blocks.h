#ifndef FASTDECODE_KERNELS_CPU_AMX_BLOCKS_H_
#define FASTDECODE_KERNELS_CPU_AMX_BLOCKS_H_

#include <immintrin.h>

#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/partial_rows.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What the thread attends to after a call, a few lines at a time into the second-level cache: pages of one KV head,
// then rows of q; of two of them in turn, so that the CPU's own prefetcher, which follows both, is not overtaken.
class Upcoming {
 public:
  // The pages of AttendArgs::next: lines of a KV head, and bytes from one page to the next.
  struct Pages {
    int head_lines;
    size_t stride_bytes;
  };

  // In so many calls of Bring, each of which brings lines of two pieces: all of it, if there are as many as pairs.
  Upcoming(const AttendArgs& args, const Pages& pages, int q_lines, int calls)
      : args_(args),
        head_lines_(pages.head_lines),
        q_lines_(q_lines),
        page_stride_(static_cast<ptrdiff_t>(pages.stride_bytes)) {
    const int page_pairs = (args.next_pages + 1) / 2, row_pairs = (args.next_rows + 1) / 2;
    const int lines = page_pairs * head_lines_ + row_pairs * q_lines;
    const int whole_calls = calls - page_pairs - row_pairs;  // but for each pair's last one
    lines_a_call_ = whole_calls * head_lines_ > lines ? (lines + whole_calls - 1) / whole_calls : head_lines_;
    NextPieces();
  }

  [[gnu::always_inline]] void Bring() {
    if (lines_left_ == 0) return;
    const int lines = lines_left_ < lines_a_call_ ? lines_left_ : lines_a_call_;
    for (int i = 0; i < lines; ++i) {
      PrefetchIntoL2(at_ + i * kTileRowBytes);
      PrefetchIntoL2(at_ + to_second_ + i * kTileRowBytes);
    }
    at_ += lines * kTileRowBytes;
    if ((lines_left_ -= lines) == 0) NextPieces();
  }

 private:
  void NextPieces() {
    if (page_ < args_.next_pages) {
      const int second = page_ + 1 < args_.next_pages ? page_ + 1 : page_;
      at_ = PageAt(page_);
      to_second_ = PageAt(second) - at_;
      lines_left_ = head_lines_;
      page_ += 2;
    } else if (row_ < args_.next_rows) {
      at_ = args_.next_q + row_ * args_.q_row_stride_bytes;
      to_second_ = row_ + 1 < args_.next_rows ? static_cast<ptrdiff_t>(args_.q_row_stride_bytes) : 0;
      lines_left_ = q_lines_;
      row_ += 2;
    }
  }
  const std::byte* PageAt(int page) const {
    const ptrdiff_t from_first = ptrdiff_t{args_.next_page_ids[page]} - args_.next_page_ids[0];
    return args_.next + from_first * page_stride_;
  }

  const AttendArgs& args_;
  const int head_lines_, q_lines_;
  const ptrdiff_t page_stride_;
  int lines_a_call_;
  const std::byte* at_ = nullptr;
  ptrdiff_t to_second_ = 0;  // the same piece, if there is no other one
  int lines_left_ = 0;       // of each of the two
  int page_ = 0, row_ = 0;
};

// Attention over a block of bf16 for many row-heads of one KV head: chunks of prompts, and prefixes that sequences
// share. The bits are those of Attention<V, TileBf16Kv<V>>. What differs is the order, since here arithmetic counts and
// not memory. Row-heads are taken by 32, two left tiles, so that each panel of K and V that is loaded is multiplied
// twice. They go through the block's pages twice:
//   score, weigh   page by page a chain of products for each panel of K; woven with them, row by row, the softmax of
//                  the page kLag before
//   add            panel by panel of V a chain of products over all pages: acc stays in tiles
// The sums of a chain are stored when the next one has begun: a store that waits for them keeps all tile instructions
// behind it waiting. K and V are loaded past the first-level cache (tileloaddt1), which holds queries, scores and p.
//
// Lives for up to 32 row-heads of one call, on its thread; its arrays are the thread's scratch. kSteps is the number of
// steps of a panel of K, a 32nd of the head size; kTiles that of left tiles.
template <class V, int kSteps, int kTiles>
class TileBlock : Attention<V, TileBf16Kv<V>> {
  using Kv = TileBf16Kv<V>;
  using Base = Attention<V, Kv>;
  using typename Base::Query;
  static constexpr int kHeadDim = 32 * kSteps;
  static constexpr int kRows = kTiles * kAmxRows;
  static constexpr int kLag = 2;  // a page's last sums are stored while the next one is scored
  static constexpr int kScoreSteps = kPageKPanels * kSteps;
  static constexpr int kAddDims = 2 * kPanelLanes;
  static constexpr ptrdiff_t kQueryBytes = kHeadDim * sizeof(Bf16);
  static constexpr ptrdiff_t kPanelStepBytes = kAmxRows * kTileRowBytes;

 public:
  static constexpr int kBringsOfAPage = kScoreSteps + kHeadDim / kAddDims;

  // Of all the call's row-heads, to where passes find their own, and zeros for those that a pass has beyond the last
  // one.
  static void SetQueries(const AttentionShape& shape, const AttendArgs& args) {
    const int bytes = args.rows * shape.group * static_cast<int>(kQueryBytes);
    Base::template SetQueries<Bf16>(shape, args, args.scratch);
    __builtin_memset(args.scratch + bytes, 0,
                     static_cast<size_t>(TileBlockQueryBytes(args.rows * shape.group, kHeadDim) - bytes));
  }
  // Row-heads [first, end) of the call, as many as it takes. REQUIRES: one KV head, whose queries are set; tiles are of
  // 16 rows of 64 bytes.
  static void Attend(const AttentionShape& shape, const AttendArgs& args, int first, int end, Upcoming* upcoming) {
    TileBlock(shape, args, first, end, upcoming).Run();
  }

 private:
  struct Scratch {
    union {  // together with p they are to stay in the first-level cache
      alignas(64) float scores[kLag + 1][kRows][kPageTokens];
      alignas(64) float acc[kRows][kHeadDim];  // once everything is weighed
    };
    alignas(64) Bf16 p[kBlockPages][kRows][kPageTokens];
    alignas(64) float sums[kRows][kPanelLanes];
    float base[kRows];
    float sum[kRows];
  };
  static_assert(sizeof(Scratch) <= static_cast<size_t>(TileBlockScratchBytes(kHeadDim)));

  TileBlock(const AttentionShape& shape, const AttendArgs& args, int first, int end, Upcoming* upcoming)
      : shape_(shape),
        args_(args),
        query_{kHeadDim, Base::QueryScale(shape), shape.soft_cap * Base::kLog2E},
        first_(first),
        rows_(end - first < kRows ? end - first : kRows),
        upcoming_(*upcoming),
        q_(reinterpret_cast<Bf16*>(args.scratch) + first_ * kHeadDim),
        scratch_(*reinterpret_cast<Scratch*>(args.scratch + TileBlockQueryBytes(args.rows * shape.group, kHeadDim))),
        acc_(rows_ == kRows && args.into.acc == nullptr && args.o == nullptr ? args.out.acc + first_ * kHeadDim
                                                                             : scratch_.acc[0]) {}

  void Run() {
    for (int row = 0; row < kRows; ++row) {
      scratch_.base[row] = Base::kNoBase;
      V::Store(scratch_.sums[row], V::Zero());
    }
    FindPages();
    for (int page = 0; page < page_count_; ++page) ScoreAndWeigh(page);
    StoreLater<kOddSum>(0, 1);
    int added = WeighAndAddLast();
    for (int last; added < page_count_; added = last) {
      last = added + 1;
      while (last < page_count_ && (rescaled_ >> last & 1) == 0) ++last;
      AddPages(added, last);
    }
    Finish();
  }

  // Those that some of the rows see: from the first row's window to the last row's own token.
  void FindPages() {
    const int first_row = args_.first_row_position + first_ / shape_.group;
    const int last_row = args_.first_row_position + (first_ + rows_ - 1) / shape_.group;
    const int stored = args_.first_position + args_.tokens;
    const int seen_end = last_row < stored ? last_row + 1 : stored;  // some row sees the tokens before it
    const int window = shape_.sliding_window;
    int page = window > 0 && first_row - window >= args_.first_position
                   ? (first_row - window + 1 - args_.first_position) / kPageTokens
                   : 0;
    for (; args_.first_position + page * kPageTokens < seen_end; ++page) {
      const int position = args_.first_position + page * kPageTokens, end = position + kPageTokens;
      const bool all_see_all = end <= stored && end <= first_row + 1 && (window == 0 || position > last_row - window);
      if (!all_see_all) masked_ |= uint32_t{1} << page_count_;
      positions_[page_count_] = position;
      pages_[page_count_++] = Base::FirstHeadAt(shape_, args_, page);
    }
  }

  // ---- First time through the pages.

  void ScoreAndWeigh(int page) {
    const int weighed = page - kLag;
    int row = 0;
    const auto weigh_two = [&](int steps) __attribute__((always_inline)) {
      for (; row < kRows / 2 * steps / kScoreSteps * 2; row += 2) WeighTwoRows(weighed, row);
    };
    const auto weigh_first = [&](int steps) __attribute__((always_inline)) {
      for (; row < kRows * steps / kScoreSteps; ++row) WeighRow<true, false>(0, row);
    };
    if (weighed > 0 && !NeedsCare(weighed)) {
      ScorePage(page, weigh_two);
    } else if (weighed == 0 && !NeedsCare(0)) {
      ScorePage(page, weigh_first);
    } else {
      ScorePage(page, [](int) {});
      if (weighed >= 0) Weigh(weighed);
    }
  }

  // `meanwhile` is called after each of kScoreSteps steps, with their number.
  template <class Meanwhile>
  [[gnu::always_inline]] void ScorePage(int page, const Meanwhile& meanwhile) {
    float* const scores = scratch_.scores[page % (kLag + 1)][0];
    ScorePanel<kEvenSum>(pages_[page], scores, 0, meanwhile);
    ScorePanel<kOddSum>(pages_[page] + kSteps * kPanelStepBytes, scores + kPanelLanes, kSteps, meanwhile);
  }

  template <int kSum, class Meanwhile>
  [[gnu::always_inline]] void ScorePanel(const std::byte* panel, float* scores, int steps_before,
                                         const Meanwhile& meanwhile) {
    ZeroSums<kSum>();
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      const Bf16* const q = q_ + step * kTileRowBytes / ptrdiff_t{sizeof(Bf16)};
      StreamTile<kRight>(panel + step * kPanelStepBytes, kTileRowBytes);
      LoadTile<kLeft>(q, kQueryBytes);
      if constexpr (kTiles > 1) LoadTile<kSecondLeft>(q + kAmxRows * kHeadDim, kQueryBytes);
      MultiplyBoth<kSum, kRight>();
      StoreLater<kEvenSum + kOddSum - kSum>(step, kSteps);
      upcoming_.Bring();
      meanwhile(steps_before + step + 1);
    }
    later_ = scores;
  }

  // Whether its softmax is more than what is woven: it hides tokens or caps scores.
  bool NeedsCare(int page) const { return (masked_ >> page & 1) != 0 || query_.cap_log2 > 0; }

  void Weigh(int page) {
    const bool masked = (masked_ >> page & 1) != 0;
    for (int row = 0; row < kRows; ++row) {
      if (query_.cap_log2 > 0) {
        WeighAnyRow(page, row);
      } else if (page == 0) {
        masked ? WeighRow<true, true>(page, row) : WeighRow<true, false>(page, row);
      } else {
        masked ? WeighRow<false, true>(page, row) : WeighRow<false, false>(page, row);
      }
    }
  }

  // One row's scores of a page to p; kFirst: it has no base yet.
  template <bool kFirst, bool kMasked>
  [[gnu::always_inline]] void WeighRow(int page, int row) {
    const float* const scores = scratch_.scores[page % (kLag + 1)][row];
    __m512 score[2];
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) {
      score[w] = V::Mul(V::Load(scores + w * kPanelLanes), V::Set(query_.scale));
      if constexpr (kMasked) {
        score[w] = V::Select(Visible(page, row) >> (w * kPanelLanes), score[w], V::Set(-Base::kInfinity));
      }
    }
    float& base = scratch_.base[row];
    const __m512 top = V::Max(score[0], score[1]);
    if (V::AnyGreater(top, V::Set(base + kMaxLag))) {
      if (!kFirst) return WeighAnyRow(page, row);
      base = V::MaxLanes(top);
    }
    Base::Exponentiate(base, score, scratch_.p[page][row], scratch_.sums[row]);
  }

  // Two rows that have a base and see all: whether it changes is seen by what comes out.
  [[gnu::always_inline]] void WeighTwoRows(int page, int row) {
    const float* const scores = scratch_.scores[page % (kLag + 1)][row];
    __m512 p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 score = V::Mul(V::Load(scores + i * kPanelLanes), V::Set(query_.scale));
      p[i] = Kv::PowerOf2(V::Sub(score, V::Set(scratch_.base[row + i / 2])));
    }
    const __m512 first = V::Add(p[0], p[1]), second = V::Add(p[2], p[3]);
    constexpr float kLargest = 1 << static_cast<int>(kMaxLag);
    if (__builtin_expect(_mm512_cmp_ps_mask(V::Add(first, second), V::Set(kLargest), _CMP_NLT_UQ) != 0, 0)) {
      WeighAnyRow(page, row);
      WeighAnyRow(page, row + 1);
      return;
    }
    Kv::StoreP(p[0], p[1], scratch_.p[page][row]);
    Kv::StoreP(p[2], p[3], scratch_.p[page][row + 1]);
    V::Store(scratch_.sums[row], V::Add(V::Load(scratch_.sums[row]), first));
    V::Store(scratch_.sums[row + 1], V::Add(V::Load(scratch_.sums[row + 1]), second));
  }

  [[gnu::noinline]] void WeighAnyRow(int page, int row) {
    const float factor = Base::WeighRow(query_, Visible(page, row), scratch_.scores[page % (kLag + 1)][row],
                                        scratch_.p[page][row], &scratch_.base[row], scratch_.sums[row]);
    if (factor == 1) return;
    if ((rescaled_ >> page & 1) == 0) {
      for (float& f : factors_[page]) f = 1;
      rescaled_ |= uint32_t{1} << page;
    }
    factors_[page][row] = factor;
  }

  // Rows that are not there see what the first one does.
  uint32_t Visible(int page, int row) const {
    const int position = args_.first_row_position + (first_ + (row < rows_ ? row : 0)) / shape_.group;
    return Base::VisibleTokens(position, shape_.sliding_window, positions_[page], args_.first_position + args_.tokens);
  }

  // ---- Second time.

  // Weighs the last pages, which nothing is scored behind: woven with the products for the first panel of V, which need
  // them last. If that finds a row to rescale, nothing was added. Returns the pages whose V is added.
  int WeighAndAddLast() {
    const int first = page_count_ < kLag ? 0 : page_count_ - kLag;
    bool woven = first >= kLag && rescaled_ == 0;
    for (int page = first; page < page_count_; ++page) woven = woven && !NeedsCare(page);
    if (!woven) {
      for (int page = first; page < page_count_; ++page) Weigh(page);
      return 0;
    }
    const int pairs_a_page = (kLag * kRows / 2 + first - 1) / first;
    int row = 0;
    const auto weigh_last = [&](int) __attribute__((always_inline)) {
      for (int i = 0; i < pairs_a_page && row < kLag * kRows; ++i, row += 2) {
        WeighTwoRows(first + row / kRows, row % kRows);
      }
    };
    AddPanels(0, page_count_, 0, weigh_last);
    if (rescaled_ != 0) return 0;
    for (int dim = kAddDims; dim < kHeadDim; dim += kAddDims) AddPanels(0, page_count_, dim, [](int) {});
    return page_count_;
  }

  // Of the pages [first, last), before the first of which rows are rescaled.
  void AddPages(int first, int last) {
    if (first > 0) {
      for (int row = 0; row < kRows; ++row) Base::ScaleRow(factors_[first][row], kHeadDim, acc_ + row * kHeadDim);
    }
    for (int dim = 0; dim < kHeadDim; dim += kAddDims) AddPanels(first, last, dim, [](int) {});
  }

  // Two panels of V; `meanwhile` is called after each page.
  template <class Meanwhile>
  [[gnu::always_inline]] void AddPanels(int first, int last, int dim, const Meanwhile& meanwhile) {
    float* const acc = acc_ + dim;
    if (first == 0) {
      ZeroSums<kEvenSum>();
      ZeroSums<kOddSum>();
    } else {
      LoadSums<kEvenSum>(acc);
      LoadSums<kOddSum>(acc + kPanelLanes);
    }
    const ptrdiff_t panel = (PageKElements(kHeadDim) + dim * kPageTokens) * ptrdiff_t{sizeof(Bf16)};
#pragma GCC unroll 2
    for (int page = first; page < last; ++page) {
      const Bf16* const p = scratch_.p[page][0];
      StreamTile<kRight>(pages_[page] + panel, kTileRowBytes);
      StreamTile<kOddRight>(pages_[page] + panel + kPanelStepBytes, kTileRowBytes);
      LoadTile<kLeft>(p, sizeof(scratch_.p[page][0]));
      if constexpr (kTiles > 1) LoadTile<kSecondLeft>(p + kAmxRows * kPageTokens, sizeof(scratch_.p[page][0]));
      MultiplyBoth<kEvenSum, kRight>();
      MultiplyBoth<kOddSum, kOddRight>();
      upcoming_.Bring();
      meanwhile(page);
    }
    if (args_.into.acc == nullptr) AddZero();
    StoreSums<kEvenSum>(acc);
    StoreSums<kOddSum>(acc + kPanelLanes);
  }

  // A masked token adds p * v = ±0: -0 becomes +0, so that not even a zero's sign tells what else is in the page. Fold
  // does the same.
  static void AddZero() {
    ZeroTile<kLeft>();
    ZeroTile<kSecondLeft>();
    ZeroTile<kRight>();
    MultiplyBoth<kEvenSum, kRight>();
    MultiplyBoth<kOddSum, kRight>();
  }

  void Finish() {
    if (page_count_ == 0) __builtin_memset(acc_, 0, sizeof(scratch_.acc));
    Base::FinishSums(scratch_.sums[0], rows_, Partial{scratch_.base, scratch_.sum, nullptr});
    const Partial here = {scratch_.base, scratch_.sum, acc_};
    if (args_.into.acc != nullptr) {
      if (args_.o == nullptr) return PartialRows<V>::Fold(shape_, At(args_.into), here, rows_);
      return FinishRows<true>(At(args_.into), here);
    }
    if (args_.o != nullptr) return FinishRows<false>(here, {});
    const Partial out = At(args_.out);
    for (int row = 0; row < rows_; ++row) out.max[row] = scratch_.base[row], out.sum[row] = scratch_.sum[row];
    if (acc_ != out.acc) __builtin_memcpy(out.acc, acc_, rows_ * sizeof(scratch_.acc[0]));
  }
  template <bool kFolds>
  void FinishRows(const Partial& into, const Partial& from) {
    PartialRows<V>::template FinishSome<kFolds>(shape_, into, from, args_.rows, first_, first_ + rows_, args_.o,
                                                args_.o_row_stride_bytes);
  }
  Partial At(const Partial& all) const { return {all.max + first_, all.sum + first_, all.acc + first_ * kHeadDim}; }

  // ---- Tiles: two sets of sums, one for each left tile, and those that are multiplied.

  static constexpr int kEvenSum = 0, kOddSum = 2, kLeft = 4, kSecondLeft = 5, kRight = 6, kOddRight = 7;
  static constexpr ptrdiff_t kAccBytes = kHeadDim * sizeof(float);

  template <int kSum>
  static inline void ZeroSums() {
    ZeroTile<kSum>();
    if constexpr (kTiles > 1) ZeroTile<kSum + 1>();
  }
  template <int kSum>
  static inline void LoadSums(const float* acc) {
    LoadTile<kSum>(acc, kAccBytes);
    if constexpr (kTiles > 1) LoadTile<kSum + 1>(acc + kAmxRows * kHeadDim, kAccBytes);
  }
  template <int kSum>
  static inline void StoreSums(float* acc) {
    StoreTile<kSum>(acc, kAccBytes);
    if constexpr (kTiles > 1) StoreTile<kSum + 1>(acc + kAmxRows * kHeadDim, kAccBytes);
  }
  template <int kSum, int kOf>
  static inline void MultiplyBoth() {
    TileBf16::Multiply<kSum, kLeft, kOf>();
    if constexpr (kTiles > 1) TileBf16::Multiply<kSum + 1, kSecondLeft, kOf>();
  }

  // Of the last panel that was scored: one tile after the second step of so many, the other one after the third;
  // earlier, if there are fewer.
  template <int kSum>
  [[gnu::always_inline]] inline void StoreLater(int step, int steps) {
    if (later_ == nullptr) return;
    constexpr ptrdiff_t kRowBytes = kPageTokens * sizeof(float);
    if (step == (steps > 1 ? 1 : 0)) StoreTile<kSum>(later_, kRowBytes);
    if constexpr (kTiles > 1) {
      if (step == (steps > 2 ? 2 : steps - 1)) StoreTile<kSum + 1>(later_ + kAmxRows * kPageTokens, kRowBytes);
    }
  }

  const AttentionShape& shape_;
  const AttendArgs& args_;
  const Query query_;
  const int first_, rows_;  // row-heads of the call
  Upcoming& upcoming_;
  Bf16* const q_;  // [kRows][kHeadDim], behind those of the call's row-heads before
  Scratch& scratch_;
  float* const acc_;        // [kRows][kHeadDim], in the scratch, or in `out` if all of it is to stay there
  float* later_ = nullptr;  // where the sums of the last panel that was scored belong, which are in tiles yet
  int page_count_ = 0;
  int positions_[kBlockPages];
  const std::byte* pages_[kBlockPages];
  uint32_t masked_ = 0;    // bit i: some row does not see all of page i
  uint32_t rescaled_ = 0;  // bit i: before page i rows are to be multiplied by their factors
  float factors_[kBlockPages][kRows];
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AMX_BLOCKS_H_
