#include "tests/kernels/cuda/simt_emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cuda/simt.h"

namespace fastdecode {
namespace {

using simt::BlocksX;
using simt::BlockX;
using simt::SyncBlock;
using simt::Thread;
using simt::Threads;

struct SumArgs {
  const int* in = nullptr;  // a number a thread, of all blocks
  int* out = nullptr;       // the sum of its block, as each thread sees it
};

int* SharedInts() { return reinterpret_cast<int*>(simt::SharedMemory()); }

// What a block's threads gave, by a tree in shared memory. `kForgotten`: the SyncBlock that is left out, from 1; 0:
// none.
template <int kForgotten>
void TreeSum(SumArgs args) {
  const unsigned global = BlockX() * Threads() + Thread();
  int* const shared = SharedInts();
  shared[Thread()] = args.in[global];
  if (kForgotten != 1) SyncBlock();
  for (unsigned half = Threads() / 2; half > 0; half /= 2) {
    if (Thread() < half) shared[Thread()] += shared[Thread() + half];
    if (kForgotten != 2) SyncBlock();
  }
  args.out[global] = shared[0];
}

// How many of the seeds 0..count-1 give a wrong sum.
int WrongSums(void (*kernel)(SumArgs), unsigned seeds) {
  constexpr unsigned kBlocks = 3, kThreads = 64;
  std::vector<int> in(kBlocks * kThreads), out(in.size()), expected(in.size());
  std::iota(in.begin(), in.end(), 1);
  for (unsigned i = 0; i < in.size(); ++i) {
    const auto block = in.begin() + i / kThreads * kThreads;
    expected[i] = std::accumulate(block, block + kThreads, 0);
  }
  int wrong = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    const LaunchShape shape = {.blocks_x = kBlocks, .threads = kThreads, .shared_bytes = kThreads * sizeof(int)};
    Emulate(shape, kernel, {in.data(), out.data()}, {.seed = seed, .blocks_in_flight = 1 + seed % 4});
    wrong += out != expected;
  }
  return wrong;
}

TEST(SimtEmulatorTest, RunsABlocksThreadsTogether) { EXPECT_EQ(WrongSums(TreeSum<0>, 200), 0); }

TEST(SimtEmulatorTest, AForgottenSyncShowsInNearlyEveryRun) {
  EXPECT_GT(WrongSums(TreeSum<1>, 100), 90);
  EXPECT_GT(WrongSums(TreeSum<2>, 100), 90);
}

struct CountArgs {
  int* seen = nullptr;                // [blocks_y][blocks_x][threads]
  std::vector<int>* order = nullptr;  // of all threads, as they come
};

void Count(CountArgs args) {
  const unsigned index = (simt::BlockY() * BlocksX() + BlockX()) * Threads() + Thread();
  ++args.seen[index];
  args.order->push_back(static_cast<int>(index));
}

TEST(SimtEmulatorTest, RunsEveryThreadOnceInAnOrderOfTheSeed) {
  const LaunchShape shape = {.blocks_x = 7, .blocks_y = 3, .threads = 32};
  std::set<std::vector<int>> orders;
  for (const uint64_t seed : {0, 1, 2, 1}) {
    std::vector<int> seen(7 * 3 * 32), order;
    Emulate(shape, Count, {seen.data(), &order}, {.seed = seed});
    EXPECT_THAT(seen, testing::Each(1));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(SimtEmulatorTest, OneThread) {
  int seen = 0;
  std::vector<int> order;
  Emulate({}, Count, {&seen, &order});
  EXPECT_EQ(seen, 1);
}

struct WarpArgs {
  uint64_t* out = nullptr;
};

void Shuffle(WarpArgs args) {
  const uint64_t mine = 1000 * (Thread() / 32) + Thread() % 32;
  const uint64_t mirrored = simt::ShuffleXor(mine, 31);
  const float second = simt::ShuffleFrom(static_cast<float>(mine), 2);
  simt::SyncWarp();
  args.out[Thread()] = mirrored * 10000 + static_cast<uint64_t>(second);
}

TEST(SimtEmulatorTest, Shuffles) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<uint64_t> out(96);
    Emulate({.threads = 96}, Shuffle, {out.data()}, {.seed = seed});
    for (unsigned t = 0; t < 96; ++t) {
      EXPECT_EQ(out[t], (1000 * (t / 32) + 31 - t % 32) * 10000 + 1000 * (t / 32) + 2);
    }
  }
}

struct LastArgs {
  uint32_t* over = nullptr;
  uint32_t* written = nullptr;  // [blocks]
  uint32_t* seen = nullptr;     // by the last block: how many had written
  bool atomic = true;
};

// The last block to finish looks at what all have written.
void LastBlockCounts(LastArgs args) {
  args.written[BlockX()] = 1;
  uint32_t before;
  if (args.atomic) {
    before = simt::CountIn(args.over);
  } else {
    before = *args.over;
    simt::Pause();  // others may come here
    *args.over = before + 1;
  }
  if (before + 1 == BlocksX()) {
    for (unsigned b = 0; b < BlocksX(); ++b) *args.seen += args.written[b];
  }
}

// Out of 100 seeds, how often the last block saw them all.
int TimesAllSeen(bool atomic) {
  int all = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    uint32_t over = 0, seen = 0, written[10] = {};
    Emulate({.blocks_x = 10}, LastBlockCounts, {&over, written, &seen, atomic}, {.seed = seed});
    all += seen == 10;
  }
  return all;
}

