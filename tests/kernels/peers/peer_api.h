#ifndef FASTDECODE_TESTS_KERNELS_PEERS_PEER_API_H_
#define FASTDECODE_TESTS_KERNELS_PEERS_PEER_API_H_

// What ggml and ik_llama.cpp, which left it in 2024, call differently.

#include <cstdint>

#include "ggml.h"
#if __has_include("ggml-cpu.h")
#include "ggml-cpu.h"
#define PEER_IS_GGML 1
#else
#define PEER_IS_GGML 0
#endif

namespace fastdecode {

#if PEER_IS_GGML

inline constexpr char kPeer[] = "ggml";
inline constexpr int64_t kMaskRows = 1;

inline void Quantize(ggml_type type, const float* from, void* to, int64_t rows, int64_t row_elements) {
  ggml_quantize_chunk(type, from, to, 0, rows, row_elements, nullptr);
}

// Its pool of threads, each on its own core; they sleep between graphs, so that the read test has the cores.
inline ggml_cplan Plan(ggml_cgraph* graph, int threads) {
  ggml_cpu_init();
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  for (int core = 0; core < threads; ++core) params.cpumask[core] = true;
  params.strict_cpu = true;
  params.poll = 0;
  return ggml_graph_plan(graph, threads, ggml_threadpool_new(&params));
}

#else

inline constexpr char kPeer[] = "ik_llama.cpp";
inline constexpr int64_t kMaskRows = GGML_KQ_MASK_PAD;

inline void Quantize(ggml_type type, const float* from, void* to, int64_t rows, int64_t row_elements) {
  ggml_quantize_chunk(type, from, to, 0, rows, row_elements, nullptr, nullptr);
}

// It makes its threads anew for each graph.
inline ggml_cplan Plan(ggml_cgraph* graph, int threads) { return ggml_graph_plan(graph, threads); }

#endif

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_PEERS_PEER_API_H_
