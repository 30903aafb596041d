#include "tests/kernels/cuda/kernel_host.h"

#include "tests/kernels/cuda/emulated_kernels.h"

namespace fastdecode {

namespace {

class Emulated : public KernelHost {
 public:
  const std::byte* Show(const std::byte* data, size_t) override { return data; }
  std::byte* Share(std::byte* data, size_t) override { return data; }
  void Run(const TakeKvStepArgs& args, uint64_t seed) override { EmulateKernel(args, {.seed = seed}); }
  void Run(const AppendKvArgs& args, uint64_t seed) override { EmulateKernel(args, {.seed = seed}); }
  void Run(const AttendKvArgs& args, uint64_t seed) override {
    EmulateKernel(args, {.seed = seed, .blocks_in_flight = 1 + static_cast<unsigned>(seed % 5)});
  }
};

}  // namespace

KernelHost& EmulatedHost() {
  static Emulated host;
  return host;
}

}  // namespace fastdecode
