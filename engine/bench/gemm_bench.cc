#include "engine/bench/gemm_bench.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/spart/cpu/onednn_gemm.h"
#include "numa/check.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr double kRowsBytesMax = 2.0 * (uint64_t{1} << 30);
constexpr int64_t kPanelScales = 13;  // a prime, so that matrices begin with different ones

size_t MatrixBytes(const GemmBenchOptions& o) {
  return static_cast<size_t>(PanelCount(o.outputs)) * PanelBytes(o.type, o.inputs);
}

int64_t PaddedInputs(const GemmBenchOptions& o) { return (o.inputs + kPanelDepth - 1) / kPanelDepth * kPanelDepth; }

}  // namespace

absl::Status GemmBench::Check(const GemmBenchOptions& options) {
  const size_t threads = options.cores.size();
  if (static_cast<size_t>(PanelCount(options.outputs)) < threads) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--outputs: %d have fewer than a panel of %d for each of %d threads", options.outputs, kPanelColumns, threads));
  }
  const double gib = static_cast<double>(options.weight_bytes) / (uint64_t{1} << 30);
  if (options.weight_bytes < MatrixBytes(options)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--gib: %.10g GiB have no room for one matrix of %d bytes, which is %d x %d in %s", gib,
                        MatrixBytes(options), options.outputs, options.inputs, ElementName(options.type)));
  }
  // Of x and y, beside the weights.
  const double row_bytes = 4.0 * static_cast<double>(PaddedInputs(options) + options.outputs);
  const double rows = static_cast<double>(options.rows_max) + OneDnnGemm::kRowSlack;
  if (rows * row_bytes > kRowsBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--rows: %d of --inputs %d and --outputs %d take %.1f GiB besides the weights, more than %.0f",
                        options.rows_max, options.inputs, options.outputs, rows * row_bytes / (uint64_t{1} << 30),
                        kRowsBytesMax / (uint64_t{1} << 30)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GemmBench>> GemmBench::Create(const GemmBenchOptions& options) {
  if (absl::Status bad = Check(options); !bad.ok()) return bad;
  const double gib = static_cast<double>(options.weight_bytes) / (uint64_t{1} << 30);
  ArenaOptions arena_options;
  arena_options.bytes = options.weight_bytes / MatrixBytes(options) * MatrixBytes(options);
  arena_options.node = options.node;
  arena_options.prefault_cores = options.cores;
  absl::StatusOr<Arena> weights = Arena::Create(arena_options);
  if (!weights.ok()) {
    return absl::Status(weights.status().code(), absl::StrFormat("--gib: %.10g: %s", gib, weights.status().message()));
  }
  SetFlushDenormals();
  return std::unique_ptr<GemmBench>(new GemmBench(options, *std::move(weights)));
}

GemmBench::GemmBench(const GemmBenchOptions& options, Arena weights)
    : options_(options),
      weights_(std::move(weights)),
      panels_(PanelCount(options.outputs)),
      matrix_bytes_(MatrixBytes(options)),
      matrices_(static_cast<int64_t>(options.weight_bytes / matrix_bytes_)),
      x_stride_(PaddedInputs(options)),
      kernels_(SelectGemm(options.isa, options.type)),
      team_("gemm", options.cores, PollMode::kSpin) {
  FillMatrices();
  FillRows();
  if (options.type == ElementType::kBf16 && options.isa >= Isa::kAvx512Bf16) MakePrimitives();
}

GemmBench::~GemmBench() = default;

const std::string& GemmBench::onednn_implementation() const { return onednn_->implementation(); }

DotLoop GemmBench::dot_loop() const {
  AttentionShape shape;  // whose products are of the same type
  shape.type = options_.type;
  shape.kv_type = options_.type == ElementType::kF32 ? KvType::kF32 : KvType::kBf16;
  return SelectDotLoop(options_.isa, shape);
}

// The first panel is random, each of the next few half of the one before, so that it shows which are read, and all
// others are their copies: no product is a denormal's, and speed does not depend on more.
void GemmBench::FillMatrices() {
  std::mt19937_64 random;
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<float> rows(static_cast<size_t>(kPanelColumns * options_.inputs));
  for (float& value : rows) value = distribution(random);
  std::byte* const first = reinterpret_cast<std::byte*>(weights_.data());
  const size_t panel_bytes = matrix_bytes_ / static_cast<size_t>(panels_);
  for (int64_t panel = 0; panel < matrices_ * panels_; ++panel) {
    std::byte* const to = first + static_cast<size_t>(panel) * panel_bytes;
    if (panel < kPanelScales) {
      PackPanel(options_.type, rows.data(), kPanelColumns, options_.inputs, to);
      for (float& value : rows) value *= 0.5f;
    } else {
      std::memcpy(to, first + static_cast<size_t>(panel % kPanelScales) * panel_bytes, panel_bytes);
    }
  }
}

void GemmBench::FillRows() {
  const size_t rows = static_cast<size_t>(options_.rows_max + OneDnnGemm::kRowSlack);
  const bool is_bf16 = options_.type == ElementType::kBf16;
  const size_t element_bytes = is_bf16 ? sizeof(Bf16) : sizeof(float);
  y_.resize(rows * static_cast<size_t>(options_.outputs));
  x_.resize(rows * static_cast<size_t>(x_stride_) * element_bytes);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (size_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < options_.inputs; ++k) {  // the padding stays zero
      const float value = distribution(random);
      const Bf16 rounded = ToBf16(value);
      std::memcpy(x_.data() + (row * static_cast<size_t>(x_stride_) + static_cast<size_t>(k)) * element_bytes,
                  is_bf16 ? static_cast<const void*>(&rounded) : &value, element_bytes);
    }
  }
}

