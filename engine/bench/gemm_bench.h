#ifndef FASTDECODE_ENGINE_BENCH_GEMM_BENCH_H_
#define FASTDECODE_ENGINE_BENCH_GEMM_BENCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dot_loop.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/ticket_team.h"

namespace fastdecode {

class OneDnnGemm;

struct GemmBenchOptions {
  ElementType type = ElementType::kBf16;
  int64_t inputs = 0;           // k of each matrix
  int64_t outputs = 0;          // n
  uint64_t weight_bytes = 0;    // of all matrices, at most
  int rows_max = 0;             // of x
  std::vector<int> cores = {};  // OS numbers of the team's PUs, the calling thread's first
  int node = -1;                // os_index of the NUMA node of all memory
  Isa isa = Isa::kAvx2;         // one that this CPU has
};

// The matrix products of a `cpu` S-Part, for measuring: as many matrices of one shape as fill the memory, each thread
// with its range of panels of every one of them, x * W by our own kernel or by oneDNN on the same single copy.
// Owns: all of its memory, the team's helpers. Thread: the team's leader, pinned to cores[0], calls everything.
class GemmBench {
 public:
  // What Create would refuse the options for, without their memory: InvalidArgument as below.
  static absl::Status Check(const GemmBenchOptions& options);
  // Random weights and rows. Sets the calling thread's denormals to be flushed, as all of a team's are.
  // Errors: InvalidArgument that names the option (as the command line says it) and its value; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GemmBench>> Create(const GemmBenchOptions& options);
  ~GemmBench();

  GemmBench(const GemmBench&) = delete;
  GemmBench& operator=(const GemmBench&) = delete;

  // All matrices once, with so many rows: ns. REQUIRES: rows <= rows_max.
  uint64_t RunOwn(int rows) { return Run(rows, /*by_onednn=*/false); }
  // REQUIRES: has_onednn().
  uint64_t RunOneDnn(int rows) { return Run(rows, /*by_onednn=*/true); }

  TicketTeam& team() { return team_; }
  const Arena& weights() const { return weights_; }
  int64_t matrices() const { return matrices_; }
  // Of all matrices: what a pass reads.
  uint64_t weight_bytes() const { return static_cast<uint64_t>(matrices_) * matrix_bytes_; }
  const char* kernel_name() const { return kernels_.name; }
  // What that kernel, or attention, multiplies by.
  DotLoop dot_loop() const;
  bool has_onednn() const { return onednn_ != nullptr; }
  // "brg:avx512_core_bf16"
  const std::string& onednn_implementation() const;
  // What is multiplied: rows of inputs padded to whole kPanelDepth, elements of the type.
  const std::vector<std::byte>& x() const { return x_; }
  // Of the last pass, of its last matrix: [rows][outputs].
  std::vector<float>& y() { return y_; }

 private:
  GemmBench(const GemmBenchOptions& options, Arena weights);

  void FillMatrices();
  void FillRows();
  void MakePrimitives();
  uint64_t Run(int rows, bool by_onednn);
  static void RunShare(void* self, int thread, int threads);
  // A thread's panels of a matrix.
  int64_t FirstPanel(int thread, int threads) const { return panels_ * thread / threads; }

  const GemmBenchOptions options_;
  const Arena weights_;
  const int64_t panels_;  // of a matrix
  const size_t matrix_bytes_;
  const int64_t matrices_;
  const int64_t x_stride_;  // elements
  const GemmKernels kernels_;
  std::vector<std::byte> x_;            // [rows_max + what oneDNN rounds up to][x_stride]
  std::vector<float> y_;                // as many rows, [outputs]
  std::unique_ptr<OneDnnGemm> onednn_;  // null: not for this type, or not on this CPU

  // Of the pass that runs.
  int rows_ = 0;
  bool by_onednn_ = false;

  TicketTeam team_;  // last: its threads end first
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_GEMM_BENCH_H_
