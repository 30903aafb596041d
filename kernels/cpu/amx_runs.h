#ifndef FASTDECODE_KERNELS_CPU_AMX_RUNS_H_
#define FASTDECODE_KERNELS_CPU_AMX_RUNS_H_

#include <immintrin.h>

#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/attention_template.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Attention over pages of bf16 for many row-heads of one KV head: chunks of prompts, and prefixes that sequences share.
// The bits are those of Attention<V, TileBf16Kv<V>>. What differs is the order, since here arithmetic counts and not
// memory. Pages are taken in runs of up to four, row-heads by 16; 16 row-heads and a run are a job:
//   score   a chain of products for each panel of K, of a step after the other; q stays in tiles
//   weigh   the softmax, row by row, in place
//   add     a chain of products for each panel of V, of a page after the other; the probabilities stay in tiles
// The adding of one job and the scoring of the one after the next are woven with the softmax of the one between, so
// that the CPU has both at hand: tiles leave it half of the FMAs. The sums of a chain are stored when the next one has
// begun: a store that waits for them keeps all tile instructions behind it waiting. K and V are loaded past the
// first-level cache (tileloaddt1), which holds the jobs.
//
// Lives for one call, on its thread; all but the jobs' descriptions lies in the thread's scratch. kSteps is the number
// of steps of a panel of K, a 32nd of the head size.
template <class V, int kSteps>
class TileRuns : Attention<V, TileBf16Kv<V>> {
  using Kv = TileBf16Kv<V>;
  using Base = Attention<V, Kv>;
  using typename Base::Query;
  static constexpr int kHeadDim = 32 * kSteps;
  static constexpr int kRunPages = kTileRunPages;
  static constexpr int kRunTokens = kRunPages * kPageTokens;
  static constexpr int kRows = kAmxRows;
  static constexpr int kAddChains = kHeadDim / kPanelLanes;
  static constexpr int kScoreChains = kRunPages * kPageKPanels;
  static constexpr ptrdiff_t kQueryBytes = kHeadDim * sizeof(Bf16);
  static constexpr ptrdiff_t kScoresBytes = kRunTokens * sizeof(float);
  static constexpr ptrdiff_t kAccBytes = kHeadDim * sizeof(float);
  static constexpr ptrdiff_t kPanelStepBytes = kAmxRows * kTileRowBytes;

 public:
  static constexpr int kRowHeadsMax = 32 * kAmxRows;  // a bit of begun_ a tile

  // REQUIRES: one KV head, and no more row-heads.
  static void Attend(const AttentionShape& shape, const AttendArgs& args) { TileRuns(shape, args).Run(); }

 private:
  struct Job {
    const std::byte* q;  // [16]
    const std::byte* pages[kRunPages];
    int page_count;
    bool masked;    // some row does not see all of some page
    bool first;     // acc holds nothing yet
    float* scores;  // [16][128]; then the probabilities, from the start of each row
    float* base;    // [16]
    float* sums;    // [16][16]
    float* acc;     // [16][head_dim]
    uint32_t visible[kRunPages][kRows];
    uint32_t rescales;  // bit i: before page i some rows are to be multiplied by their factors
    float factor[kRunPages][kRows];
  };

  // The sums of the last chain, in a tile until they are stored.
  struct Later {
    void* at = nullptr;
    ptrdiff_t stride_bytes = 0;
  };

  // What is read after the run: some of it is brought into L2 with each chain.
  struct Coming {
    const std::byte* heads[kRunPages];
    int count = 0;
    int lines_a_chain = 0;
    int head = 0, line = 0;
  };

