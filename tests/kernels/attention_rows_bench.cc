// Prints what bounds attention of many query rows, as chunks of prompts and shared prefixes have them: not a test.
// attention_rows_bench [MiB of KV, default 1024]
//
// Microseconds that a thread takes for a page's KV head (32 tokens of 128 dims, 4 query heads), the median of some
// passes over all KV heads, one after the other, in blocks of 512 tokens, as the engine goes through them:
// products: those alone, at the rate of the best instruction that the kernel's ISA has for them on registers;
// cached:   the kernel, one block that lies in the second-level cache again and again;
// memory:   the kernel on all of the KV, told what comes next, as it is in the engine;
// untold:   the same without being told;
// reading:  nothing but loads of the same bytes in the same order.
// Where "memory" is "cached" and "reading" together, nothing of it overlaps; where it is the larger of both, all does.
#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/dot_loop.h"
#include "kernels/isa.h"
#include "kernels/memory_stream.h"

namespace fastdecode {
namespace {

constexpr int kHeads = 8, kGroup = 4, kHeadDim = 128, kPasses = 7;
constexpr size_t kAlignment = 4096;

double Seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class Pass>
double MedianSeconds(const Pass& pass) {
  double seconds[kPasses];
  for (double& s : seconds) {
    const double start = Seconds();
    pass();
    s = Seconds() - start;
  }
  std::nth_element(seconds, seconds + kPasses / 2, seconds + kPasses);
  return seconds[kPasses / 2];
}

template <class T>
T* Allocate(size_t count) {
  return static_cast<T*>(
      std::aligned_alloc(kAlignment, (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment));
}

// The kernel for a prompt's rows and one type of KV, whose pages fill `pool`, which the caller keeps. Owns: queries,
// partials and scratch. Thread: one.
class RowsBench {
 public:
  RowsBench(KvType type, std::byte* pool, size_t pool_bytes)
      : shape_{ElementType::kBf16, type, kHeads, kGroup, kHeadDim, 0.088f, 0, 0},
        kernels_(SelectAttention(DetectIsa(), shape_)),
        attend_(kernels_.AttendFor(/*of_prompt=*/true)),
        pool_(pool),
        page_ids_(pool_bytes / PageBytes(shape_) / kBlockPages * kBlockPages),
        partial_floats_(static_cast<size_t>(MaxPromptRows(shape_)) * kGroup * (2 + kHeadDim) + 64),
        q_(Allocate<uint16_t>(static_cast<size_t>(MaxPromptRows(shape_)) * kGroup * kHeadDim)),
        running_(Allocate<float>(partial_floats_)),
        block_(Allocate<float>(partial_floats_)),
        scratch_(Allocate<std::byte>(AttendScratchBytes(shape_))) {
    std::iota(page_ids_.begin(), page_ids_.end(), 0u);
    constexpr uint16_t kSmall = 0x3c3c;
    std::fill_n(q_, static_cast<size_t>(MaxPromptRows(shape_)) * kGroup * kHeadDim, kSmall);
  }
  ~RowsBench() {
    for (void* memory : {static_cast<void*>(q_), static_cast<void*>(running_), static_cast<void*>(block_),
                         static_cast<void*>(scratch_)}) {
      std::free(memory);
    }
  }
  RowsBench(const RowsBench&) = delete;
  RowsBench& operator=(const RowsBench&) = delete;

  int rows_max() const { return kernels_.many_prompt_rows ? MaxPromptRows(shape_) : kMaxAttendRows; }

  void Print(int rows) {
    const DotLoop dots = SelectDotLoop(DetectIsa(), shape_, /*of_prompts=*/true);
    constexpr double kUs = 1e6;
    const double flop = 4.0 * rows * kGroup * kPageTokens * kHeadDim;
    const double products = MedianSeconds(dots.run) / dots.flop * flop * kUs;
    constexpr int kTimes = 100;
    const double cached = MedianSeconds([&] {
      for (int i = 0; i < kTimes; ++i) Attend(0, 0, rows, i > 0, nullptr);
    });
    const double of_all = kUs / static_cast<double>(page_ids_.size() * kHeads);
    const double memory = MedianSeconds([&] { AttendAll(rows, true); }) * of_all;
    const double untold = MedianSeconds([&] { AttendAll(rows, false); }) * of_all;
    const double reading = MedianSeconds([&] { ReadAll(); }) * of_all;
    std::printf(
        "%-11s %4d rows of %d heads: products %6.2f   cached %6.2f   memory %6.2f   untold %6.2f   reading %5.2f\n",
        kernels_.name, rows, kGroup, products, cached * kUs / (kTimes * kBlockPages), memory, untold, reading);
  }

 private:
  size_t head_bytes() const { return PageBytes(shape_) / kHeads; }
  const std::byte* PageHead(size_t page, int head) const {
    return pool_ + page * PageBytes(shape_) + static_cast<size_t>(head) * head_bytes();
  }

  void AttendAll(int rows, bool told) {
    for (int head = 0; head < kHeads; ++head) {
      for (size_t page = 0; page < page_ids_.size(); page += kBlockPages) {
        const bool same_head = page + kBlockPages < page_ids_.size();
        const size_t next_page = same_head ? page + kBlockPages : 0;
        const std::byte* const next = PageHead(next_page, same_head ? head : (head + 1) % kHeads);
        Attend(page, head, rows, page > 0, told ? next : nullptr, &page_ids_[next_page]);
      }
    }
  }
  void ReadAll() const {
    for (int head = 0; head < kHeads; ++head) {
      for (size_t page = 0; page < page_ids_.size(); ++page) {
        const uint64_t read = ReadStream(PageHead(page, head), head_bytes(), ReadStreams::kOne);
        asm volatile("" ::"r"(read));
      }
    }
  }

  // A block that all rows see, folded into what the ones before have left.
  void Attend(size_t first_page, int head, int rows, bool goes_on, const std::byte* next,
              const uint32_t* next_page_ids = nullptr) {
    AttendArgs args = {};
    args.layer_base = pool_;
    args.page_stride_bytes = PageBytes(shape_);
    args.page_ids = &page_ids_[first_page];
    args.first_head = head;
    args.heads = 1;
    args.tokens = kBlockTokens;
    args.q = reinterpret_cast<const std::byte*>(q_);
    args.q_row_stride_bytes = size_t{kGroup} * kHeadDim * sizeof(*q_);
    args.rows = rows;
    args.first_row_position = 1 << 20;
    args.same_queries = goes_on;
    args.scratch = scratch_;
    args.next = next;
    args.next_page_ids = next == nullptr ? nullptr : next_page_ids;
    args.next_pages = next == nullptr ? 0 : kBlockPages;
    args.out = PartialOf(goes_on ? block_ : running_, rows);
    if (goes_on) args.into = PartialOf(running_, rows);
    attend_(shape_, args);
  }
  static Partial PartialOf(float* floats, int rows) {
    return {floats, floats + rows * kGroup, floats + 2 * rows * kGroup};
  }

  const AttentionShape shape_;
  const AttentionKernels kernels_;
  const AttendFn attend_;
  std::byte* const pool_;
  std::vector<uint32_t> page_ids_;
  const size_t partial_floats_;
  uint16_t* const q_;
  float* const running_;
  float* const block_;
  std::byte* const scratch_;
};

int Main(int argc, char** argv) {
  const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  if (bytes < size_t{4} << 20) {
    std::fprintf(stderr, "%s: less than 4 MiB\n", argv[1]);
    return 2;
  }
  auto* const pool = static_cast<std::byte*>(std::aligned_alloc(2 << 20, bytes));
  madvise(pool, bytes, MADV_HUGEPAGE);
  std::fill(pool, pool + bytes, std::byte{0x3c});  // small positive numbers in all types
  _mm_setcsr(_mm_getcsr() | 0x8040);               // FTZ, DAZ as in the workers
  std::printf("us a page's KV head\n");
  for (KvType type : {KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    RowsBench bench(type, pool, bytes);
    for (int rows = 8; rows <= bench.rows_max(); rows *= 2) bench.Print(rows);
  }
  std::free(pool);
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Main(argc, argv); }
