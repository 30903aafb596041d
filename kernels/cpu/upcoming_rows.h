#ifndef FASTDECODE_KERNELS_CPU_UPCOMING_ROWS_H_
#define FASTDECODE_KERNELS_CPU_UPCOMING_ROWS_H_

#include "kernels/attention.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What packing prefetches (decision 19). Each is of one KV head of one page, on its thread's stack.

// The lines of a KV head's share of the next page's rows (AppendArgs::next_page_k), k's, in the order in which they lie
// in memory; the shares of all heads are the whole page. A row's last line is not its own where rows are no multiple of
// a line.
class PageShare {
 public:
  // Empty.
  PageShare() = default;
  PageShare(const AppendArgs& args, int kv_heads, int head_bytes)
      : row_stride_(static_cast<ptrdiff_t>(args.row_stride_bytes)), row_bytes_(kv_heads * head_bytes) {
    const int share = args.kv_head * kPageTokens * head_bytes;
    byte_ = share % row_bytes_;
    line_ = args.next_page_k + share / row_bytes_ * row_stride_ + byte_;
  }

  // Null: empty. Else from k to v it is as far as in this page.
  const std::byte* line() const { return line_; }
  // REQUIRES: not empty. A share has as many lines as the head has in a page's rows.
  [[gnu::always_inline]] void Advance() {
    line_ += 64;
    byte_ += 64;
    if (byte_ < row_bytes_) return;
    line_ += row_stride_ - byte_;
    byte_ = 0;
  }

 private:
  const std::byte* line_ = nullptr;
  ptrdiff_t row_stride_ = 0;
  int row_bytes_ = 0, byte_ = 0;
};

// A PageShare, k and v, prefetched on Zen 4 alone: it drops what is prefetched faster than memory follows, and is told
// of rows twice so, first in long pieces, and then head by head. Not measured on others.
class UpcomingPage {
 public:
  UpcomingPage(const AppendArgs& args, int kv_heads, int head_bytes) : to_v_(args.v - args.k) {
    if (args.next_page_k != nullptr && CpuIsAmd() && !CpuIsZen5OrLater())
      share_ = PageShare(args, kv_heads, head_bytes);
  }

  [[gnu::always_inline]] void Prefetch() {
    if (share_.line() == nullptr) return;
    PrefetchIntoL2(share_.line());
    PrefetchIntoL2(share_.line() + to_v_);
    share_.Advance();
  }

 private:
  const ptrdiff_t to_v_;
  PageShare share_;
};

// What is appended next (AppendArgs::next_k), prefetched line by line between this one's stores: CPUs drop what is
// prefetched faster than memory follows, and memory idles meanwhile. Zen 5 drops less of what is wanted in L1 (a chunk
// in bf16: .29 ms a layer against .41).
class Upcoming {
 public:
  Upcoming(const AppendArgs& args, int kv_heads, int row_bytes)
      : k_(args.next_k),
        v_offset_(args.v - args.k),
        row_stride_(static_cast<ptrdiff_t>(args.row_stride_bytes)),
        row_bytes_(row_bytes),
        row_lines_((row_bytes + 63) / 64),
        into_l1_(CpuIsZen5OrLater()),
        rows_left_(args.next_k == nullptr ? 0 : args.tokens),
        page_(args, kv_heads, row_bytes) {}

  // Of the rows that are appended, k and v, so many were done when a part began, and so many since.
  void Begin(int rows) { begun_ = rows; }
  [[gnu::always_inline]] void After(int rows) {
    for (const int due = (begun_ + rows + 1) * row_lines_; lines_ < due && rows_left_ > 0; lines_ += 2) {
      Prefetch(k_ + byte_);
      Prefetch(k_ + v_offset_ + byte_);
      page_.Prefetch();
      byte_ += 64;
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      k_ += row_stride_;
      --rows_left_;
    }
  }

 private:
  [[gnu::always_inline]] void Prefetch(const std::byte* line) const {
    into_l1_ ? PrefetchIntoL1(line) : PrefetchIntoL2(line);
  }

  const std::byte* k_;
  const ptrdiff_t v_offset_, row_stride_;
  const int row_bytes_, row_lines_;
  const bool into_l1_;
  int rows_left_, begun_ = 0, lines_ = 0, byte_ = 0;
  UpcomingPage page_;
};

// The same of whole pages of bf16 in vectors of 512 bits, a few lines at a time wherever this one's arithmetic gives
// memory the time: k's rows, then v's, 2 * head_dim lines. How many where is fixed: counting what is due takes a tenth
// of the time here.
class UpcomingLines {
 public:
  UpcomingLines(const AttentionShape& shape, const AppendArgs& args)
      : row_stride_(static_cast<ptrdiff_t>(args.row_stride_bytes)),
        next_(args.next_k != nullptr ? args.next_k : args.k),  // if it is not known, once more what is there already
        head_bytes_(shape.head_dim * kElementBytes),
        to_v_(args.v - args.k - kPageTokens * row_stride_),
        page_(args, shape.kv_heads, head_bytes_) {}

  template <int kPairs>
  [[gnu::always_inline]] void Prefetch() {
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i) {
      PrefetchIntoL2(next_);
      PrefetchIntoL2(next_ + 64);
      next_ += 128;
      byte_ += 128;
      if (byte_ == head_bytes_) {
        byte_ = 0;
        next_ += row_stride_ - head_bytes_;
        if (++rows_ == kPageTokens) next_ += to_v_;
      }
      page_.Prefetch();
    }
  }

 private:
  static constexpr int kElementBytes = static_cast<int>(sizeof(Bf16));

  const ptrdiff_t row_stride_;
  const std::byte* next_;
  const int head_bytes_;
  const ptrdiff_t to_v_;
  int byte_ = 0, rows_ = 0;
  UpcomingPage page_;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_UPCOMING_ROWS_H_
