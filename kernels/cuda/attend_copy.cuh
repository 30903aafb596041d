#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_

// A block's K and V on their way from pages to shared memory, where AttendLayout says. Scales come with what they are
// of, or, if kScalesFirst, those of V with K.

#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

FD_DEVICE NextItem* NextOf(const AttendLayout& layout) {
  return reinterpret_cast<NextItem*>(SharedMemory() + layout.next);
}

FD_DEVICE uint32_t* CountOf(const AttendLayout& layout) {
  return reinterpret_cast<uint32_t*>(SharedMemory() + layout.count);
}

// A team is all threads of the block, or a warp, which has an equal part of each step's tokens to itself then, and
// waits for nobody else's copies.
//
// A thread keeps its chunk of 16 bytes of a row; threads that are too few for another row have none. So what copies
// take besides their page follows from the layout, and is constant where the compiler knows that.
template <class Kv, unsigned kTeam = kAttendThreads, bool kScalesFirst = false>
class KvCopy {
  // A row of the longest heads has no more chunks than a warp has lanes.
  static_assert(kTeam == kAttendThreads || sizeof(typename Kv::Element) <= sizeof(Bf16));

 public:
  FD_DEVICE KvCopy(const KvPages& pages, const AttendLayout& layout)
      : pages_(pages),
        layout_(layout),
        chunks_(static_cast<unsigned>(layout.row_bytes / 16)),
        rows_(kTeam / chunks_),
        tokens_(layout.tokens / (kAttendThreads / kTeam)),
        begin_(Thread() / kTeam * tokens_),
        first_token_(Thread() % kTeam / chunks_),
        chunk_(Thread() % kTeam % chunks_) {}

  // The first step of `kv`, of all that the block does.
  FD_DEVICE void BeginSpan(const KvSpan& kv) {
    const unsigned first = FirstStep(kv);
    page_ = PageOfLane(kv, first / kPageTokens);
    const Heads heads = HeadsAt(kv, page_, 0);
    Begin(kv, heads, first, /*of_v=*/false);
    Begin(kv, heads, first, /*of_v=*/true);
  }

  // The steps of `kv`, whose first one was begun: of each, on_k(first token) when K is there, between(first) when it is
  // no longer in use, on_v(first) when V is there and all of the team have come from `between`. What comes next is on
  // its way meanwhile: in the last step the first one of `next`, which is shared. Steps begin at multiples of their
  // tokens, as cuts do.
  template <class OnK, class Between, class OnV>
  FD_DEVICE void Steps(const KvSpan& kv, const KvSpan& next, const OnK& on_k, const Between& between, const OnV& on_v) {
    unsigned known = FirstStep(kv) / kPageTokens;  // page_ is of this page of the sequence and the 31 behind it
    const uint32_t next_page = PageOfLane(next, FirstStep(next) / kPageTokens);
    for (unsigned first = FirstStep(kv); first < kv.end; first += layout_.tokens) {
      const bool last = first + layout_.tokens >= kv.end;
      const KvSpan of = last ? next : kv;
      const unsigned at = last ? FirstStep(of) : first + layout_.tokens;
      if (!last && at / kPageTokens + PagesOfStep() > known + kWarp) {
        known = at / kPageTokens;
        page_ = PageOfLane(kv, known);
      }
      const Heads heads = last ? HeadsAt(of, next_page, 0) : HeadsAt(of, page_, at / kPageTokens - known);
      WaitCopies<1>();
      SyncTeam();
      on_k(first);
      SyncTeam();
      Begin(of, heads, at, /*of_v=*/false);
      between(first);
      WaitCopies<1>();
      SyncTeam();
      on_v(first);
      SyncTeam();
      Begin(of, heads, at, /*of_v=*/true);
    }
    page_ = next_page;
  }

 private:
  FD_DEVICE void SyncTeam() const {
    if constexpr (kTeam == kWarp) {
      SyncWarp();
    } else {
      SyncBlock();
    }
  }

  // Where pages are is asked for 32 at a time, by a lane each: a step would wait for it as long as for K. So the step
  // of a longer span waits that begins what the 32 before do not cover. A span's last one again behind it.
  FD_DEVICE uint32_t PageOfLane(const KvSpan& kv, unsigned first_page) const {
    if (kv.end == 0) return 0;
    const unsigned mine = first_page + Thread() % kWarp, last = (kv.end - 1) / kPageTokens;
    return pages_.tables[size_t{kv.slot} * pages_.table_pages + (mine < last ? mine : last)];
  }
  FD_DEVICE unsigned PagesOfStep() const { return layout_.tokens < kPageTokens ? 1 : layout_.tokens / kPageTokens; }

