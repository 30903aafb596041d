#ifndef FASTDECODE_TESTS_KERNELS_CUDA_SIMT_EMULATOR_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_SIMT_EMULATOR_H_

#include <cstdint>
#include <functional>
#include <typeinfo>

#include "kernels/cuda/launch.h"

namespace fastdecode {

struct EmulatorOptions {
  uint64_t seed = 0;              // the same seed, the same order of threads and blocks
  unsigned blocks_in_flight = 4;  // at most; another one begins when one is over
  // Called after each release store, at which others may go on with all that has been written.
  std::function<void(const uint64_t* word)> on_release = nullptr;
  // All threads are to await the kernel before: before they return, store a release, or begin to copy.
  bool awaits = false;
  // What that one does: called when the first thread awaits it, and so as late as it may be.
  std::function<void()> kernel_before = nullptr;
};

namespace simt_internal {

struct Launch {
  LaunchShape shape;
  const std::type_info* args;  // names the kernel in reports
  void (*run)(const void* work);
  const void* work;
};

void Run(const Launch& launch, const EmulatorOptions& options);

}  // namespace simt_internal

// Runs a kernel written for simt.h on the calling thread until all of its threads have returned. Each is a fiber, which
// goes on until it synchronises, touches what it shares with others atomically, or returns; which one is next is drawn
// by lot, among the blocks in flight too: always, or now and then, as the seed has it. So a result that depends on who
// comes first differs from seed to seed.
//
// The process ends with kernel, block, thread and the line where it stood, when
// - threads of a block come to different SyncBlocks, or lanes of a warp to different shuffles, or some never come;
// - a thread returns while others of its block (SyncBlock) or warp (shuffles) synchronise without it;
// - a thread returns while copies of its own are on their way to shared memory;
// - a thread does without AwaitKernelBefore what it is not to do without, if it is to await;
// - a block has written around its shared memory, which begins as NaNs in each block.
// Not emulated: memory that threads see in different orders (a fence that lacks is not found), and how long things
// take.
//
// Thread: any, several at a time, each with fibers of its own, which it keeps for its next launch. What a kernel shares
// with the host or with kernels of other threads are the words of the system-wide operations: real atomics here too.
template <class Args>
void Emulate(const LaunchShape& shape, void (*kernel)(Args), const Args& args, const EmulatorOptions& options = {}) {
  struct Work {
    void (*kernel)(Args);
    const Args& args;
  };
  const Work work = {kernel, args};
  const auto run = [](const void* work) {
    const Work& call = *static_cast<const Work*>(work);
    call.kernel(call.args);
  };
  simt_internal::Run({shape, &typeid(Args), run, &work}, options);
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_SIMT_EMULATOR_H_
