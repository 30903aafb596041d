// fastdecode_bench.h in C++, as fastdecode.hpp is fastdecode.h.
#ifndef FASTDECODE_FASTDECODE_BENCH_HPP_
#define FASTDECODE_FASTDECODE_BENCH_HPP_

#include <fastdecode/fastdecode_bench.h>

#include <cstdint>
#include <fastdecode/fastdecode.hpp>

namespace fastdecode {
inline namespace v0_1 {

struct BenchRequest : fd_bench_request {
  BenchRequest() { fd_bench_request_init(this, sizeof(fd_bench_request)); }
};

// Copies everything it needs before it returns, except where bench.prompt_logits points.
inline TokenStream Submit(InferenceEngine& engine, const GenerateRequest& request, const BenchRequest& bench) {
  const RequestView view(request);
  uint64_t id = 0;
  ThrowIfError(fd_bench_submit(engine.get(), view.get(), &bench, &id));
  return TokenStream(engine.get(), id);
}

}  // namespace v0_1
}  // namespace fastdecode

#endif  // FASTDECODE_FASTDECODE_BENCH_HPP_
