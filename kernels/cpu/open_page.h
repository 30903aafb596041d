#ifndef FASTDECODE_KERNELS_CPU_OPEN_PAGE_H_
#define FASTDECODE_KERNELS_CPU_OPEN_PAGE_H_

#include "kernels/attention.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What of a KV head of an open page its tokens take, in runs of lines: K's panels, each of which is a piece, and the
// beginning of each of V's, half of which are one.
class OpenRuns {
 public:
  static constexpr int kLineBytes = 64, kVPanelBytes = kPageTokens * kPanelLanes * 2;

  OpenRuns(int head_dim, int tokens)
      : piece_bytes_(PageKElements(head_dim)),
        k_panels_(tokens > kPanelLanes ? kPageKPanels : 1),
        v_panels_(head_dim / kPanelLanes),
        v_step_(kVPanelBytes),
        v_bytes_((tokens + 1) / 2 * kLineBytes) {
    if (piece_bytes_ % kVPanelBytes == 0) return;
    v_panels_ = kOpenPieces - kPageKPanels;  // one would lie in both of V's pieces: they are taken whole
    v_step_ = v_bytes_ = piece_bytes_;
  }

  int count() const { return k_panels_ + v_panels_; }
  int lines() const { return (k_panels_ * piece_bytes_ + v_panels_ * v_bytes_) / kLineBytes; }
  int bytes(int run) const { return run < k_panels_ ? piece_bytes_ : v_bytes_; }
  // From the head's beginning, if its pieces lay one behind the other.
  int Offset(int run) const {
    return run < k_panels_ ? run * piece_bytes_ : kPageKPanels * piece_bytes_ + (run - k_panels_) * v_step_;
  }
  const std::byte* At(const OpenPage& page, int head, int run) const {
    const int offset = Offset(run), piece = offset / piece_bytes_;
    return page.pieces[piece] + static_cast<size_t>(head) * page.head_stride_bytes + offset % piece_bytes_;
  }

 private:
  const int piece_bytes_, k_panels_;
  int v_panels_, v_step_, v_bytes_;
};

// Puts a KV head of an open page together, as far as it has tokens: nobody looks at the others.
inline void CopyOpenHead(int head_dim, const OpenPage& from, int head, int tokens, std::byte* to) {
  const OpenRuns runs(head_dim, tokens);
  for (int run = 0; run < runs.count(); ++run) {
    const std::byte* const at = runs.At(from, head, run);
    std::byte* const run_to = to + runs.Offset(run);
    for (int i = 0; i < runs.bytes(run); i += OpenRuns::kLineBytes) {
      __builtin_memcpy(run_to + i, at + i, OpenRuns::kLineBytes);
    }
  }
}

// AttendArgs::next_open, prefetched a few lines at each of a call's steps: prefetched all at once, which is faster than
// memory, lines would be dropped.
class OpenAhead {
 public:
  OpenAhead(const AttentionShape& shape, const AttendArgs& args, int steps)
      : page_(args.next_open),
        runs_(shape.head_dim, args.next_open_tokens),
        end_head_(args.first_head + args.heads),
        head_(args.first_head) {
    if (page_ == nullptr || steps == 0) return;
    lines_ = (args.heads * runs_.lines() + steps - 1) / steps;
    BeginRun();
  }

  [[gnu::always_inline]] void Step() {
    for (int i = 0; i < lines_; ++i) {
      PrefetchIntoL2(at_);
      at_ += OpenRuns::kLineBytes;
      if (at_ == end_) NextRun();
    }
  }

 private:
  void NextRun() {
    if (++run_ == runs_.count()) run_ = 0, ++head_;
    head_ < end_head_ ? BeginRun() : void(lines_ = 0);
  }
  void BeginRun() {
    at_ = runs_.At(*page_, head_, run_);
    end_ = at_ + runs_.bytes(run_);
  }

  const OpenPage* const page_;
  const OpenRuns runs_;
  const int end_head_;
  int head_, run_ = 0, lines_ = 0;  // lines of a step
  const std::byte *at_ = nullptr, *end_ = nullptr;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_OPEN_PAGE_H_
