#include "tests/engine/spart/soft_work.h"

#include <cstring>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/cuda/dispatch.cuh"
#include "numa/check.h"
#include "tests/kernels/cuda/emulated_kernels.h"

namespace fastdecode {

namespace {

template <class T>
std::vector<float> ToFloats(const T* from, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = simt::ToFloat(from[i]);
  return values;
}

template <class T, class Out>
void Multiply(const DeviceGemm& gemm) {
  const std::vector<float> x = ToFloats(static_cast<const T*>(gemm.x), gemm.rows * gemm.k);
  for (int64_t n = 0; n < gemm.n; ++n) {
    const std::vector<float> weights = ToFloats(static_cast<const T*>(gemm.weights) + n * gemm.k, gemm.k);
    for (int64_t row = 0; row < gemm.rows; ++row) {
      float sum = 0;
      for (int64_t k = 0; k < gemm.k; ++k)
        sum += weights[static_cast<size_t>(k)] * x[static_cast<size_t>(row * gemm.k + k)];
      Out& y = static_cast<Out*>(gemm.y)[row * gemm.n + n];
      sum *= gemm.alpha;
      y = simt::FromFloat<Out>(gemm.adds ? simt::ToFloat(y) + sum : sum);
    }
  }
}

void Do(const DeviceGemm& gemm, uint64_t, const std::function<void()>&) {
  WithComputeType(gemm.type, [&](auto t) {
    using T = typename decltype(t)::Type;
    gemm.out == gemm.type ? Multiply<T, T>(gemm) : Multiply<T, float>(gemm);
  });
}

void Do(const DeviceCopy& copy, uint64_t, const std::function<void()>&) { std::memcpy(copy.to, copy.from, copy.bytes); }

template <class Args>
void Do(const Args& args, uint64_t seed, const std::function<void()>& before) {
  EmulatorOptions options;
  options.seed = seed;
  options.kernel_before = before;
  EmulateKernel(args, options);
}

}  // namespace

void DoSoftWork(const DeviceWork& work, uint64_t seed, const std::function<void()>& before) {
  FD_CHECK(before == nullptr || IsKernel(work), "only kernels of ours begin early");
  std::visit([&](const auto& args) { Do(args, seed, before); }, work);
}

bool IsKernel(const DeviceWork& work) {
  return !std::holds_alternative<DeviceGemm>(work) && !std::holds_alternative<DeviceCopy>(work);
}

}  // namespace fastdecode