  TileRuns(const AttentionShape& shape, const AttendArgs& args)
      : shape_(shape),
        args_(args),
        query_{kHeadDim, Base::QueryScale(shape), shape.soft_cap * Base::kLog2E},
        row_heads_(args.rows * shape.group),
        tiles_((row_heads_ + kRows - 1) / kRows) {
    float* at = reinterpret_cast<float*>(args.scratch);
    for (Job& job : jobs_) {
      job.scores = at;
      at += kRows * kRunTokens;
    }
    base_ = at;
    sums_ = base_ + tiles_ * kRows;
    acc_ = sums_ + tiles_ * kRows * kPanelLanes;
    q_ = reinterpret_cast<std::byte*>(acc_ + tiles_ * kRows * kHeadDim);
  }

  void Run() {
    Base::template SetQueries<Bf16>(shape_, args_, q_);
    for (int i = row_heads_ * kHeadDim; i < tiles_ * kRows * kHeadDim; i += 2 * kPanelLanes) {
      _mm512_storeu_si512(q_ + i * static_cast<ptrdiff_t>(sizeof(Bf16)), _mm512_setzero_si512());
    }
    for (int i = 0; i < tiles_ * kRows; i += kPanelLanes) V::Store(base_ + i, V::Set(Base::kNoBase));
    for (int i = 0; i < tiles_ * kRows * kPanelLanes; i += kPanelLanes) V::Store(sums_ + i, V::Zero());

    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.Set(tile, kAmxRows, kTileRowBytes);
    const TileScope tiles(config);
    const int first_seen =
        shape_.sliding_window > 0 ? args_.first_row_position - shape_.sliding_window + 1 - args_.first_position : 0;
    const int last_seen = args_.first_row_position + args_.rows - args_.first_position;
    const int end = ((last_seen < args_.tokens ? last_seen : args_.tokens) + kPageTokens - 1) / kPageTokens;
    for (int page = first_seen > 0 ? first_seen / kPageTokens : 0; page < end; page += kRunPages) {
      SetComing(page + kRunPages, end);
      for (int tile = 0; tile < tiles_; ++tile) {
        if (SetJob(tile, page, end < page + kRunPages ? end : page + kRunPages)) Next(JobBefore(0));
      }
    }
    Next(nullptr);
    Next(nullptr);
    for (int i = 0; i < row_heads_; ++i) args_.out.max[i] = base_[i];
    for (int tile = 0; tile < tiles_; ++tile) {
      if ((begun_ >> tile & 1) != 0) continue;
      float* const acc = acc_ + tile * kRows * kHeadDim;
      for (int i = 0; i < kRows * kHeadDim; i += kPanelLanes) V::Store(acc + i, V::Zero());
    }
    Base::FinishPartials(shape_, acc_, sums_, row_heads_, args_.out);
  }

  // The job so many before the one that is set now; null: none, or none any more.
  Job* JobBefore(int count) {
    const int job = job_ - count;
    return job < 0 || job >= jobs_end_ ? nullptr : &jobs_[job % 3];
  }

  void SetComing(int page, int end) {
    coming_ = {};
    for (; page < end && coming_.count < kRunPages; ++page) {
      coming_.heads[coming_.count++] = Base::FirstHeadAt(shape_, args_, page);
    }
    if (coming_.count == 0 && args_.next != nullptr) coming_.heads[coming_.count++] = args_.next;
    const int chains = tiles_ * (kAddChains + kScoreChains);
    coming_.lines_a_chain = (coming_.count * kHeadLines + chains - 1) / chains;
  }