  // Those of the team's pages of a step, whose pages the lanes from `lane` on know.
  static constexpr unsigned kPagesMax = kTeam == kWarp ? 1 : 2, kScalesOfThread = 16 / sizeof(Bf16);
  FD_DEVICE unsigned PagesOfTeam() const { return tokens_ < kPageTokens ? 1 : tokens_ / kPageTokens; }
  struct Heads {
    const std::byte* of_page[kPagesMax];
    const std::byte* of_scales;  // that this thread copies
  };
  FD_DEVICE Heads HeadsAt(const KvSpan& kv, uint32_t page_of_lane, unsigned lane) const {
    Heads heads = {};
    FD_UNROLL(unroll)
    for (unsigned page = 0; page < kPagesMax; ++page) {
      if (page >= PagesOfTeam()) break;
      heads.of_page[page] = HeadOf(pages_, ShuffleFrom(page_of_lane, lane + begin_ / kPageTokens + page), kv.kv_head);
    }
    if constexpr (Kv::kScaled) {
      const unsigned page = ScaledToken() / kPageTokens, of_step = page < PagesOfStep() ? page : 0;
      heads.of_scales = HeadOf(pages_, ShuffleFrom(page_of_lane, lane + of_step), kv.kv_head);
    }
    return heads;
  }
  // The first token of a step whose scales this thread copies.
  FD_DEVICE unsigned ScaledToken() const { return begin_ + kScalesOfThread * (Thread() % kTeam); }
  FD_DEVICE unsigned FirstStep(const KvSpan& kv) const { return kv.begin / layout_.tokens * layout_.tokens; }

  // One group of copies: the team's K or V of the step that begins at `first`. What the tile does not see becomes
  // zeros.
  FD_DEVICE void Begin(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v) const {
    if (first < kv.end) {
      if (first >= kv.begin && first + layout_.tokens <= kv.end) {
        CopyRows</*kSeesAll=*/true>(kv, heads, first, of_v);
      } else {
        CopyRows</*kSeesAll=*/false>(kv, heads, first, of_v);
      }
      if constexpr (Kv::kScaled) {
        if (!kScalesFirst || !of_v) CopyScales(kv, heads, first, of_v);
        if (kScalesFirst && !of_v) CopyScales(kv, heads, first, /*of_v=*/true);
      }
    }
    CommitCopies();
  }

  template <bool kSeesAll>
  FD_DEVICE void CopyRows(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v) const {
    if (kTeam % chunks_ != 0 && first_token_ >= rows_) return;
    const unsigned of_page = tokens_ < kPageTokens ? tokens_ : kPageTokens;
    const unsigned in_page = tokens_ < kPageTokens ? (first + begin_) % kPageTokens : 0;
    FD_UNROLL(unroll)
    for (unsigned page = 0; page < kPagesMax; ++page) {
      if (page >= PagesOfTeam()) break;
      const unsigned of_step = begin_ + page * kPageTokens + first_token_;
      std::byte* const to = SharedMemory() + (of_v ? layout_.v : layout_.k) + of_step * layout_.stride_bytes;
      const std::byte* const from = heads.of_page[page] + (of_v ? kPageTokens * layout_.row_bytes : 0) +
                                    (in_page + first_token_) * layout_.row_bytes + chunk_ * size_t{16};
      FD_UNROLL(unroll)
      for (unsigned i = 0; i < of_page; i += rows_) {
        if (of_page % rows_ != 0 && first_token_ + i >= of_page) break;
        const unsigned position = first + of_step + i;
        const bool sees = kSeesAll || (position >= kv.begin && position < kv.end);
        // chunk_ ^ (token & swizzle): rows_ is a power of two then, first_token_ less, and i a multiple of it.
        const unsigned place = (chunk_ ^ (first_token_ & layout_.swizzle)) * 16 ^ (i & layout_.swizzle) * 16;
        CopyAsync(to + i * layout_.stride_bytes + place, from + i * layout_.row_bytes, !sees);
      }
    }
  }

  // 16 bytes of scales a thread. Those of tokens that nobody has written are nobody's.
  FD_DEVICE void CopyScales(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v) const {
    const unsigned token = ScaledToken(), position = first + token;
    if (token >= begin_ + tokens_) return;
    const std::byte* const from = heads.of_scales + 2 * kPageTokens * layout_.row_bytes +
                                  ((of_v ? kPageTokens : 0) + token % kPageTokens) * sizeof(Bf16);
    CopyAsync(SharedMemory() + (of_v ? layout_.v_scales : layout_.k_scales) + token * sizeof(Bf16), from,
              position + kScalesOfThread <= kv.begin || position >= kv.end);
  }

  const KvPages& pages_;
  const AttendLayout layout_;
  const unsigned chunks_, rows_;        // of 16 bytes in a token's row; rows that the team copies at once
  const unsigned tokens_, begin_;       // of a step, that the team has; the first of them
  const unsigned first_token_, chunk_;  // of the team's in a page, and of a row, that this thread copies first
  uint32_t page_ = 0;                   // of the span's pages, this lane's
};

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
