#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_

// A block's K and V on their way from pages to shared memory, where AttendLayout says. Scales come with what they are
// of, or, if kScalesFirst, those of V with K.

#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

template <class Kv, bool kScalesFirst = false>
class KvCopy {
 public:
  FD_DEVICE KvCopy(const KvPages& pages, const AttendLayout& layout)
      : pages_(pages),
        layout_(layout),
        chunks_(static_cast<unsigned>(layout.row_bytes / 16)),
        first_token_(Thread() / chunks_),
        first_chunk_(Thread() % chunks_) {}

  // The item's steps: of each, on_k(first token) when K is there, between(first) when it is no longer in use,
  // on_v(first) when V is there and all threads have come from `between`. What comes next is on its way meanwhile.
  template <class OnK, class Between, class OnV>
  FD_DEVICE void Steps(const AttendItem& item, unsigned cut_tokens, const OnK& on_k, const Between& between,
                       const OnV& on_v) const {
    const unsigned cut = item.cut * cut_tokens;
    unsigned first = cut + (item.begin - cut) / layout_.tokens * layout_.tokens;
    Begin(item, first, /*of_v=*/false);
    Begin(item, first, /*of_v=*/true);
    for (; first < item.end; first += layout_.tokens) {
      const unsigned next = first + layout_.tokens;
      WaitCopies<1>();
      SyncBlock();
      on_k(first);
      SyncBlock();
      Begin(item, next, /*of_v=*/false);
      between(first);
      WaitCopies<1>();
      SyncBlock();
      on_v(first);
      SyncBlock();
      Begin(item, next, /*of_v=*/true);
    }
  }

 private:
  // One group of copies: K or V of the step that begins at `first`. What the tile does not see becomes zeros.
  FD_DEVICE void Begin(const AttendItem& item, unsigned first, bool of_v) const {
    if (first < item.end) {
      std::byte* const to = SharedMemory() + (of_v ? layout_.v : layout_.k);
      const size_t offset = of_v ? GpuVOffset(pages_.type, pages_.head_dim) : 0;
      // Of a step's two pages at most, looked up before any copy waits for it.
      const unsigned in_page = first % kPageTokens, second = first - in_page + kPageTokens;
      const std::byte* const heads[2] = {
          HeadOf(pages_, item.entry.slot, first, item.kv_head) + offset,
          second < item.end ? HeadOf(pages_, item.entry.slot, second, item.kv_head) + offset : pages_.layer};
      unsigned token = first_token_, chunk = first_chunk_;
      while (token < layout_.tokens) {
        const unsigned position = first + token;
        const bool seen = position >= item.begin && position < item.end;
        const std::byte* from = pages_.layer;
        if (seen) {
          from = (in_page + token < kPageTokens ? heads[0] : heads[1]) + position % kPageTokens * layout_.row_bytes +
                 chunk * size_t{16};
        }
        CopyAsync(to + token * layout_.stride_bytes + chunk * size_t{16}, from, !seen);
        token += kAttendThreads / chunks_;
        chunk += kAttendThreads % chunks_;
        if (chunk >= chunks_) {
          chunk -= chunks_;
          ++token;
        }
      }
      if constexpr (Kv::kScaled) {
        if (!kScalesFirst || !of_v) CopyScales(item, first, of_v);
        if (kScalesFirst && !of_v) CopyScales(item, first, /*of_v=*/true);
      }
    }
    CommitCopies();
  }

  // Eight tokens' scales a thread. Those of tokens that nobody has written are nobody's.
  FD_DEVICE void CopyScales(const AttendItem& item, unsigned first, bool of_v) const {
    const unsigned token = 8 * Thread(), position = first + token;
    if (token >= layout_.tokens) return;
    const bool seen = position + 8 > item.begin && position < item.end;
    const std::byte* from = pages_.layer;
    if (seen) {
      from = HeadOf(pages_, item.entry.slot, position, item.kv_head) + GpuScalesOffset(pages_.type, pages_.head_dim) +
             ((of_v ? kPageTokens : 0) + position % kPageTokens) * sizeof(Bf16);
    }
    CopyAsync(SharedMemory() + (of_v ? layout_.v_scales : layout_.k_scales) + token * sizeof(Bf16), from, !seen);
  }

  const KvPages& pages_;
  const AttendLayout layout_;
  const unsigned chunks_;                     // of 16 bytes in a token's row
  const unsigned first_token_, first_chunk_;  // that this thread copies
};

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_COPY_CUH_
