// Speed of the packed GEMM on one thread, from weights that no cache holds: GFLOP/s, flop per cycle, and weight bytes a
// second against a sequential read of the same buffers in the same repetition. With oneDNN beside it on the same bytes.
//   taskset -c 0 gemm_bench [avx2|avx512|avx512bf16]

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/memory_stream.h"
#include "numa/check.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace fastdecode {
namespace {

constexpr int64_t kK = 2048, kN = 5632;
constexpr int kCopies = 16;  // rotated, so that every pass reads its weights from memory
constexpr int kRepetitions = 15;

// Of this thread alone: a neighbour that takes the core does not count.
double NowSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// From a chain of dependent additions.
double ClockGhz() {
  constexpr int64_t kSteps = 20'000'000;
  uint64_t x = 0;
  const double start = NowSeconds();
  for (int64_t i = 0; i < kSteps; i += 8) {
    asm volatile("add $1,%0\nadd $1,%0\nadd $1,%0\nadd $1,%0\nadd $1,%0\nadd $1,%0\nadd $1,%0\nadd $1,%0" : "+r"(x));
  }
  return kSteps / (NowSeconds() - start) * 1e-9;
}

struct Weights {
  size_t bytes;     // of one copy
  std::byte* data;  // kCopies of them

  explicit Weights(ElementType type) : bytes(PanelCount(kN) * PanelBytes(type, kK)) {
    void* memory = mmap(nullptr, kCopies * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FD_CHECK(memory != MAP_FAILED, "no memory for the weights");
    madvise(memory, kCopies * bytes, MADV_HUGEPAGE);
    data = static_cast<std::byte*>(memory);
    std::vector<float> rows(kPanelColumns * kK);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20) - 2048) / 2048;
    for (int64_t p = 0; p < PanelCount(kN); ++p) {
      PackPanel(type, rows.data(), kPanelColumns, kK, data + p * PanelBytes(type, kK));
    }
    for (int copy = 1; copy < kCopies; ++copy) std::memcpy(data + copy * bytes, data, bytes);
  }
  ~Weights() { munmap(data, kCopies * bytes); }
};

// oneDNN's matmul on the panels as they are packed; null if it does not take the layout.
struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  dnnl::memory x, weights, y;
  std::string name = "refused";

  OneDnn(ElementType type, int rows, void* x_data, float* y_data) {
    using Tag = dnnl::memory::format_tag;
    const bool bf16 = type == ElementType::kBf16;
    const auto data_type = bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    const dnnl::memory::desc x_desc({rows, kK}, data_type, Tag::ab);
    const dnnl::memory::desc weights_desc({kK, kN}, data_type, bf16 ? Tag::BA16a64b2a : Tag::BA16a64b);
    const dnnl::memory::desc y_desc({rows, kN}, dnnl::memory::data_type::f32, Tag::ab);
    try {
      const dnnl::matmul::primitive_desc desc({x_desc, weights_desc, y_desc}, engine);
      primitive = dnnl::matmul(desc);
      name = desc.impl_info_str();
      x = dnnl::memory(x_desc, engine, x_data);
      weights = dnnl::memory(weights_desc, engine, nullptr);
      y = dnnl::memory(y_desc, engine, y_data);
    } catch (const dnnl::error&) {
    }
  }
  explicit operator bool() const { return name != "refused"; }
  void Run(std::byte* panels) {
    weights.set_data_handle(panels);
    primitive.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}});
    stream.wait();
  }
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Measure(const GemmKernels& kernels, ElementType type, const Weights& weights, int rows) {
  std::vector<float> x(rows * kK), y(rows * kN), other(rows * kN);
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = static_cast<float>(i % 97) / 97 - 0.5f;
    const Bf16 narrow = ToBf16(value);
    if (type == ElementType::kF32) x[i] = value;
    if (type == ElementType::kBf16) std::memcpy(reinterpret_cast<std::byte*>(x.data()) + i * 2, &narrow, 2);
  }
  OneDnn one_dnn(type, rows, x.data(), other.data());
  const double flop = 2.0 * rows * kK * kN;
  std::vector<double> read, ours, theirs, ratio, clock;
  int copy = 0;
  const auto time = [&](const auto& run) {
    const int passes = rows <= 16 ? 2 : 1;
    const double start = NowSeconds();
    for (int pass = 0; pass < passes; ++pass) run(weights.data + weights.bytes * (copy++ % kCopies));
    return (NowSeconds() - start) / passes;
  };
  volatile uint64_t sink = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    clock.push_back(ClockGhz());
    read.push_back(time([&](std::byte* panels) { sink = sink ^ ReadStream(panels, weights.bytes, ReadStreams::kOne); }));
    ours.push_back(time([&](std::byte* panels) { kernels.gemm({x.data(), kK, rows, kK, panels, kN, y.data(), kN}); }));
    ratio.push_back(read.back() / ours.back());
    if (one_dnn) theirs.push_back(time([&](std::byte* panels) { one_dnn.Run(panels); }));
  }
  double largest = 0, difference = 0;
  size_t same_bits = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    largest = std::max(largest, std::abs(double{y[i]}));
    difference = std::max(difference, std::abs(double{y[i]} - other[i]));
    same_bits += y[i] == other[i];
  }
  const double seconds = Median(ours), bytes = static_cast<double>(weights.bytes);
  std::printf("%4s %4d | read %5.1f GB/s | %-16s %5.1f GB/s %4.2f of read %6.1f GFLOP/s %5.1f flop/clk | ",
              ElementName(type), rows, bytes / Median(read) * 1e-9, kernels.name, bytes / seconds * 1e-9, Median(ratio),
              flop / seconds * 1e-9, flop / seconds * 1e-9 / Median(clock));
  if (!one_dnn) {
    std::printf("oneDNN refused\n");
    return;
  }
  const double dnn = Median(theirs);
  std::printf("oneDNN %5.1f GB/s %6.1f GFLOP/s, %s, differs by %.1e of the largest, same bits %.1f %%\n",
              bytes / dnn * 1e-9, flop / dnn * 1e-9, one_dnn.name.c_str(), difference / largest,
              100.0 * same_bits / y.size());
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  using namespace fastdecode;
  omp_set_num_threads(1);
  Isa isa = DetectIsa();
  if (argc > 1 && (!ParseIsa(argv[1], &isa) || isa > DetectIsa())) {
    std::fprintf(stderr, "%s: not an instruction set of this CPU: %s\n", argv[0], argv[1]);
    return 1;
  }
  std::printf("k %ld, n %ld, one thread, %s, clock %.2f GHz\n", long{kK}, long{kN}, IsaName(isa), ClockGhz());
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const Weights weights(type);
    for (const int rows : {1, 2, 4, 6, 8, 12, 16, 32, 64, 512}) Measure(SelectGemm(isa, type), type, weights, rows);
  }
}
