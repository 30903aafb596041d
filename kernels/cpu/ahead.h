#ifndef FASTDECODE_KERNELS_CPU_AHEAD_H_
#define FASTDECODE_KERNELS_CPU_AHEAD_H_

#include <cstddef>

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Inlined by force: GCC 12 finds that a function which does nothing but prefetch does nothing, and drops its calls.
[[gnu::always_inline]] inline void PrefetchIntoL2(const std::byte* line) { __builtin_prefetch(line, 0, 2); }
[[gnu::always_inline]] inline void PrefetchIntoL1(const std::byte* line) { __builtin_prefetch(line, 0, 3); }

// What a thread reads after a place in a page: the same page up to `end`, then what lies `jump` beyond it. `bytes` is
// how far ahead lines are wanted. Default: nothing is, and distances are 0.
struct Ahead {
  const std::byte* end = nullptr;
  ptrdiff_t jump = 0;
  ptrdiff_t bytes = 0;

  bool any() const { return bytes != 0 || jump != 0; }
  // From `at` to what is read so many bytes later.
  ptrdiff_t From(const void* at, ptrdiff_t distance) const {
    return static_cast<const std::byte*>(at) + distance < end ? distance : distance + jump;
  }
};

// For which lines of a page a tile prefetches. Some: where the CPU's own prefetcher does the rest. None: nothing is
// wanted, as after another tile of the page.
enum class Fetch { kNoLine, kSomeLines, kEveryLine };
template <Fetch kFetch>
constexpr bool Fetches(int line) {
  return kFetch == Fetch::kEveryLine || (kFetch == Fetch::kSomeLines && line % 4 == 0);
}

// How kernels prefetch, for one panel: Line is called with each line that Fetch names.
//
// A KV head ahead, into L2: Zen 4 (decision 19); into L1 it would lose.
struct HeadAhead {
  static constexpr ptrdiff_t kBytes = 0;       // those of a KV head, in GEMMs of a block
  static constexpr bool kMaySkipLines = true;  // some may do

  HeadAhead(const Ahead& ahead, const void* panel) : far_(ahead.From(panel, ahead.bytes)) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
  }

 private:
  const ptrdiff_t far_;
};

// In two stages, every line, into L2 and then into L1: Intel's cores with AMX, which then read memory while they
// compute. attention_bench, bf16 by tiles with four query heads a KV head, of a read: without prefetching .63, 6 KB
// into L2 alone .78, 16 KB .74, both stages .82, 16 KB and 3 KB .76.
struct TwoStages {
  static constexpr ptrdiff_t kBytes = 6144;
  static constexpr bool kMaySkipLines = false;

  TwoStages(const Ahead& ahead, const void* panel)
      : far_(ahead.From(panel, ahead.bytes)), near_(ahead.From(panel, ahead.bytes / 2)) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
    PrefetchIntoL1(static_cast<const std::byte*>(line) + near_);
  }

 private:
  const ptrdiff_t far_, near_;
};

// In three stages, every line, into L2 and then twice into L1: Zen 5 (decision 19). A core that comes upon lines which
// are there already runs on faster than memory, and the prefetches of such a burst are in part dropped: the next stage
// asks again for what the one before lost. attention_bench, bf16, of a read with 1, 4 and 8 query heads a KV head: a
// head ahead .84, .60 (of one line in four), .83; the first two stages .99, .86, 1.00; all three 1.02, .97, .99.
struct ThreeStages {
  static constexpr ptrdiff_t kBytes = 12288;
  static constexpr bool kMaySkipLines = false;

  ThreeStages(const Ahead& ahead, const void* panel)
      : far_(ahead.From(panel, ahead.bytes)),
        middle_(ahead.From(panel, ahead.bytes / 2)),
        near_(ahead.From(panel, ahead.bytes / 4)) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
    PrefetchIntoL1(static_cast<const std::byte*>(line) + middle_);
    PrefetchIntoL1(static_cast<const std::byte*>(line) + near_);
  }

 private:
  const ptrdiff_t far_, middle_, near_;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AHEAD_H_
