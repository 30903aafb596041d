// Prints how fast the attention kernels run on this machine: not a test. All of these may be left out, from the end:
// attention_bench MIB_OF_A_THREAD (4 and more, 1024) PART_OF_A_KERNELS_NAME THREADS (1) PAGES_OF_A_PIECE (1)
//
// memory: decode (one row), sequences of 4096 tokens with 8 KV heads of 128 dims, pieces of pages in random order. GB/s
//         of KV, and its ratio to a sequential read of the same bytes before and after (the repetitions' median).
// cache:  the same with one block of a KV head that fits into L2.
// rows16: 16 rows against that block, in GFLOP/s, and its share of what a loop of FMAs does.
//
// Several threads are on the first cores, one each, and wait for each other before each part; their rates are added up.
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
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

struct Options {
  size_t pool_bytes = size_t{1} << 30;  // of a thread
  const char* name = "";
  int threads = 1;
  size_t piece_pages = 1;
};

// Of one thread.
struct Rates {
  double memory = 0, read = 0, cache = 0, rows16 = 0, fma = 0;
};

// What one thread does: `wait` returns when all have come so far.
template <typename Wait>
std::vector<Rates> Run(Bench bench, const Options& options, bool zmm, const Wait& wait) {
  const size_t piece = options.piece_pages * kBlockPages;
  bench.page_ids.resize(options.pool_bytes / PageBytes(bench.shape) / piece * piece);
  std::vector<uint32_t> pieces(bench.page_ids.size() / options.piece_pages);
  std::iota(pieces.begin(), pieces.end(), 0u);
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(1));
  for (size_t i = 0; i < bench.page_ids.size(); ++i) {
    bench.page_ids[i] =
        static_cast<uint32_t>(pieces[i / options.piece_pages] * options.piece_pages + i % options.piece_pages);
  }
  const double bytes = static_cast<double>(bench.page_ids.size() * PageBytes(bench.shape));
  const double block_bytes = kBlockPages * PageBytes(bench.shape) / 8.0;
  const double flops = 16.0 * bench.shape.group * kBlockTokens * 4 * bench.shape.head_dim;
  std::vector<Rates> all(5);
  for (Rates& rates : all) {
    wait();
    const double before = ReadSeconds(bench.pool, static_cast<size_t>(bytes));
    wait();
    rates.memory = bytes / bench.Stream() / 1e9;
    wait();
    rates.read = bytes / ((before + ReadSeconds(bench.pool, static_cast<size_t>(bytes))) / 2) / 1e9;
  }
  wait();
  all[0].cache = block_bytes / bench.Cached(1) / 1e9;
  wait();
  all[0].rows16 = flops / bench.Cached(16) / 1e9;
  wait();
  all[0].fma = FmaPeak(zmm);
  return all;
}

// Nothing, if the kernel is that of the ISA before.
void Measure(Isa isa, KvType type, int group, const Options& options, std::byte* pool) {
  const AttentionShape shape = {
      type == KvType::kF32 ? ElementType::kF32 : ElementType::kBf16, type, 8, group, 128, 0.088f, 0, 0};
  const AttentionKernels kernels = SelectAttention(isa, shape);
  if (isa > Isa::kAvx2 && kernels.attend == SelectAttention(static_cast<Isa>(static_cast<int>(isa) - 1), shape).attend)
    return;
  if (std::strstr(kernels.name, options.name) == nullptr) return;
  std::barrier all_are_here(options.threads);
  std::vector<std::vector<Rates>> of_threads(options.threads);
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      cpu_set_t core;
      CPU_ZERO(&core);
      CPU_SET(t, &core);
      if (options.threads > 1 && sched_setaffinity(0, sizeof(core), &core) != 0) {
        std::fprintf(stderr, "thread %d cannot have core %d: %s\n", t, t, std::strerror(errno));
        std::exit(2);
      }
      _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ, DAZ as in the workers
      of_threads[t] = Run({shape, kernels, pool + t * options.pool_bytes, {}}, options, isa != Isa::kAvx2,
                          [&] { all_are_here.arrive_and_wait(); });
    });
  }
  for (std::thread& thread : threads) thread.join();

  const auto sum = [&](size_t repetition, double Rates::*rate) {
    double total = 0;
    for (const std::vector<Rates>& rates : of_threads) total += rates[repetition].*rate;
    return total;
  };
  std::vector<double> ratios, rates, reads;
  for (size_t i = 0; i < of_threads[0].size(); ++i) {
    rates.push_back(sum(i, &Rates::memory));
    reads.push_back(sum(i, &Rates::read));
    ratios.push_back(rates.back() / reads.back());
  }
  for (auto* v : {&ratios, &rates, &reads}) std::nth_element(v->begin(), v->begin() + 2, v->end());
  const double rows16 = sum(0, &Rates::rows16), peak = sum(0, &Rates::fma);
  std::printf(
      "%-12s G=%-2d  memory %5.1f of %5.1f GB/s = %.2f   cache %6.1f GB/s   rows16 %6.1f of %6.1f GFLOP/s = %.2f\n",
      kernels.name, group, rates[2], reads[2], ratios[2], sum(0, &Rates::cache), rows16, peak, rows16 / peak);
}

int Main(int argc, char** argv) {
  Options options;
  const auto number = [&](int i, size_t value) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : value; };
  options.pool_bytes = number(1, 1024) << 20;
  if (argc > 2) options.name = argv[2];
  options.threads = static_cast<int>(number(3, 1));
  options.piece_pages = number(4, 1);
  constexpr size_t kOneBlock = kBlockPages * size_t{8 * 2 * kPageTokens * 128 * sizeof(float)};
  if (options.pool_bytes < kOneBlock * options.piece_pages || options.threads < 1 || options.piece_pages < 1) {
    std::fprintf(stderr, "expected MiB, 4 for each page in a piece and more; a name; threads; and pages in a piece\n");
    return 2;
  }
  const size_t bytes = options.pool_bytes * options.threads;
  std::byte* pool = static_cast<std::byte*>(std::aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21));
  madvise(pool, bytes, MADV_HUGEPAGE);
  std::fill(pool, pool + bytes, std::byte{0x3c});  // small positive numbers in both types
  for (KvType type : kKvTypes) {
    for (Isa isa : kIsas) {
      if (isa > DetectIsa()) continue;
      for (int group : {1, 4, 8}) Measure(isa, type, group, options, pool);
    }
  }
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Main(argc, argv); }
