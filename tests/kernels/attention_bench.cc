// Prints how fast the attention kernels run on this machine: not a test. attention_bench [MiB of KV, 4 and more,
// default 1024 [part of a kernel's name]]
//
// memory: one thread, decode (one row), sequences of 4096 tokens with 8 KV heads of 128 dims, pages in random order.
//         GB/s of KV, and its ratio to a sequential read of the same bytes before and after (the repetitions' median).
// cache:  the same with one block that fits into L2.
// rows16: 16 rows against that block, in GFLOP/s, and its share of what a loop of FMAs does.
#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace fastdecode {
namespace {

// Of this thread's own time, so that a busy machine disturbs less.
double Seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((target("avx2"))) double ReadSeconds(const std::byte* data, size_t bytes) {
  const double start = Seconds();
  __m256i sum[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    for (int j = 0; j < 4; ++j) {
      const __m256i line = _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + j * 32));
      sum[j] = _mm256_xor_si256(sum[j], line);
    }
  }
  for (__m256i& s : sum) asm volatile("" ::"x"(s));
  return Seconds() - start;
}

// GFLOP/s of independent FMAs in registers: the best of some runs.
#define FD_12_FMAS(r)                                                                                     \
  asm volatile(".irp n,0,1,2,3,4,5,6,7,8,9,10,11\n vfmadd231ps %%" r "15,%%" r "15,%%" r "\\n\n .endr" :: \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11")
double FmaPeak(bool zmm) {
  double best = 1;
  for (int run = 0; run < 100; ++run) {
    const double start = Seconds();
    for (int n = 0; zmm && n < 10'000; ++n) FD_12_FMAS("zmm");
    for (int n = 0; !zmm && n < 10'000; ++n) FD_12_FMAS("ymm");
    best = std::min(best, Seconds() - start);
    asm volatile("vzeroupper" ::: "xmm0");
  }
  return 12e4 * (zmm ? 16 : 8) * 2 / best / 1e9;
}

struct Bench {
  AttentionShape shape;
  AttentionKernels kernels;
  std::byte* pool;
  std::vector<uint32_t> page_ids;
  std::vector<std::byte> q = std::vector<std::byte>(1 << 20), scratch = q;
  std::vector<float> out = std::vector<float>(1 << 17);

  // As the engine's memory is.
  template <typename T>
  static T* Aligned(std::vector<T>& memory) {
    constexpr uintptr_t kLineBytes = 64;
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + kLineBytes - 1) / kLineBytes *
                                kLineBytes);
  }

  void Attend(size_t first_page, int position, int first_head, int heads, int rows) {
    const AttendArgs args = {.layer_base = pool,
                             .page_stride_bytes = PageBytes(shape),
                             .page_ids = &page_ids[first_page],
                             .open_pages = nullptr,
                             .first_head = first_head,
                             .heads = heads,
                             .first_position = position,
                             .tokens = kBlockTokens,
                             .q = q.data(),
                             .q_row_stride_bytes = shape.group * shape.head_dim * ElementBytes(shape.type),
                             .rows = rows,
                             .first_row_position = 1 << 20,
                             .next = first_page + kBlockPages < page_ids.size()
                                         ? pool + page_ids[first_page + kBlockPages] * PageBytes(shape)
                                         : nullptr,
                             .out = {Aligned(out), Aligned(out) + 256, Aligned(out) + 512},
                             .scratch = Aligned(scratch)};
    kernels.attend(shape, args);
  }

  // One pass over the whole pool, every KV head; seconds.
  double Stream() {
    const double start = Seconds();
    for (size_t page = 0; page + kBlockPages <= page_ids.size(); page += kBlockPages) {
      Attend(page, page % 128 * kPageTokens, 0, shape.kv_heads, 1);
    }
    return Seconds() - start;
  }

  // Seconds of one block of one KV head in the cache.
  double Cached(int rows) {
    double best = 1;
    constexpr int kTimes = 8;  // to look at the clock takes as long as a page
    for (int i = 0; i < 200; ++i) {
      const double start = Seconds();
      for (int j = 0; j < kTimes; ++j) Attend(0, 0, 0, 1, rows);
      best = std::min(best, (Seconds() - start) / kTimes);
    }
    return best;
  }
};

// Nothing, if the kernel is that of the ISA before.
void Measure(Isa isa, KvType type, int group, const char* name, std::byte* pool, size_t pool_bytes) {
  Bench bench = {
      {type == KvType::kF32 ? ElementType::kF32 : ElementType::kBf16, type, 8, group, 128, 0.088f, 0, 0}, {}, pool, {}};
  bench.kernels = SelectAttention(isa, bench.shape);
  if (isa > Isa::kAvx2 &&
      bench.kernels.attend == SelectAttention(static_cast<Isa>(static_cast<int>(isa) - 1), bench.shape).attend)
    return;
  if (std::strstr(bench.kernels.name, name) == nullptr) return;
  bench.page_ids.resize(pool_bytes / PageBytes(bench.shape) / kBlockPages * kBlockPages);
  const size_t bytes = bench.page_ids.size() * PageBytes(bench.shape);  // those that are attended to
  std::iota(bench.page_ids.begin(), bench.page_ids.end(), 0u);
  std::shuffle(bench.page_ids.begin(), bench.page_ids.end(), std::mt19937(1));

  std::vector<double> ratios, rates, reads;
  for (int i = 0; i < 5; ++i) {
    const double before = ReadSeconds(pool, bytes);
    const double mine = bench.Stream();
    const double read = (before + ReadSeconds(pool, bytes)) / 2;
    ratios.push_back(read / mine);
    rates.push_back(bytes / mine / 1e9);
    reads.push_back(bytes / read / 1e9);
  }
  for (auto* v : {&ratios, &rates, &reads}) std::nth_element(v->begin(), v->begin() + 2, v->end());
  const double block_bytes = kBlockPages * PageBytes(bench.shape) / 8.0;
  const double flops = 16.0 * group * kBlockTokens * 4 * bench.shape.head_dim;
  const double peak = FmaPeak(isa != Isa::kAvx2), rows16 = flops / bench.Cached(16) / 1e9;
  std::printf(
      "%-12s G=%-2d  memory %5.1f of %5.1f GB/s = %.2f   cache %6.1f GB/s   rows16 %6.1f of %6.1f GFLOP/s = %.2f\n",
      bench.kernels.name, group, rates[2], reads[2], ratios[2], block_bytes / bench.Cached(1) / 1e9, rows16, peak,
      rows16 / peak);
}

int Main(int argc, char** argv) {
  const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  if (bytes < kBlockPages * size_t{8 * 2 * kPageTokens * 128 * sizeof(float)}) {
    std::fprintf(stderr, "%s: less than the 4 MiB that a block of f32 takes\n", argv[1]);
    return 2;
  }
  const char* const name = argc > 2 ? argv[2] : "";
  std::byte* pool = static_cast<std::byte*>(std::aligned_alloc(2 << 20, bytes));
  madvise(pool, bytes, MADV_HUGEPAGE);
  std::fill(pool, pool + bytes, std::byte{0x3c});  // small positive numbers in both types
  _mm_setcsr(_mm_getcsr() | 0x8040);               // FTZ, DAZ as in the workers
  for (KvType type : kKvTypes) {
    for (Isa isa : kIsas) {
      if (isa > DetectIsa()) continue;
      for (int group : {1, 4, 8}) Measure(isa, type, group, name, pool, bytes);
    }
  }
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Main(argc, argv); }
