#include "engine/spart/cpu/onednn_gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "numa/check.h"

namespace fastdecode {

std::unique_ptr<OneDnnGemm> OneDnnGemm::Create(const std::vector<Shape>& shapes, int threads) {
  std::unique_ptr<OneDnnGemm> gemm(new OneDnnGemm());
  // A primitive remembers how many OpenMP threads there were when it was made; with one it never enters the OpenMP
  // runtime, whose barriers fight with polling threads.
  const int omp_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  bool all = true;
  for (const Shape& shape : shapes) {
    const bool known = std::find(gemm->shapes_.begin(), gemm->shapes_.end(), shape) != gemm->shapes_.end();
    if (!known) all = all && gemm->MakePrimitives(shape);
    if (!all) break;
  }
  omp_set_num_threads(omp_threads);
  if (!all) return nullptr;
  size_t scratchpad_bytes = 0;
  for (const auto& description : gemm->descriptions_) {
    scratchpad_bytes = std::max(scratchpad_bytes, description.scratchpad_desc().get_size());
  }
  for (int t = 0; t < threads; ++t) gemm->MakeThread(scratchpad_bytes);
  return gemm;
}

bool OneDnnGemm::MakePrimitives(const Shape& shape) {
  using dnnl::memory;
  FD_CHECK(shape.k % kPanelDepth == 0 && shape.columns % kPanelColumns == 0, "shapes are padded to whole panels");
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  for (const int rows : kRowBuckets) {
    try {
      const memory::desc x(memory::dims{rows, shape.k}, memory::data_type::bf16, memory::format_tag::ab);
      const memory::desc weights(memory::dims{shape.k, shape.columns}, memory::data_type::bf16,
                                 memory::format_tag::BA16a64b2a);
      const memory::desc y(memory::dims{rows, shape.columns}, memory::data_type::f32, memory::format_tag::ab);
      dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, weights, y), attributes, engine_);
      implementation_ = description.impl_info_str();
      // "ref:any" works and is a hundred times slower than our own kernel.
      if (implementation_.rfind("brg", 0) != 0) return false;
      primitives_.emplace_back(description);
      descriptions_.push_back(std::move(description));
    } catch (const dnnl::error&) {
      return false;
    }
  }
  shapes_.push_back(shape);
  return true;
}

void OneDnnGemm::MakeThread(size_t scratchpad_bytes) {
  Thread& thread = threads_.emplace_back();
  thread.stream = dnnl::stream(engine_);
  int64_t columns_max = 0;
  for (const Shape& shape : shapes_) columns_max = std::max(columns_max, shape.columns);
  thread.y.resize(kRowsMax * columns_max);
  thread.scratchpad.resize(scratchpad_bytes + 64);
  for (const auto& description : descriptions_) {
    thread.calls.push_back({dnnl::memory(description.src_desc(), engine_, DNNL_MEMORY_NONE),
                            dnnl::memory(description.weights_desc(), engine_, DNNL_MEMORY_NONE),
                            dnnl::memory(description.dst_desc(), engine_, DNNL_MEMORY_NONE),
                            dnnl::memory(description.scratchpad_desc(), engine_, thread.scratchpad.data())});
  }
}

bool OneDnnGemm::Multiply(const GemmArgs& args, int thread) {
  const int64_t columns = PanelCount(args.columns) * kPanelColumns;
  size_t shape_index = 0;
  while (shape_index < shapes_.size() && shapes_[shape_index] != Shape{args.x_stride, columns}) ++shape_index;
  if (shape_index == shapes_.size()) return false;
  for (int first = 0; first < args.rows; first += kRowsMax) {
    RunTile(args, shape_index, first, std::min(kRowsMax, args.rows - first), threads_[thread]);
  }
  return true;
}

void OneDnnGemm::RunTile(const GemmArgs& args, size_t shape_index, int first_row, int rows, Thread& thread) {
  size_t bucket = 0;
  while (kRowBuckets[bucket] < rows) ++bucket;
  const size_t index = shape_index * kRowBuckets.size() + bucket;
  Call& call = thread.calls[index];
  const int64_t columns = shapes_[shape_index].columns;
  const bool direct = args.y_stride == columns && args.columns == columns;
  float* const to = args.y + first_row * args.y_stride;
  float* const y = direct ? to : thread.y.data();
  call.x.set_data_handle(const_cast<Bf16*>(static_cast<const Bf16*>(args.x)) + first_row * args.x_stride);
  call.weights.set_data_handle(const_cast<std::byte*>(args.panels));
  call.y.set_data_handle(y);
  const dnnl_exec_arg_t exec_args[] = {{DNNL_ARG_SRC, call.x.get()},
                                       {DNNL_ARG_WEIGHTS, call.weights.get()},
                                       {DNNL_ARG_DST, call.y.get()},
                                       {DNNL_ARG_SCRATCHPAD, call.scratchpad.get()}};
  const dnnl_status_t status = dnnl_primitive_execute(primitives_[index].get(), thread.stream.get(), 4, exec_args);
  FD_CHECK(status == dnnl_success, "a oneDNN primitive that was made did not run");
  if (direct) return;
  for (int r = 0; r < rows; ++r) std::memcpy(to + r * args.y_stride, y + r * columns, args.columns * sizeof(float));
}

}  // namespace fastdecode