TEST(SimtEmulatorTest, BlocksInFlightComeBetween) {
  EXPECT_EQ(TimesAllSeen(/*atomic=*/true), 100);
  EXPECT_LT(TimesAllSeen(/*atomic=*/false), 60);
}

struct GarbageArgs {
  int* clean = nullptr;  // [blocks]
};

// Sees NaNs before it writes.
void FindGarbage(GarbageArgs args) {
  float* const shared = reinterpret_cast<float*>(simt::SharedMemory());
  args.clean[BlockX()] = std::isnan(shared[Thread()]);
  shared[Thread()] = 0;
}

TEST(SimtEmulatorTest, EachBlockFindsNans) {
  std::vector<int> clean(20);
  Emulate({.blocks_x = 20, .threads = 1, .shared_bytes = 4}, FindGarbage, {clean.data()});
  EXPECT_THAT(clean, testing::Each(1));
}

struct WaitingArgs {
  uint64_t* word = nullptr;
  uint64_t* answer = nullptr;
};

void WaitAndAnswer(WaitingArgs args) {
  while (simt::LoadAcquireSystem(args.word) == 0) simt::Pause();
  simt::StoreReleaseSystem(args.answer, *args.word + 1);
}

struct CopyArgs {
  const float* from = nullptr;  // [4]
  float* seen = nullptr;        // [4]: before the first wait, then each group's copy after its wait, then the zeros
};
// Two groups: a copy, and what becomes zeros.
void CopiesTwice(CopyArgs args) {
  float* const shared = reinterpret_cast<float*>(simt::SharedMemory());
  const auto* const from = reinterpret_cast<const std::byte*>(args.from);
  shared[0] = 5;
  simt::CopyAsync(simt::SharedMemory(), from, false);
  simt::CommitCopies();
  simt::CopyAsync(simt::SharedMemory() + 16, from, true);
  simt::CommitCopies();
  args.seen[0] = shared[0];
  simt::WaitCopies<1>();
  args.seen[1] = shared[3];
  args.seen[2] = shared[4];
  simt::WaitCopies<0>();
  args.seen[3] = shared[7];
}

TEST(SimtEmulatorTest, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) const float from[4] = {1, 2, 3, 4};
  float seen[4] = {};
  Emulate({.shared_bytes = 32}, CopiesTwice, {from, seen});
  EXPECT_TRUE(std::isnan(seen[0]));
  EXPECT_EQ(seen[1], 4);
  EXPECT_TRUE(std::isnan(seen[2]));
  EXPECT_EQ(seen[3], 0);
}

struct OvertakeArgs {
  const int* in = nullptr;  // of the kernel before
  int* early = nullptr;     // [threads]: before it was awaited...
  int* late = nullptr;      // ...and behind
};

void Overtake(OvertakeArgs args) {
  args.early[Thread()] = *args.in;
  simt::AwaitKernelBefore();
  args.late[Thread()] = *args.in;
}

TEST(SimtEmulatorTest, TheKernelBeforeComesWhenItIsAwaited) {
  int in = 1, calls = 0;
  std::vector<int> early(64), late(64);
  const auto before = [&] {
    ++calls;
    in = 2;
  };
  Emulate({.threads = 64}, Overtake, {&in, early.data(), late.data()}, {.awaits = true, .kernel_before = before});
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(early, testing::Contains(1));
  EXPECT_THAT(late, testing::Each(2));
}