  // Of the pages those that some row of the tile sees; false: none.
  bool SetJob(int tile, int page, int end) {
    const int first = tile * kRows;
    const int rows = row_heads_ - first < kRows ? row_heads_ - first : kRows;
    Job& job = jobs_[job_ % 3];
    job.q = q_ + first * kQueryBytes;
    job.base = base_ + first;
    job.sums = sums_ + first * kPanelLanes;
    job.acc = acc_ + first * kHeadDim;
    job.page_count = 0;
    job.rescales = 0;
    uint32_t all = ~uint32_t{0};
    for (; page < end; ++page) {
      uint32_t any = 0, every = ~uint32_t{0};
      uint32_t* const visible = job.visible[job.page_count];
      int row = first / shape_.group, of_row = first % shape_.group;
      for (int j = 0; j < rows; ++row, of_row = 0) {
        const uint32_t seen =
            Base::VisibleTokens(args_.first_row_position + row, shape_.sliding_window,
                                args_.first_position + page * kPageTokens, args_.first_position + args_.tokens);
        any |= seen;
        every &= seen;
        for (; of_row < shape_.group && j < rows; ++of_row) visible[j++] = seen;
      }
      if (any == 0) continue;
      for (int j = rows; j < kRows; ++j) visible[j] = any;
      all &= every;
      job.pages[job.page_count++] = Base::FirstHeadAt(shape_, args_, page);
    }
    if (job.page_count == 0) return false;
    job.masked = all != ~uint32_t{0};
    job.first = (begun_ >> tile & 1) == 0;
    begun_ |= uint32_t{1} << tile;
    jobs_end_ = job_ + 1;
    return true;
  }

  // One more job, or none any more.
  void Next(Job* score) {
    Job* const add = JobBefore(2);
    Job* const weigh = JobBefore(1);
    ++job_;
    if (IsFull(add) && IsFull(weigh) && IsFull(score) && add->rescales == 0 && query_.cap_log2 == 0) {
      return weigh->masked ? Weave<true>(*add, weigh, *score) : Weave<false>(*add, weigh, *score);
    }
    if (add != nullptr) AddInPieces(*add);
    if (weigh != nullptr) {
      for (int row = 0; row < kRows; ++row) WeighPages(weigh, row);
    }
    if (score != nullptr) Score(*score);
  }

  static bool IsFull(const Job* job) { return job != nullptr && job->page_count == kRunPages; }

  template <bool kMasked>
  void Weave(const Job& add, Job* weigh, const Job& score) {
    Later later;
    uint32_t changed = 0;  // bit j: the base of row j changes
    int row = 0;
    const auto rows_until = [&](int end) __attribute__((always_inline)) {
      for (; row < end; ++row) changed |= uint32_t{!WeighRow<kMasked>(query_.scale, weigh, row)} << row;
    };
    LoadLeft<kRunPages>(add.scores, kScoresBytes);
    for (int chain = 0; chain < kAddChains; chain += 2) {
      AddPanel<kEvenSum>(add, 0, kRunPages, chain, &later);
      rows_until(kRows * (chain + 1) / (kAddChains + kScoreChains));
      AddPanel<kOddSum>(add, 0, kRunPages, chain + 1, &later);
      rows_until(kRows * (chain + 2) / (kAddChains + kScoreChains));
    }
    LoadLeft<kSteps>(score.q, kQueryBytes);
    for (int chain = 0; chain < kScoreChains; chain += 2) {
      ScorePanel<kEvenSum>(score, chain, &later);
      rows_until(kRows * (kAddChains + chain + 1) / (kAddChains + kScoreChains));
      ScorePanel<kOddSum>(score, chain + 1, &later);
      rows_until(kRows * (kAddChains + chain + 2) / (kAddChains + kScoreChains));
    }
    Store<kOddSum>(&later);
    for (; changed != 0; changed &= changed - 1) WeighPages(weigh, __builtin_ctz(changed));
  }

  void Score(const Job& job) {
    Later later;
    LoadLeft<kSteps>(job.q, kQueryBytes);
    for (int chain = 0; chain < job.page_count * kPageKPanels; chain += 2) {
      ScorePanel<kEvenSum>(job, chain, &later);
      ScorePanel<kOddSum>(job, chain + 1, &later);
    }
    Store<kOddSum>(&later);
  }

