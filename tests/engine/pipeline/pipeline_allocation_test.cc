#include <gtest/gtest.h>

#include "tests/allocation_count.h"
#include "tests/engine/pipeline/sim_engine.h"

namespace fastdecode {
namespace {

SimOptions Options() {
  SimOptions options;
  options.limits = {.micro_batches = 2, .rows_max = 40, .sequences_max = 8, .chunk_tokens_max = 16, .ready_max = 64};
  return options;
}

// Turns of the pipeline until `done`, and what they alone allocate.
template <class Done>
uint64_t CountTurns(SimEngine* engine, Done&& done) {
  uint64_t allocations = 0;
  for (int turn = 0; turn < 50'000 && !done(); ++turn) {
    const uint64_t before = AllocationCount();
    engine->pipeline().TurnOnce();
    allocations += AllocationCount() - before;
    engine->TakeEvents();
    engine->link(0)->Turn();
    engine->link(1)->Turn();
  }
  EXPECT_TRUE(done());
  return allocations;
}

TEST(PipelineAllocationTest, SteadyDecodeAllocatesNothing) {
  SimEngine engine(Options());
  engine.AddHome(0, 100);
  engine.AddHome(1, 100);
  for (uint64_t i = 0; i < 12; ++i) engine.Submit(SimEngine::Prompt(20, i, 50), {.max_tokens = 400});
  CountTurns(&engine, [&] { return engine.requests().back()->announced >= 5; });
  const uint64_t steps = engine.pipeline().statistics().steps.value();
  EXPECT_EQ(CountTurns(&engine, [&] { return engine.requests().back()->announced >= 300; }), 0u);
  EXPECT_GT(engine.pipeline().statistics().steps.value(), steps + 500);
  // Nor does listening to the homes.
  for (int i = 0; i < 2; ++i) engine.link(i)->SayPages();
  const PipelineStatistics& statistics = engine.pipeline().statistics();
  EXPECT_EQ(CountTurns(&engine, [&] { return statistics.home_pages[1].Read().has_value(); }), 0u);
}

// Joining, chunks, preemption, ending, cancelling and losing a home allocate nothing either.
TEST(PipelineAllocationTest, NorDoBoundariesOfAnyKind) {
  SimEngine engine(Options());
  engine.AddHome(0, 12);
  engine.AddHome(1, 12);
  // Rosters as long as they get, so that the fakes have the memory to hold them.
  for (uint64_t i = 0; i < 40; ++i)
    engine.Submit(SimEngine::Prompt(20, i, 50), {.max_tokens = 1 + static_cast<uint32_t>(i)});
  ASSERT_TRUE(engine.RunAll(50'000));
  for (int i = 0; i < 2; ++i) engine.link(i)->TakeMemory();

  for (uint64_t i = 0; i < 30; ++i) {
    const int prompt_logprobs = i % 3 == 0 ? static_cast<int>(i % 6) : -1;
    engine.Submit(SimEngine::Prompt(1 + 3 * static_cast<uint32_t>(i), i, 50),
                  {.max_tokens = 60, .prompt_logprobs = prompt_logprobs});
  }
  engine.Cancel(engine.requests()[45].get());
  engine.Cancel(engine.requests()[65].get());
  const uint64_t preemptions = engine.pipeline().batcher().preemptions();
  uint64_t allocations = CountTurns(&engine, [&] { return engine.unfinished() < 15; });
  EXPECT_GT(engine.pipeline().batcher().preemptions(), preemptions);
  engine.link(1)->MarkLost("cut");
  allocations += CountTurns(&engine, [&] { return engine.unfinished() == 0; });
  EXPECT_EQ(allocations, 0u);
}

TEST(PipelineAllocationTest, TheCountSees) {
  const uint64_t before = AllocationCount();
  ::operator delete(::operator new(8));
  EXPECT_EQ(AllocationCount(), before + 1);
}

}  // namespace
}  // namespace fastdecode
