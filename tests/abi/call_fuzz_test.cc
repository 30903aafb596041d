// call_fuzz_test [PROGRAMS] [SEED]: random programs of calls of the C interface: in any order, from several threads,
// with structs of any size, valid and not; engines that are destroyed while requests run. Whatever they do, as far as
// the header allows it, every request ends once with the tokens that it has alone, and the counters add up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/abi/fuzz_oracle.h"
#include "tests/abi/fuzz_program.h"

namespace fastdecode {
namespace {

int fuzz_programs = 60;
uint64_t fuzz_seed = 1;

// Ends the process, with the threads' stacks in its core, if a program hangs. Thread: any.
class Watchdog {
 public:
  Watchdog() : thread_([this] { Watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Begin(uint64_t seed) {
    std::lock_guard lock(mutex_);
    seed_ = seed;
    began_ = std::chrono::steady_clock::now();
  }

 private:
  static constexpr std::chrono::minutes kPatience{10};

  void Watch() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, std::chrono::seconds(1));
      if (std::chrono::steady_clock::now() - began_ < kPatience) continue;
      std::fprintf(stderr, "the program of seed %llu hangs\n", static_cast<unsigned long long>(seed_));
      std::abort();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  uint64_t seed_ = 0;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::thread thread_;
};

TEST(CallFuzzTest, RandomPrograms) {
  Watchdog watchdog;
  const FuzzOracle oracle;
  ASSERT_FALSE(HasFailure());
  std::unique_ptr<FuzzEngine> kept;
  FuzzSeen seen;
  for (int i = 0; i < fuzz_programs; ++i) {
    const uint64_t seed = fuzz_seed + static_cast<uint64_t>(i);
    watchdog.Begin(seed);
    FuzzProgram(seed, oracle, &kept).Run(&seen);
    ASSERT_FALSE(HasFailure()) << "call_fuzz_test 1 " << seed << "; threads meet in other ways each time";
  }
  const std::pair<const char*, uint64_t> counts[] = {{"stopped", seen.finished[FD_FINISH_STOP]},
                                                     {"whole", seen.finished[FD_FINISH_LENGTH]},
                                                     {"cancelled", seen.finished[FD_FINISH_CANCELLED]},
                                                     {"overdue", seen.finished[FD_FINISH_DEADLINE]},
                                                     {"forgotten", seen.forgotten},
                                                     {"refused", seen.refused},
                                                     {"unavailable", seen.unavailable},
                                                     {"destroyed", seen.destroyed},
                                                     {"of several choices", seen.several},
                                                     {"cached tokens", seen.cached}};
  std::printf("preemptions %llu\n", static_cast<unsigned long long>(seen.preemptions));
  for (const auto& [name, count] : counts) {
    std::printf("%s %llu\n", name, static_cast<unsigned long long>(count));
    if (fuzz_programs >= 60) {
      EXPECT_GT(count, 0u) << name << ": no program came across it";
    }
  }
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) fastdecode::fuzz_programs = std::atoi(argv[1]);
  if (argc > 2) fastdecode::fuzz_seed = std::strtoull(argv[2], nullptr, 10);
  if (fastdecode::fuzz_programs < 1) {
    std::fprintf(stderr, "usage: call_fuzz_test [PROGRAMS] [SEED]\n");
    return 2;
  }
  return RUN_ALL_TESTS();
}
