#ifndef FASTDECODE_ENGINE_SPART_CPU_ONEDNN_GEMM_H_
#define FASTDECODE_ENGINE_SPART_CPU_ONEDNN_GEMM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace fastdecode {

// bf16 GEMMs by oneDNN on the panels of kernels/gemm.h, whose layout is its BA16a64b2a. A primitive for every shape and row
// bucket is made at load, single-threaded: the S threads call it next to each other, each for its own panels.
//
// oneDNN 2.6 takes its fast implementations only for rows that lie contiguously. Where a thread's outputs are a range of
// columns of a wider matrix, it therefore writes to scratch, and rows are copied from there.
//
// Owns: primitives, and per S thread its memory objects and scratch. Thread: Multiply by S thread `thread` alone.
// Bounded: nothing of ours is allocated after Create; oneDNN itself takes a few hundred bytes per call for its argument map.
class OneDnnGemm {
 public:
  struct Shape {
    int64_t k = 0;        // padded to 32
    int64_t columns = 0;  // a multiple of 64
    friend bool operator==(const Shape&, const Shape&) = default;
  };

  static constexpr std::array<int, 13> kRowBuckets = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  static constexpr int kRowsMax = kRowBuckets.back();
  // Rows are rounded up to a bucket: x and y must have this many rows more than are asked for.
  static constexpr int kRowSlack = 64;

  // Null if oneDNN has no fast implementation for some shape here (a CPU without bf16): the caller uses our own kernel.
  static std::unique_ptr<OneDnnGemm> Create(const std::vector<Shape>& shapes, int threads);

  // False: no primitive of this shape. args.columns may be less than the panels' columns.
  bool Multiply(const GemmArgs& args, int thread);

  // "brg:avx512_core_bf16"
  const std::string& implementation() const { return implementation_; }

 private:
  // What one call needs; the data handles are set each time.
  struct Call {
    dnnl::memory x, weights, y, scratchpad;
  };
  struct Thread {
    dnnl::stream stream;
    std::vector<Call> calls;             // [shape * kRowBuckets.size() + bucket]
    std::vector<float> y;                // [kRowsMax][widest columns]
    std::vector<std::byte> scratchpad;
  };

  OneDnnGemm() : engine_(dnnl::engine::kind::cpu, 0) {}
  bool MakePrimitives(const Shape& shape);
  void MakeThread(size_t scratchpad_bytes);
  void RunTile(const GemmArgs& args, size_t shape_index, int first_row, int rows, Thread& thread);

  dnnl::engine engine_;
  std::string implementation_;
  std::vector<Shape> shapes_;
  std::vector<dnnl::matmul::primitive_desc> descriptions_;  // as Thread::calls
  std::vector<dnnl::matmul> primitives_;                    // as Thread::calls
  std::vector<Thread> threads_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CPU_ONEDNN_GEMM_H_