void GemmBench::MakePrimitives() {
  const int threads = team_.thread_count();
  std::vector<OneDnnGemm::Shape> shapes;
  for (int t = 0; t < threads; ++t) {
    shapes.push_back({x_stride_, (FirstPanel(t + 1, threads) - FirstPanel(t, threads)) * kPanelColumns});
  }
  onednn_ = OneDnnGemm::Create(shapes, threads);
}

uint64_t GemmBench::Run(int rows, bool by_onednn) {
  FD_CHECK(rows <= options_.rows_max && (!by_onednn || has_onednn()), "what this bench was made for");
  rows_ = rows;
  by_onednn_ = by_onednn;
  const uint64_t start_ns = NowNs();
  team_.Run(&RunShare, this);
  return NowNs() - start_ns;
}

void GemmBench::RunShare(void* context, int thread, int threads) {
  GemmBench& self = *static_cast<GemmBench*>(context);
  const int64_t first = self.FirstPanel(thread, threads), end = self.FirstPanel(thread + 1, threads);
  const size_t panel_bytes = self.matrix_bytes_ / static_cast<size_t>(self.panels_);
  GemmArgs args;
  args.x = self.x_.data();
  args.x_stride = self.x_stride_;
  args.rows = self.rows_;
  args.k = self.options_.inputs;
  args.columns = std::min(self.options_.outputs, end * kPanelColumns) - first * kPanelColumns;
  args.y = self.y_.data() + first * kPanelColumns;
  args.y_stride = self.options_.outputs;
  const std::byte* matrix = reinterpret_cast<const std::byte*>(self.weights_.data());
  for (int64_t i = 0; i < self.matrices_; ++i, matrix += self.matrix_bytes_) {
    args.panels = matrix + static_cast<size_t>(first) * panel_bytes;
    if (!self.by_onednn_) {
      self.kernels_.gemm(args);
    } else {
      FD_CHECK(self.onednn_->Multiply(args, thread), "a primitive was made for every thread's panels");
    }
  }
}

}  // namespace fastdecode
