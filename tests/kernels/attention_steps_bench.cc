// Prints where the time of attention goes on this machine when memory is not what it waits for: not a test.
//
// Clocks that the steps of Attention (attention_template.h) take for a page's KV head of 128 dims, whose bytes and
// whose rows' state lie in the first-level cache; then all of them, and all of them for eight such KV heads in turn,
// whose state may be too much for that cache. Beside that the product instructions, which no kernel can do without, and
// what "all, 8 in turn" comes to in GB/s of KV at this clock. The least of many runs each. A clock is that of a chain
// of products of integers, since some CPUs add several constants a clock. With AVX-512, VNNI and BF16 alone.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512bf16_dots.h"
#include "kernels/cpu/avx512vnni_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

constexpr int kHeadDim = 128, kHeads = 8;
constexpr double kForever = 1e9;

// Of this thread's own time, so that a busy machine disturbs less.
double Seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class Work>
double LeastSeconds(int runs, int times, const Work& work) {
  double least = kForever;
  for (int run = 0; run < runs; ++run) {
    const double start = Seconds();
    for (int i = 0; i < times; ++i) work(i);
    least = std::min(least, (Seconds() - start) / times);
  }
  return least;
}

double ClocksPerSecond() {
  constexpr int kProducts = 50, kClocksOfAProduct = 3;
  return kProducts * kClocksOfAProduct / LeastSeconds(50, 20'000, [](int) {
           asm volatile(".rept 50\n imul %%rax, %%rax\n .endr" ::: "rax");
         });
}

// Small positive numbers in every type.
template <typename T, size_t kCount>
void Fill(T (&to)[kCount]) {
  for (size_t i = 0; i + 1 < sizeof(to); i += 2) {
    const uint16_t bits = 0x3c3c;
    std::memcpy(reinterpret_cast<char*>(to) + i, &bits, sizeof(bits));
  }
}

template <class Kernel, class Kv, int kDotsOfAClock>
struct Probe : Kernel {
  template <int J>
  static void Measure(const char* name, double clocks_per_second) {
    alignas(4096) static std::byte pages[kHeads * 32768], queries[kHeads * J * kHeadDim * 4 + 4096];
    alignas(64) static float scores[J * kPageTokens], acc[kHeads * J * kHeadDim], base[J],
        sums[kHeads * J * kPanelLanes], rests[kHeads * J * kPanelLanes * 4];
    alignas(64) static typename Kv::Probability p[J * kPageTokens];
    static typename Kv::Weights weights;
    static typename Kv::Prepared prepared;
    Fill(pages);
    Fill(queries);
    const typename Kernel::Query query = {kHeadDim, 0.01f, 0};
    typename Kernel::Tile tile = {};
    tile.largest = true;
    tile.seen = kPageTokens;
    tile.scores = scores;
    tile.p = p;
    tile.base = base;
    for (int j = 0; j < J; ++j) tile.visible[j] = ~uint32_t{0};
    const auto at_head = [&](int head) {
      tile.page_head = pages + head * Kv::HeadBytes(kHeadDim);
      tile.q = queries + head * J * Kv::QueryBytes(kHeadDim);
      tile.sums = sums + head * J * kPanelLanes;
      tile.rests = rests + head * J * Kv::RestFloats(kHeadDim);
      tile.acc = acc + head * J * kHeadDim;
    };
    // Called through memory, as the kernel's own loop does: what is inlined here would be another program.
    typename Kernel::template Steps<Kv> steps = Kernel::template kSteps<Kv, J, Fetch::kNoLine>;
    asm volatile("" : "+m"(steps));
    const auto clocks = [&](const auto& work) {
      return LeastSeconds(200, 400,
                          [&](int i) {
                            work(i);
                            asm volatile("" ::: "memory");
                          }) *
             clocks_per_second;
    };
    const auto all = [&](int) {
      steps.score(query, tile, prepared);
      steps.weigh(query, &tile, &weights);
      steps.prepare(query, tile, &prepared);  // as the next one's is
      steps.add(query, tile, weights);
    };
    at_head(0);
    steps.prepare(query, tile, &prepared);
    const double score = clocks([&](int) { steps.score(query, tile, prepared); });
    const double prepare = clocks([&](int) { steps.prepare(query, tile, &prepared); });
    const double weigh = clocks([&](int) { steps.weigh(query, &tile, &weights); });
    const double add = clocks([&](int) { steps.add(query, tile, weights); });
    const double one = clocks(all);
    const double eight = clocks([&](int i) {
      at_head(i % kHeads);
      all(i);
    });
    const int products = 2 * J * kPageTokens * kHeadDim / kDotsOfAClock;
    std::printf("%-5s %10d %8.0f %8.0f %8.0f %8.0f %8.0f %13.0f %9d %7d %8.1f\n", name, J, prepare, score, weigh, add,
                one, eight, products, static_cast<int>(Kv::HeadBytes(kHeadDim)),
                static_cast<double>(Kv::HeadBytes(kHeadDim)) / eight * clocks_per_second * 1e-9);
  }
};

template <class V, class Kv, int kProductsOfAnInstruction>
void Measure(const char* name, double clocks_per_second) {
  using Each = Probe<Attention<V, Kv>, Kv, kProductsOfAnInstruction>;
  Each::template Measure<1>(name, clocks_per_second);
  Each::template Measure<4>(name, clocks_per_second);
  Each::template Measure<8>(name, clocks_per_second);
  if constexpr (V::kMaxTile > 8) Each::template Measure<V::kMaxTile>(name, clocks_per_second);
}

void Main() {
  _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ, DAZ as in the workers
  const double clock = ClocksPerSecond();
  std::printf("%.2f GHz\n%-5s %10s %8s %8s %8s %8s %8s %13s %9s %7s %8s\n", clock * 1e-9, "KV", "row-heads", "prepare",
              "score", "weigh", "add", "all", "8 in turn", "products", "bytes", "GB/s");
  using V = Avx512Vector;
  Measure<V, PanelKv<V, FmaDots<V, float>>, 16>("f32", clock);
  Measure<V, PanelKv<V, FmaDots<V, Fp16>>, 16>("fp16", clock);
  Measure<V, PanelKv<V, Bf16Dots<HeadAhead>>, 32>("bf16", clock);
  Measure<Int8Tiles, Int8Kv<Int8Tiles>, 64>("int8", clock);
  Measure<Int4Tiles, Int4Kv<Int4Tiles>, 64>("int4", clock);
}

}  // namespace
}  // namespace fastdecode

int main() {
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) {
    std::puts("this CPU has no AVX-512 with VNNI and BF16");
    return 0;
  }
  fastdecode::Main();
  return 0;
}
