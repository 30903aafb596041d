#include "numa/ticket_team.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "numa/clock.h"

namespace fastdecode {
namespace {

std::vector<int> Unpinned(int threads) { return std::vector<int>(static_cast<size_t>(threads), -1); }

// Every thread adds to its own slot; slots are plain memory, so that TSan sees a missing happens-before.
struct Slots {
  std::vector<uint64_t> values;
  uint64_t added = 1;
};

void AddToOwnSlot(void* context, int thread_index, int thread_count) {
  Slots* const slots = static_cast<Slots*>(context);
  ASSERT_EQ(static_cast<size_t>(thread_count), slots->values.size());
  slots->values[static_cast<size_t>(thread_index)] += slots->added;
}

TEST(TicketTeamTest, EveryThreadDoesItsShareEveryTime) {
  for (const int threads : {1, 2, 3, 5}) {
    TicketTeam team("team", Unpinned(threads), PollMode::kYield);
    Slots slots{std::vector<uint64_t>(static_cast<size_t>(threads)), 0};
    uint64_t expected = 0;
    for (uint64_t i = 0; i < 2000; ++i) {
      slots.added = i;
      expected += i;
      team.Run(&AddToOwnSlot, &slots);
      for (const uint64_t value : slots.values) ASSERT_EQ(value, expected);
    }
  }
}

TEST(TicketTeamTest, OwnerMayDoOtherThingsMeanwhile) {
  TicketTeam team("team", Unpinned(3), PollMode::kYield);
  Slots slots{std::vector<uint64_t>(3), 1};
  for (int i = 0; i < 200; ++i) {
    team.Start(&AddToOwnSlot, &slots);
    AddToOwnSlot(&slots, 0, 3);
    PollBackoff backoff(PollMode::kYield);
    while (!team.Done()) backoff.Idle();
  }
  EXPECT_EQ(std::accumulate(slots.values.begin(), slots.values.end(), uint64_t{0}), 600u);
}

// S-Part and home: the owner of one team waits for the other's, on the same cores, and neither may stop the other's
// threads, at work, in barriers, parked or ending.
TEST(TicketTeamTest, TeamsThatShareTheirCoresTakeTurns) {
  constexpr int kUnits = 500;
  const std::vector<int> cores = {0, 1};
  std::atomic<int> done[2] = {};
  const auto run = [&](int mine) {
    TicketTeam team("shared", cores, PollMode::kTurns);
    struct Unit {
      TicketTeam* team;
      std::vector<int> begun;
    } unit = {&team, {0, 0}};
    {
      const CoreTurn turn(cores[0]);
      for (int i = 0; i < kUnits; ++i) {
        PollBackoff backoff(PollMode::kTurns);
        while (done[1 - mine].load(std::memory_order_acquire) < i + mine) backoff.Idle();
        team.Run(
            [](void* context, int thread, int) {
              Unit* const unit = static_cast<Unit*>(context);
              ++unit->begun[static_cast<size_t>(thread)];
              unit->team->Barrier(thread);
              EXPECT_EQ(unit->begun[0], unit->begun[1]);
              unit->team->Barrier(thread);
            },
            &unit);
        if (i % 50 == 0) team.Park();
        done[mine].store(i + 1, std::memory_order_release);
      }
    }
    EXPECT_EQ(unit.begun, std::vector<int>(2, kUnits));
  };
  TickClock::Get();
  PinnedThread other("other", cores[0], [&] { run(1); });
  PinnedThread("one", cores[0], [&] { run(0); }).Join();
  other.Join();
}

// Neighbours exchange values across barriers; a thread that runs ahead or behind reads the wrong round.
struct Rounds {
  TicketTeam* team;
  std::vector<uint64_t> written;
  std::atomic<int> wrong{0};
};

void ExchangeAcrossBarriers(void* context, int thread_index, int thread_count) {
  Rounds* const rounds = static_cast<Rounds*>(context);
  const size_t own = static_cast<size_t>(thread_index);
  const size_t next = static_cast<size_t>((thread_index + 1) % thread_count);
  for (int i = 0; i < 50; ++i) {
    const uint64_t value = ++rounds->written[own];
    rounds->team->Barrier(thread_index);
    if (rounds->written[next] != value) rounds->wrong.fetch_add(1);
    rounds->team->Barrier(thread_index);
  }
}

TEST(TicketTeamTest, BarrierSeparatesRounds) {
  for (const int threads : {1, 2, 4}) {
    TicketTeam team("team", Unpinned(threads), PollMode::kYield);
    Rounds rounds{&team, std::vector<uint64_t>(static_cast<size_t>(threads))};
    for (int i = 0; i < 20; ++i) team.Run(&ExchangeAcrossBarriers, &rounds);
    EXPECT_EQ(rounds.wrong.load(), 0);
    for (const uint64_t value : rounds.written) EXPECT_EQ(value, 1000u);
  }
}

TEST(TicketTeamTest, ParksAndWakes) {
  TicketTeam team("team", Unpinned(3), PollMode::kYield);
  Slots slots{std::vector<uint64_t>(3), 1};
  for (uint64_t i = 1; i <= 2000; ++i) {
    team.Park();
    EXPECT_TRUE(team.parked());
    if (i % 500 == 0) usleep(2000);  // so that they do sleep
    team.Run(&AddToOwnSlot, &slots);
    EXPECT_FALSE(team.parked());
    for (const uint64_t value : slots.values) ASSERT_EQ(value, i);
  }
}

// As Linux sees it: who spins is not asleep.
TEST(TicketTeamTest, AParkedHelperSleeps) {
  TicketTeam team("team", Unpinned(2), PollMode::kSpin);
  pid_t threads[2] = {};
  team.Run([](void* context, int thread_index, int) { static_cast<pid_t*>(context)[thread_index] = gettid(); },
           threads);
  team.Park();
  const uint64_t deadline_ns = NowNs() + 60'000'000'000;
  for (std::string line; line.find(") S ") == std::string::npos; usleep(1000)) {  // "123 (name) S ..."
    ASSERT_LT(NowNs(), deadline_ns) << line;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(threads[1]) + "/stat"), line);
  }
}

TEST(TicketTeamTest, AParkedTeamEnds) {
  TicketTeam team("team", Unpinned(3), PollMode::kYield);
  team.Park();
  usleep(2000);
}

TEST(TicketTeamTest, StartingTwiceIsABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        TicketTeam team("team", Unpinned(2), PollMode::kYield);
        const auto forever = [](void*, int, int) {
          for (;;) usleep(1000);
        };
        team.Start(forever, nullptr);
        team.Start(forever, nullptr);
      },
      "still at its last unit of work");
}

TEST(TicketTeamTest, HelpersFlushDenormalsToZero) {
  struct Result {
    float values[2];
  } result = {{-1, -1}};
  const auto halve_smallest = [](void* context, int thread_index, int) {
    volatile float smallest = std::numeric_limits<float>::min();
    static_cast<Result*>(context)->values[thread_index] = smallest / 2;
  };
  SetFlushDenormals();
  TicketTeam team("team", Unpinned(2), PollMode::kYield);
  team.Run(halve_smallest, &result);
  EXPECT_EQ(result.values[0], 0.0f);
  EXPECT_EQ(result.values[1], 0.0f);
}

}  // namespace
}  // namespace fastdecode
