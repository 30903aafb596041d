#include "numa/parker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "numa/clock.h"

namespace fastdecode {
namespace {

constexpr uint64_t kLongNs = 60'000'000'000;  // a lost wake-up shows as a sleep of this length

// A sleep may end early for no reason, but not every one.
TEST(ParkerTest, SleepsUntilTheTimeout) {
  constexpr uint64_t kTimeoutNs = 5'000'000;
  ParkWord word;
  Parker parker(&word);
  uint64_t longest_ns = 0;
  for (int i = 0; i < 20 && longest_ns < kTimeoutNs; ++i) {
    parker.Arm();
    const uint64_t begin = NowNs();
    parker.Sleep(kTimeoutNs);
    longest_ns = std::max(longest_ns, NowNs() - begin);
    EXPECT_EQ(word.state.load(), Parker::kAwake);
  }
  EXPECT_GE(longest_ns, kTimeoutNs);
}

TEST(ParkerTest, ARingBetweenArmAndSleepPreventsTheSleep) {
  ParkWord word;
  Parker parker(&word);
  parker.Arm();
  parker.Ring();
  EXPECT_EQ(word.state.load(), Parker::kAwake);
  parker.Sleep(Parker::kForever);  // returns, or the test times out
}

TEST(ParkerTest, RingWithoutASleeperLeavesTheWordAlone) {
  ParkWord word;
  Parker parker(&word);
  parker.Ring();
  parker.RingAfterRelease();
  EXPECT_EQ(word.state.load(), Parker::kAwake);
}

// Rounds of one item each way, so that both threads sleep all the time. No wake-up may be lost: the whole takes far
// less than one timeout.
template <class Publish, class Peek>
void PingPong(const Publish& publish, const Peek& peek, uint32_t rounds) {
  struct Side {
    ParkWord word;
    CacheAligned<std::atomic<uint32_t>> work{};
  };
  Side sides[2];
  uint32_t sleeps_in_full = 0;
  const auto await = [&](Side* own, uint32_t wanted, uint32_t* slept_in_full) {
    Parker parker(&own->word);
    while (peek(own->work.value) < wanted) {
      parker.Arm();
      if (peek(own->work.value) >= wanted) {
        parker.Disarm();
        break;
      }
      const uint64_t begin = NowNs();
      parker.Sleep(kLongNs);
      if (NowNs() - begin >= kLongNs) ++*slept_in_full;
    }
  };
  std::thread other([&] {
    uint32_t ignored = 0;
    for (uint32_t i = 1; i <= rounds; ++i) {
      await(&sides[1], i, &ignored);
      publish(&sides[0].work.value, &sides[0].word, i);
    }
  });
  for (uint32_t i = 1; i <= rounds; ++i) {
    publish(&sides[1].work.value, &sides[1].word, i);
    await(&sides[0], i, &sleeps_in_full);
  }
  other.join();
  EXPECT_EQ(sleeps_in_full, 0u);
}

TEST(ParkerTest, RingLosesNoWakeUp) {
  PingPong(
      [](std::atomic<uint32_t>* work, ParkWord* word, uint32_t value) {
        work->store(value, std::memory_order_seq_cst);
        Parker(word).Ring();
      },
      [](const std::atomic<uint32_t>& work) { return work.load(std::memory_order_seq_cst); }, 20'000);
}

TEST(ParkerTest, RingAfterReleaseLosesNoWakeUp) {
  PingPong(
      [](std::atomic<uint32_t>* work, ParkWord* word, uint32_t value) {
        work->store(value, std::memory_order_release);
        Parker(word).RingAfterRelease();
      },
      [](const std::atomic<uint32_t>& work) { return work.load(std::memory_order_acquire); }, 20'000);
}

TEST(ParkerTest, RingsAnotherProcess) {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  struct Shared {
    ParkWord word;
    CacheAligned<std::atomic<uint32_t>> work;
  };
  Shared* const shared = static_cast<Shared*>(memory);  // zero bytes are the initial state
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Parker parker(&shared->word);
    const uint64_t begin = NowNs();
    while (shared->work.value.load(std::memory_order_seq_cst) == 0) {
      parker.Arm();
      if (shared->work.value.load(std::memory_order_seq_cst) == 0) parker.Sleep(kLongNs);
    }
    _exit(NowNs() - begin < kLongNs ? 0 : 1);
  }
  while (shared->word.state.load(std::memory_order_acquire) != Parker::kArmed) usleep(100);
  usleep(2000);  // most likely asleep by now
  shared->work.value.store(1, std::memory_order_seq_cst);
  Parker(&shared->word).Ring();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  munmap(memory, 4096);
}

}  // namespace
}  // namespace fastdecode