  // A page before which rows are to be rescaled begins another piece.
  void AddInPieces(const Job& job) {
    for (int first = 0, last; first < job.page_count; first = last) {
      last = first + 1;
      while (last < job.page_count && (job.rescales >> last & 1) == 0) ++last;
      if ((job.rescales >> first & 1) != 0) {
        for (int j = 0; j < kRows; ++j) Base::ScaleRow(job.factor[first][j], kHeadDim, job.acc + j * kHeadDim);
      }
      Later later;
      LoadLeft<kRunPages>(job.scores, kScoresBytes);  // those behind the last do no harm
      for (int chain = 0; chain < kAddChains; chain += 2) {
        AddPanel<kEvenSum>(job, first, last, chain, &later);
        AddPanel<kOddSum>(job, first, last, chain + 1, &later);
      }
      Store<kOddSum>(&later);
    }
  }

  // ---- Products. Tiles 0 to 3 are the steps of q, or the probabilities of the pages.

  static constexpr int kEvenSum = 4, kOddSum = 5, kEvenRight = 6, kOddRight = 7;
  static constexpr int kHeadLines = 2 * kPageTokens * kHeadDim * static_cast<int>(sizeof(Bf16)) / kTileRowBytes;

  template <int kCount, int kTile = 0>
  static inline void LoadLeft(const void* at, ptrdiff_t stride_bytes) {
    LoadTile<kTile>(static_cast<const std::byte*>(at) + kTile * kTileRowBytes, stride_bytes);
    if constexpr (kTile + 1 < kCount) LoadLeft<kCount, kTile + 1>(at, stride_bytes);
  }

  template <int kSum, int kStep>
  static inline void Multiply(const std::byte* right) {
    constexpr int kRight = kStep % 2 != 0 ? kOddRight : kEvenRight;
    StreamTile<kRight>(right, kTileRowBytes);
    TileBf16::Multiply<kSum, kStep, kRight>();
  }

  template <int kSum>
  static inline void Store(Later* later) {
    if (later->at != nullptr) StoreTile<kSum>(later->at, later->stride_bytes);
  }

  template <int kSum>
  [[gnu::always_inline]] inline void ScorePanel(const Job& job, int chain, Later* later) {
    const std::byte* const panel = job.pages[chain / kPageKPanels] + chain % kPageKPanels * kSteps * kPanelStepBytes;
    ZeroTile<kSum>();
    Multiply<kSum, 0>(panel);
    if constexpr (kSteps > 1) Multiply<kSum, 1>(panel + kPanelStepBytes);
    Store<kEvenSum + kOddSum - kSum>(later);
    if constexpr (kSteps > 2) Multiply<kSum, 2>(panel + 2 * kPanelStepBytes);
    if constexpr (kSteps > 3) Multiply<kSum, 3>(panel + 3 * kPanelStepBytes);
    *later = {job.scores + chain * kPanelLanes, kScoresBytes};
    Bring();
  }

  // Pages [first, last).
  template <int kSum>
  [[gnu::always_inline]] inline void AddPanel(const Job& job, int first, int last, int chain, Later* later) {
    const ptrdiff_t panel = (PageKElements(kHeadDim) + chain * kPanelLanes * kPageTokens) * ptrdiff_t{sizeof(Bf16)};
    float* const acc = job.acc + chain * kPanelLanes;
    if (job.first && first == 0) {
      ZeroTile<kSum>();
    } else {
      LoadTile<kSum>(acc, kAccBytes);
    }
    if (first <= 0) Multiply<kSum, 0>(job.pages[0] + panel);
    if (first <= 1 && 1 < last) Multiply<kSum, 1>(job.pages[1] + panel);
    Store<kEvenSum + kOddSum - kSum>(later);
    if (first <= 2 && 2 < last) Multiply<kSum, 2>(job.pages[2] + panel);
    if (first <= 3 && 3 < last) Multiply<kSum, 3>(job.pages[3] + panel);
    *later = {acc, kAccBytes};
    Bring();
  }

