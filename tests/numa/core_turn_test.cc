#include "numa/core_turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "numa/parker.h"
#include "numa/spin.h"

namespace fastdecode {
namespace {

// Numbers that no other test uses: threads take turns by the number, whether or not they are pinned there.
constexpr int kCore = 1'000'001;
constexpr int kOtherCore = 1'000'002;

void PassUntil(const std::atomic<bool>& done) {
  while (!done.load(std::memory_order_acquire)) {
    if (!CoreTurn::PassOn()) std::this_thread::yield();
  }
}

// A plain variable, so that ThreadSanitizer sees turns that do not order what is done in them.
TEST(CoreTurnTest, OneThreadAtATimeHasTheTurn) {
  constexpr int kThreads = 4, kRounds = 5000;
  int counter = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&counter] {
      const CoreTurn turn(kCore);
      for (int i = 0; i < kRounds; ++i) {
        const int before = counter;
        if (i % 64 == 0) std::this_thread::yield();
        counter = before + 1;
        CoreTurn::PassOn();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter, kThreads * kRounds);
}

// Once all are there, each has every third turn.
TEST(CoreTurnTest, TurnsGoRound) {
  constexpr int kThreads = 3, kTurns = 300;
  std::vector<int> order;  // guarded by the turn
  int arrived = 0;         // guarded by the turn
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const CoreTurn turn(kCore);
      ++arrived;
      while (arrived < kThreads) {
        if (!CoreTurn::PassOn()) std::this_thread::yield();
      }
      for (int i = 0; i < kTurns; ++i) {
        order.push_back(t);
        EXPECT_TRUE(CoreTurn::PassOn() || i > kTurns - 3) << "nobody waited in turn " << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(order.size(), size_t{kThreads * kTurns});
  for (size_t i = kThreads; i < order.size() - kThreads; ++i) ASSERT_EQ(order[i], order[i - kThreads]) << i;
}

TEST(CoreTurnTest, NobodyIsWaitedForWhoIsNotThere) {
  const CoreTurn turn(kCore);
  EXPECT_FALSE(CoreTurn::PassOn());
  std::atomic<bool> done{false};
  std::thread other([&done] {
    const CoreTurn turn(kOtherCore);  // at once, since this is another core
    EXPECT_FALSE(CoreTurn::PassOn());
    done.store(true, std::memory_order_release);
  });
  other.join();
  EXPECT_TRUE(done);
}

TEST(CoreTurnTest, AThreadThatSharesNoCoreTakesNoTurns) {
  EXPECT_FALSE(CoreTurn::PassOn());
  const CoreTurn turn(kCore);
  std::thread([] {
    const CoreTurn none(-1);
    EXPECT_FALSE(CoreTurn::PassOn());
  }).join();
}

// The sleeper can be woken only by a thread that needs its turn first.
TEST(CoreTurnTest, AThreadThatSleepsGivesItsTurnAway) {
  ParkWord word;
  std::atomic<bool> has_turn{false};
  std::thread sleeper([&] {
    const CoreTurn turn(kCore);
    has_turn.store(true, std::memory_order_release);
    Parker parker(&word);
    parker.Arm();
    parker.Sleep(Parker::kForever);
    EXPECT_EQ(word.state.load(), Parker::kAwake);
  });
  while (!has_turn.load(std::memory_order_acquire)) std::this_thread::yield();
  const CoreTurn turn(kCore);
  Parker(&word).Ring();
  CoreTurn::PassOn();
  // A spurious wake-up would do, too: the sleeper then ends by itself. Either way it needs turns that this thread
  // gives.
  std::atomic<bool> joined{false};
  std::thread joiner([&] {
    sleeper.join();
    joined.store(true, std::memory_order_release);
  });
  PassUntil(joined);
  joiner.join();
}

// What polls in PollMode::kTurns lets the other thread of its core work, whatever the kernel's scheduler would do.
TEST(CoreTurnTest, PollsPassTheTurn) {
  int ball = 0;  // guarded by the turn
  constexpr int kRounds = 2000;
  const auto play = [&ball](int mine) {
    const CoreTurn turn(kCore);
    for (int i = 0; i < kRounds; ++i) {
      PollBackoff backoff(PollMode::kTurns, mine == 0 ? 0 : 3);
      while (ball != mine) backoff.Idle();
      ball = 1 - mine;
    }
  };
  TickClock::Get();
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(ball, 0);
}

}  // namespace
}  // namespace fastdecode
