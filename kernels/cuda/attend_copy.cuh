#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_

// A block's K and V on their way from pages to shared memory, where AttendLayout says. Scales come with what they are
// of, or, if kInWarps, those of V with K.

#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

FD_DEVICE NextItem* NextOf(const AttendLayout& layout) {
  return reinterpret_cast<NextItem*>(SharedMemory() + layout.next);
}

// A thread keeps its chunk of 16 bytes of a row; threads that are too few for another row have none. So what copies
// take besides their page follows from the layout, and is constant where the compiler knows that.
template <class Kv, bool kInWarps = false>
class KvCopy {
 public:
  FD_DEVICE KvCopy(const KvPages& pages, const AttendLayout& layout)
      : pages_(pages),
        layout_(layout),
        chunks_(static_cast<unsigned>(layout.row_bytes / 16)),
        rows_(kAttendThreads / chunks_),
        first_token_(Thread() / chunks_),
        chunk_(Thread() % chunks_) {}

  // Where a step's K and V are.
  struct Step {
    unsigned first;  // token
    const std::byte *k, *v;
    const Bf16 *k_scales, *v_scales;
  };

  // The first step of `kv`, of all that the block does.
  FD_DEVICE void BeginSpan(const KvSpan& kv) const {
    const unsigned first = FirstStep(kv);
    const Heads heads = HeadsAt(kv, first);
    Begin(kv, heads, first, /*of_v=*/false, 0);
    Begin(kv, heads, first, /*of_v=*/true, 0);
  }

  // The steps of `kv`, whose first one was begun: of each, on_k(step) when K is there, between(step) when V may not be
  // yet, on_v(step) when V is there and all threads have come from `between`. What comes next is on its way meanwhile:
  // in the last step the first one of `next`, which is shared. Steps begin at multiples of their tokens, as cuts do.
  template <class OnK, class Between, class OnV>
  FD_DEVICE void Steps(const KvSpan& kv, const KvSpan& next, const OnK& on_k, const Between& between, const OnV& on_v) {
    const bool ahead = layout_.buffers == 3;
    for (unsigned first = FirstStep(kv); first < kv.end; first += layout_.tokens) {
      const bool last = first + layout_.tokens >= kv.end;
      const KvSpan of = last ? next : kv;
      const unsigned at = last ? FirstStep(of) : first + layout_.tokens;
      const Heads heads = HeadsAt(of, at);
      const Step step = {first, BufferOf(number_, /*of_v=*/false), BufferOf(number_, /*of_v=*/true),
                         ScalesOf(number_, /*of_v=*/false), ScalesOf(number_, /*of_v=*/true)};
      WaitCopies<1>();
      SyncBlock();
      if (ahead) Begin(of, heads, at, /*of_v=*/false, number_ + 1);
      on_k(step);
      if (!ahead || !kInWarps) SyncBlock();
      if (!ahead) Begin(of, heads, at, /*of_v=*/false, number_ + 1);
      between(step);
      WaitCopies<1>();
      SyncBlock();
      if (ahead) Begin(of, heads, at, /*of_v=*/true, number_ + 1);
      on_v(step);
      if (!ahead) SyncBlock();
      if (!ahead) Begin(of, heads, at, /*of_v=*/true, number_ + 1);
      ++number_;
    }
  }

 private:
  // Of the block's step `number`: K and V of one step after another take the buffers in turn.
  FD_DEVICE std::byte* BufferOf(unsigned number, bool of_v) const {
    const unsigned buffer = (2 * number + (of_v ? 1 : 0)) % layout_.buffers;
    return SharedMemory() + layout_.kv + buffer * layout_.buffer_bytes();
  }
  FD_DEVICE Bf16* ScalesOf(unsigned number, bool of_v) const {
    const unsigned which = 2 * (number % 2) + (of_v ? 1 : 0);
    return reinterpret_cast<Bf16*>(SharedMemory() + layout_.scales + which * layout_.scale_bytes());
  }

