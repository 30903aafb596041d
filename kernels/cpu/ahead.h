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

// For one line of a page, counted from anywhere.
template <Fetch kFetch, class Prefetch>
[[gnu::always_inline]] inline void FetchAhead(const Prefetch& prefetch, int line, const void* at) {
  if (kFetch == Fetch::kEveryLine) prefetch.Line(at);
  if constexpr (Prefetch::kMaySkipLines) {
    if (kFetch == Fetch::kSomeLines && line % 4 == 0) prefetch.SomeLine(at);
  }
}

// How kernels prefetch, for one panel: Line is called with each line of it, or SomeLine with some.
//
// A KV head ahead, into L2: kernels of AVX2, those of AVX-512 for int8 and int4 without VNNI, open pages, and GEMMs.
struct HeadAhead {
  static constexpr ptrdiff_t kBytes = 0;       // those of a KV head, in GEMMs of a block
  static constexpr bool kMaySkipLines = true;  // some may do

  HeadAhead(const Ahead& ahead, const void* panel) : far_(ahead.From(panel, ahead.bytes)) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
  }
  [[gnu::always_inline]] void SomeLine(const void* line) const { Line(line); }

 private:
  const ptrdiff_t far_;
};

// In two stages, every line, into L2 and then, when it is nearer, into L1.
template <ptrdiff_t kFarBytes, ptrdiff_t kNearBytes>
struct TwoStages {
  static constexpr ptrdiff_t kBytes = kFarBytes;
  static constexpr bool kMaySkipLines = false;

  TwoStages(const Ahead& ahead, const void* panel)
      : far_(ahead.From(panel, ahead.bytes)), near_(ahead.From(panel, NearBytes(ahead.bytes))) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
    PrefetchIntoL1(static_cast<const std::byte*>(line) + near_);
  }

 private:
  // Pieces may have fewer bytes.
  static ptrdiff_t NearBytes(ptrdiff_t far_bytes) {
    return far_bytes == kFarBytes ? kNearBytes : far_bytes / (kFarBytes / kNearBytes);
  }

  const ptrdiff_t far_, near_;
};

// Intel's cores with AMX, which then read memory while they compute; tiles of bf16, and int4, gain from an odd number
// of lines (decision 14).
using AmxStages = TwoStages<6144, 3072>;
using AmxBf16Stages = TwoStages<5184, 1536>;
using AmxInt4Stages = TwoStages<5056, 2048>;

// int4 on Zen 4, which takes long for a line (decision 19).
using Zen4Int4Stages = TwoStages<16384, 2048>;

// In three stages, each half as far ahead as the one before: into L2, and then twice as kAgain says. A core that comes
// upon lines which are there already runs on faster than memory, and the prefetches of such a burst are in part
// dropped: the next stage asks again for what the one before lost.
template <ptrdiff_t kFarBytes, void (*kAgain)(const std::byte*), bool kSkips>
struct ThreeStages {
  static constexpr ptrdiff_t kBytes = kFarBytes;
  static constexpr bool kMaySkipLines = kSkips;

  ThreeStages(const Ahead& ahead, const void* panel)
      : far_(ahead.From(panel, ahead.bytes)),
        middle_(ahead.From(panel, ahead.bytes / 2)),
        near_(ahead.From(panel, ahead.bytes / 4)) {}
  [[gnu::always_inline]] void Line(const void* line) const {
    SomeLine(line);
    kAgain(static_cast<const std::byte*>(line) + middle_);
    kAgain(static_cast<const std::byte*>(line) + near_);
  }
  [[gnu::always_inline]] void SomeLine(const void* line) const {
    PrefetchIntoL2(static_cast<const std::byte*>(line) + far_);
  }

 private:
  const ptrdiff_t far_, middle_, near_;
};

// Decision 19 has what these and others do. Zen 4 gains from an odd number of lines, too: 259.
using Zen4Stages = ThreeStages<16576, PrefetchIntoL2, true>;
using Zen5Stages = ThreeStages<12288, PrefetchIntoL1, false>;

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AHEAD_H_