  [[gnu::always_inline]] inline void Bring() {
    if (coming_.head == coming_.count) return;
    const std::byte* const at = coming_.heads[coming_.head] + coming_.line * kTileRowBytes;
    for (int i = 0; i < coming_.lines_a_chain; ++i) PrefetchIntoL2(at + i * kTileRowBytes);
    if ((coming_.line += coming_.lines_a_chain) >= kHeadLines) coming_.line = 0, ++coming_.head;
  }

  // ---- Softmax.

  // A row of a full run, all pages at once. False, and nothing done, if its base is to change but by the first page.
  template <bool kMasked>
  [[gnu::always_inline]] static inline bool WeighRow(float query_scale, Job* job, int row) {
    float* const scores = job->scores + row * kRunTokens;
    const __m512 scale = V::Set(query_scale);
    __m512 base = V::Set(job->base[row]);
    __m512 score[kRunPages][2], top[2];
#pragma GCC unroll 4
    for (int i = 0; i < kRunPages; ++i) {
#pragma GCC unroll 2
      for (int w = 0; w < 2; ++w) {
        score[i][w] = V::Mul(V::Load(scores + i * kPageTokens + w * kPanelLanes), scale);
        if constexpr (kMasked) {
          score[i][w] = V::Select(job->visible[i][row] >> (w * kPanelLanes), score[i][w], V::Set(-Base::kInfinity));
        }
        top[w] = i == 0 ? score[i][w] : V::Max(top[w], score[i][w]);
      }
    }
    top[0] = V::Max(top[0], top[1]);
    if (__builtin_expect(V::AnyGreater(top[0], V::Add(base, V::Set(kMaxLag))), 0)) {
      const float first = V::MaxLanes(V::Max(score[0][0], score[0][1]));
      if (job->base[row] != Base::kNoBase || first == -Base::kInfinity) return false;
      base = V::Set(first);
      if (V::AnyGreater(top[0], V::Add(base, V::Set(kMaxLag)))) return false;
      job->base[row] = first;
    }
    float* const sums = job->sums + row * kPanelLanes;
    Bf16* const p = reinterpret_cast<Bf16*>(scores);
    __m512 sum = V::Load(sums);
#pragma GCC unroll 4
    for (int i = 0; i < kRunPages; ++i) {
#pragma GCC unroll 2
      for (int w = 0; w < 2; ++w) score[i][w] = V::Sub(score[i][w], base);
      Kv::Exponentiate(score[i], p + i * kPageTokens);
      sum = V::Add(sum, V::Add(score[i][0], score[i][1]));
    }
    V::Store(sums, sum);
    return true;
  }

  // Any row, page by page.
  [[gnu::noinline]] void WeighPages(Job* job, int row) const {
    const float* const scores = job->scores + row * kRunTokens;
    Bf16* const p = reinterpret_cast<Bf16*>(job->scores + row * kRunTokens);
    for (int i = 0; i < job->page_count; ++i) {
      const float factor = Base::WeighRow(query_, job->visible[i][row], scores + i * kPageTokens, p + i * kPageTokens,
                                          job->base + row, job->sums + row * kPanelLanes);
      if (factor == 1) continue;
      if ((job->rescales >> i & 1) == 0) {
        for (int j = 0; j < kRows; ++j) job->factor[i][j] = 1;
        job->rescales |= uint32_t{1} << i;
      }
      job->factor[i][row] = factor;
    }
  }

  const AttentionShape& shape_;
  const AttendArgs& args_;
  const Query query_;
  const int row_heads_, tiles_;
  float* base_;   // [tiles][16]
  float* sums_;   // [tiles][16][16]
  float* acc_;    // [tiles][16][head_dim]
  std::byte* q_;  // [tiles][16]
  Job jobs_[3];
  int job_ = 0;         // that is set now, counted
  int jobs_end_ = 0;    // of those that were set
  uint32_t begun_ = 0;  // bit t: tile t has had a job
  Coming coming_;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AMX_RUNS_H_