  // Those of a step's two pages at most; the span's last one where there is no other.
  struct Heads {
    const std::byte* of_page[2];
  };
  FD_DEVICE Heads HeadsAt(const KvSpan& kv, unsigned first) const {
    if (kv.end == 0) return {};
    const auto head = [&](unsigned position) {
      return HeadOf(pages_, kv.slot, position < kv.end ? position : kv.end - 1, kv.kv_head);
    };
    return {head(first), head(first + kPageTokens)};
  }
  FD_DEVICE unsigned FirstStep(const KvSpan& kv) const { return kv.begin / layout_.tokens * layout_.tokens; }

  // One group of copies: K or V of the step that begins at `first`. What the tile does not see becomes zeros.
  FD_DEVICE void Begin(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v,
                       unsigned number) const {
    if (first < kv.end) {
      if (first >= kv.begin && first + layout_.tokens <= kv.end) {
        CopyRows</*kSeesAll=*/true>(kv, heads, first, of_v, BufferOf(number, of_v));
      } else {
        CopyRows</*kSeesAll=*/false>(kv, heads, first, of_v, BufferOf(number, of_v));
      }
      if constexpr (Kv::kScaled) {
        if (!kInWarps || !of_v) CopyScales(kv, heads, first, of_v, ScalesOf(number, of_v));
        if (kInWarps && !of_v) CopyScales(kv, heads, first, /*of_v=*/true, ScalesOf(number, /*of_v=*/true));
      }
    }
    CommitCopies();
  }

  template <bool kSeesAll>
  FD_DEVICE void CopyRows(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v,
                          std::byte* buffer) const {
    if (kAttendThreads % chunks_ != 0 && first_token_ >= rows_) return;
    const unsigned of_page = layout_.tokens < kPageTokens ? layout_.tokens : kPageTokens;
    const unsigned in_page = layout_.tokens < kPageTokens ? first % kPageTokens : 0;
    FD_UNROLL(unroll)
    for (unsigned page = 0; page < 2; ++page) {
      if (page * kPageTokens >= layout_.tokens) break;
      const unsigned of_step = page * kPageTokens + first_token_;
      std::byte* const to =
          buffer + of_step * layout_.stride_bytes + chunk_ * size_t{16};
      const std::byte* const from = heads.of_page[page] + (of_v ? kPageTokens * layout_.row_bytes : 0) +
                                    (in_page + first_token_) * layout_.row_bytes + chunk_ * size_t{16};
      FD_UNROLL(unroll)
      for (unsigned i = 0; i < of_page; i += rows_) {
        if (of_page % rows_ != 0 && first_token_ + i >= of_page) break;
        const unsigned position = first + of_step + i;
        const bool sees = kSeesAll || (position >= kv.begin && position < kv.end);
        CopyAsync(to + i * layout_.stride_bytes, from + i * layout_.row_bytes, !sees);
      }
    }
  }

  // Eight tokens' scales a thread. Those of tokens that nobody has written are nobody's.
  FD_DEVICE void CopyScales(const KvSpan& kv, const Heads& heads, unsigned first, bool of_v,
                            Bf16* scales) const {
    const unsigned token = 8 * Thread(), position = first + token;
    if (token >= layout_.tokens) return;
    const std::byte* const from = (token < kPageTokens ? heads.of_page[0] : heads.of_page[1]) +
                                  2 * kPageTokens * layout_.row_bytes +
                                  ((of_v ? kPageTokens : 0) + token % kPageTokens) * sizeof(Bf16);
    CopyAsync(reinterpret_cast<std::byte*>(scales + token), from,
              position + 8 <= kv.begin || position >= kv.end);
  }

  const KvPages& pages_;
  const AttendLayout layout_;
  const unsigned chunks_, rows_;        // of 16 bytes in a token's row; rows that the block copies at once
  const unsigned first_token_, chunk_;  // of a page, and of a row, that this thread copies
  unsigned number_ = 0;                 // of the block's next step
};

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
