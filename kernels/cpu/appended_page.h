#ifndef FASTDECODE_KERNELS_CPU_APPENDED_PAGE_H_
#define FASTDECODE_KERNELS_CPU_APPENDED_PAGE_H_

#include "kernels/attention.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

constexpr int kLineBytes = 64;

// The lines of a KV head of an open page that has so many tokens, in runs: its pieces' rows. Numbers alone.
class OpenRuns {
 public:
  OpenRuns(int head_dim, int tokens) : token_bytes_(OpenTokenBytes(head_dim)), tokens_(tokens) {}

  int count() const { return (tokens_ + kOpenPieceTokens - 1) / kOpenPieceTokens; }
  int lines() const { return tokens_ * token_bytes_ / kLineBytes; }
  int bytes(int run) const {
    const int left = tokens_ - run * kOpenPieceTokens;
    return (left < kOpenPieceTokens ? left : kOpenPieceTokens) * token_bytes_;
  }
  const std::byte* At(const OpenPage& page, int head, int run) const {
    return page.pieces[run] + static_cast<size_t>(head) * page.head_stride_bytes;
  }

 private:
  const int token_bytes_, tokens_;
};

// The lines of a KV head of another page that a token is appended to, in runs: its panel of K, int8's scales, and one
// of each panel of V. A page's first token clears the others, too.
class TokenRuns {
 public:
  TokenRuns(const AttentionShape& shape, int slot)
      : has_scales_(shape.kv_type == KvType::kInt8),
        scales_(Int8KScales(shape.head_dim)),
        v_panels_(shape.head_dim / kPanelLanes) {
    const int element_bytes = shape.kv_type == KvType::kF32 ? 4 : has_scales_ ? 1 : 2;
    k_bytes_ = kPanelLanes * shape.head_dim * element_bytes;
    k_ = slot / kPanelLanes * k_bytes_;
    v_step_ = kPageTokens * kPanelLanes * element_bytes;
    const int v = has_scales_ ? Int8V(shape.head_dim) : kPageKPanels * k_bytes_;
    v_ = v + slot * kPanelLanes * element_bytes / kLineBytes * kLineBytes;
  }

  int count() const { return 1 + has_scales_ + v_panels_; }
  int lines() const { return k_bytes_ / kLineBytes + has_scales_ * kScalesBytes / kLineBytes + v_panels_; }
  int bytes(int run) const { return run == 0 ? k_bytes_ : run <= has_scales_ ? kScalesBytes : kLineBytes; }
  int Offset(int run) const {
    return run == 0 ? k_ : run <= has_scales_ ? scales_ : v_ + (run - 1 - has_scales_) * v_step_;
  }

 private:
  static constexpr int kScalesBytes = 2 * kPageTokens * 2;  // of k and of v

  const int has_scales_, scales_, v_panels_;
  int k_bytes_, k_, v_step_, v_;
};

// AttendArgs::next_append, which outlives it, prefetched in equal parts at each of a call's steps, a page's KV heads:
// prefetched all at once, which is faster than memory, lines would be dropped. kOpen: it is an open page. Thread: the
// call's.
template <bool kOpen>
class AppendAhead {
 public:
  AppendAhead(const AttentionShape& shape, ptrdiff_t head_bytes, const NextAppend* next, int steps)
      : next_(next), head_bytes_(head_bytes), runs_(RunsOf(shape, next)) {
    if (next == nullptr || steps <= 0) return;
    lines_ = (next->heads * runs_.lines() + steps - 1) / steps;
    BeginRun();
  }

  [[gnu::always_inline]] void Step() {
    for (int i = 0; i < lines_; ++i) {
      PrefetchIntoL2(at_);
      at_ += kLineBytes;
      if (at_ == end_) NextRun();
    }
  }

 private:
  static auto RunsOf(const AttentionShape& shape, const NextAppend* next) {
    const int tokens = next != nullptr ? next->tokens : 1;
    if constexpr (kOpen) {
      return OpenRuns(shape.head_dim, tokens);
    } else {
      return TokenRuns(shape, tokens - 1);
    }
  }

  void NextRun() {
    if (++run_ == runs_.count()) run_ = 0, ++head_;
    if (head_ < next_->heads) {
      BeginRun();
    } else {
      lines_ = 0;
    }
  }
  void BeginRun() {
    const int head = next_->first_head + head_;
    if constexpr (kOpen) {
      at_ = runs_.At(next_->open, head, run_);
    } else {
      at_ = next_->page + head * head_bytes_ + runs_.Offset(run_);
    }
    end_ = at_ + runs_.bytes(run_);
  }

  const NextAppend* const next_;
  const ptrdiff_t head_bytes_;
  const decltype(RunsOf(AttentionShape(), nullptr)) runs_;
  int head_ = 0, run_ = 0;
  int lines_ = 0;  // of a step
  const std::byte *at_ = nullptr, *end_ = nullptr;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_APPENDED_PAGE_H_