TEST(SimtEmulatorTest, HostThreadsLaunchAndAnswerAtOnce) {
  constexpr int kHosts = 3;
  uint64_t words[kHosts] = {}, answers[kHosts] = {};
  std::vector<std::thread> hosts;
  for (int h = 0; h < kHosts; ++h) {
    hosts.emplace_back([&, h] { Emulate({}, WaitAndAnswer, {&words[h], &answers[h]}); });
  }
  for (int h = 0; h < kHosts; ++h) {
    std::atomic_ref(words[h]).store(10 + static_cast<uint64_t>(h), std::memory_order_release);
    while (std::atomic_ref(answers[h]).load(std::memory_order_acquire) != 11 + static_cast<uint64_t>(h)) {
      std::this_thread::yield();
    }
  }
  for (std::thread& host : hosts) host.join();
}

// ---- What ends the process

struct Nothing {};

void HalfSyncs(Nothing) {
  if (Thread() < 32) SyncBlock();
}
void SyncsElsewhere(Nothing) {
  if (Thread() < 32) {
    SyncBlock();
  } else {
    SyncBlock();
  }
}
void HalfAWarpShuffles(Nothing) {
  if (Thread() % 32 < 16) simt::ShuffleXor(1, 1);
}
void ShufflesElsewhere(Nothing) {
  if (Thread() % 2 == 0) {
    simt::ShuffleXor(1, 1);
  } else {
    simt::ShuffleXor(1, 1);
  }
}
void SyncsAndShuffles(Nothing) {
  if (Thread() % 32 != 7) simt::SyncWarp();
  SyncBlock();
}
void WritesAfterItsMemory(Nothing) {
  SyncBlock();
  if (Thread() == 1) SharedInts()[64] = 1;
}
void WritesBeforeItsMemory(Nothing) {
  if (Thread() == 1) SharedInts()[-1] = 1;
  SyncBlock();
}

void DoesNotWaitForItsCopy(Nothing) {
  simt::CopyAsync(simt::SharedMemory(), nullptr, true);
  simt::CommitCopies();
}

void AwaitsByHalf(Nothing) {
  if (Thread() < 32) simt::AwaitKernelBefore();
}

void ShowsBeforeItAwaits(OvertakeArgs args) {
  uint64_t word = static_cast<uint64_t>(*args.in);
  simt::StoreReleaseSystem(&word, 1);
  simt::AwaitKernelBefore();
}

void Launch64(void (*kernel)(Nothing)) {
  Emulate({.blocks_x = 2, .blocks_y = 5, .threads = 64, .shared_bytes = 256}, kernel, {});
}

using SimtEmulatorDeathTest = testing::Test;

TEST(SimtEmulatorDeathTest, NamesWhatIsBroken) {
  EXPECT_DEATH(Launch64(HalfSyncs),
               "simt_emulator_test.cc:[0-9]+: check failed: no thread returns while others synchr.*"
               "Nothing, block .*, thread [0-9]+ of 64: ");
  EXPECT_DEATH(Launch64(SyncsElsewhere), "same SyncBlock: .* others wait at .*simt_emulator_test.cc:[0-9]+");
  EXPECT_DEATH(Launch64(HalfAWarpShuffles), "no thread returns while others synchronise");
  EXPECT_DEATH(Launch64(ShufflesElsewhere), "same shuffle: .* others wait at .*simt_emulator_test.cc:[0-9]+");
  EXPECT_DEATH(
      Launch64(SyncsAndShuffles),
      "somebody can go on: .* 0 threads .* returned, 2 wait for ever: SyncBlock at .* 62 wait for ever: SyncWarp at");
  EXPECT_DEATH(Launch64(WritesAfterItsMemory), "a block stays within its shared memory");
  EXPECT_DEATH(Launch64(WritesBeforeItsMemory), "simt_emulator_test.cc.* a block stays within its shared memory");
  EXPECT_DEATH(Emulate({.threads = 1}, HalfAWarpShuffles, {}), "its warp has one lane only");
  EXPECT_DEATH(Launch64(DoesNotWaitForItsCopy), "a thread waits for its copies");
  EXPECT_DEATH(Emulate({.threads = 64}, AwaitsByHalf, {}, {.awaits = true}), "a thread awaits the kernel before");
  const int in = 0;
  EXPECT_DEATH(Emulate({}, ShowsBeforeItAwaits, {&in}, {.awaits = true}), "a thread awaits the kernel before");
}

struct PackArgs {
  const float* from = nullptr;
};
void LoadsFour(PackArgs args) { simt::LoadPack<4>(args.from); }

TEST(SimtEmulatorDeathTest, RefusesWhatIsNotAligned) {
  alignas(16) const float values[8] = {};
  Emulate({}, LoadsFour, {values + 4});
  EXPECT_DEATH(Emulate({}, LoadsFour, {values + 2}), "only where they are aligned");
}

}  // namespace
}  // namespace fastdecode
