// The prefix cache: what is found is not computed again, what is found is right, and what is kept makes room.
#include <gtest/gtest.h>

#include <vector>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

SimOptions CacheOptions() {
  SimOptions options = SmallOptions();
  options.limits.cached_max = 16;
  options.limits.cached_blocks_max = 256;
  return options;
}

std::vector<int32_t> Join(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The tokens of a request and of its answer, as a next prompt has them.
std::vector<int32_t> Said(const SimRequest& request) {
  const std::vector<int32_t>& tokens = request.sequence.log.tokens;
  return {tokens.begin(), tokens.begin() + request.sequence.prompt_tokens + request.announced};
}

// It ends with the tokens that it should have. Returns the rows that it took.
uint64_t Run(SimEngine* engine, SimRequest* request) {
  const uint64_t before = engine->pipeline().statistics().rows.value();
  EXPECT_TRUE(engine->RunAll(kTurnsMax));
  engine->CheckTokens(*request);
  engine->CheckPages();
  return engine->pipeline().statistics().rows.value() - before;
}

uint64_t RunOne(SimEngine* engine, const std::vector<int32_t>& prompt, const SimAsk& ask = {}) {
  return Run(engine, engine->Submit(prompt, ask));
}

uint32_t Cached(const SimEngine& engine) { return engine.requests().back()->sequence.times.cached_tokens; }

TEST(PipelineCacheTest, FullPagesOfAPromptAreFoundAgain) {
  for (const bool open_pages : {false, true}) {
    SCOPED_TRACE(open_pages);
    SimOptions options = CacheOptions();
    options.limits.open_pages = open_pages;
    SimEngine engine(options);
    engine.AddHome(0, 100);
    EXPECT_EQ(RunOne(&engine, Prompt(100)), 100 + 7u);
    EXPECT_EQ(Cached(engine), 0u);
    EXPECT_EQ(RunOne(&engine, Prompt(100)), 4 + 7u);
    EXPECT_EQ(Cached(engine), 96u);
    // Another end of the third page: two are the same.
    EXPECT_EQ(RunOne(&engine, Join(Prompt(90), Prompt(30, 2))), 120 - 64 + 7u);
    EXPECT_EQ(Cached(engine), 64u);
    EXPECT_EQ(RunOne(&engine, Prompt(31)), 31 + 7u) << "there is no full page";
    const PipelineStatistics& statistics = engine.pipeline().statistics();
    EXPECT_EQ(statistics.prefix_tokens.value(), 100 + 100 + 120 + 31u);
    EXPECT_EQ(statistics.home_cached_tokens[0].value(), 96 + 64u);
    engine.CheckNothingLeft();
  }
}

// The last token's row is computed, whose logits are wanted: of a page that is shared a copy is written to. With open
// pages its whole page is computed.
TEST(PipelineCacheTest, APromptThatIsFoundAsAWholeComputesItsLastRow) {
  for (const bool open_pages : {false, true}) {
    SCOPED_TRACE(open_pages);
    SimOptions options = CacheOptions();
    options.limits.open_pages = open_pages;
    SimEngine engine(options);
    engine.AddHome(0, 100);
    RunOne(&engine, Prompt(96));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(RunOne(&engine, Prompt(96)), (open_pages ? 32 : 1) + 7u);
      EXPECT_EQ(Cached(engine), open_pages ? 64u : 95u);
    }
    EXPECT_EQ(engine.pipeline().batcher().pages_cached(0), 3u) << "the same pages each time";
    engine.CheckNothingLeft();
  }
}

// What was generated is found as well, unless homes may have another kernel for it than for a prompt.
TEST(PipelineCacheTest, TheNextTurnOfAChatFindsTheAnswer) {
  for (const bool kernel : {false, true}) {
    SCOPED_TRACE(kernel);
    SimOptions options = CacheOptions();
    options.limits.prompts_have_kernel = kernel;
    SimEngine engine(options);
    engine.AddHome(0, 100);
    RunOne(&engine, Prompt(40), {.max_tokens = 90});
    const std::vector<int32_t> turn = Join(Said(*engine.requests().back()), Prompt(20, 2));
    ASSERT_EQ(turn.size(), 150u);
    RunOne(&engine, turn);
    // The last token of the answer was never computed, and 129 are four pages.
    EXPECT_EQ(Cached(engine), kernel ? 32u : 128u);
    engine.CheckNothingLeft();
  }
}

// Its rows of a prompt are a prompt's when it is computed again, and the others are not: it finds its own.
TEST(PipelineCacheTest, WhoeverGivesWayFindsWhatItHadComputed) {
  for (const bool kernel : {false, true}) {
    SCOPED_TRACE(kernel);
    SimOptions options = CacheOptions();
    options.limits.micro_batches = 1;
    options.limits.prompts_have_kernel = kernel;
    SimEngine engine(options);
    engine.AddHome(0, 13);
    SimRequest* const older = engine.Submit(Prompt(40, 1), {.max_tokens = 200});
    SimRequest* const younger = engine.Submit(Prompt(40, 2), {.max_tokens = 200});
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    engine.CheckTokens(*older);
    engine.CheckTokens(*younger);
    EXPECT_EQ(older->sequence.times.preemptions, 0u);
    EXPECT_GT(younger->sequence.times.preemptions, 0u);
    EXPECT_EQ(younger->sequence.times.cached_tokens, 0u) << "that is of who computed it";
    // Without what it finds it would have computed all of its first 190 tokens or so again.
    EXPECT_LT(engine.pipeline().statistics().rows.value(), 2 * 240 + 120u);
    engine.CheckNothingLeft();
  }
}

TEST(PipelineCacheTest, RunningSequencesAreFoundToo) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  SimRequest* const first = engine.Submit(Prompt(70), {.max_tokens = 100});
  RunUntil(&engine, [&] { return first->announced > 5; });
  SimRequest* const second = engine.Submit(Join(Prompt(70), Prompt(10, 2)), {.max_tokens = 100});
  RunUntil(&engine, [&] { return second->announced > 5; });
  EXPECT_EQ(second->sequence.times.cached_tokens, 64u);
  EXPECT_EQ(engine.pipeline().batcher().pages_used(0), 2u + 1u + 1u);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) engine.CheckTokens(*request);
  engine.CheckNothingLeft();
}

// Each computes its prompt, since none was there; what comes then finds one of them.
TEST(PipelineCacheTest, EqualPromptsAtOnceAreKeptOnce) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  for (int i = 0; i < 6; ++i) engine.Submit(Prompt(64), {.max_tokens = 1});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) engine.CheckTokens(*request);
  EXPECT_EQ(engine.pipeline().batcher().pages_cached(0), 2u);
  EXPECT_EQ(engine.pipeline().batcher().cache().kept(), 1u);
  RunOne(&engine, Prompt(64));
  EXPECT_EQ(Cached(engine), 63u);
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, ASaltKeepsThemApart) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  RunOne(&engine, Prompt(64), {.cache_salt = "one"});
  for (const char* salt : {"", "two", "one"}) {
    RunOne(&engine, Prompt(64), {.cache_salt = salt});
    EXPECT_EQ(Cached(engine), std::string(salt) == "one" ? 63u : 0u) << salt;
  }
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, WhoWantsNoneFindsAndLeavesNothing) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  RunOne(&engine, Prompt(64), {.prefix_cache = false});
  EXPECT_EQ(engine.pipeline().batcher().pages_used(0), 0u);
  RunOne(&engine, Prompt(64));
  EXPECT_EQ(Cached(engine), 0u);
  EXPECT_EQ(RunOne(&engine, Prompt(64), {.prefix_cache = false}), 64 + 7u);
  // What a home has made up is nobody's prefix.
  RunOne(&engine, Prompt(96, 2), {.fill_tokens = 80});
  RunOne(&engine, Prompt(96, 2));
  EXPECT_EQ(Cached(engine), 0u);
  engine.CheckNothingLeft();
}

// All rows of the prompt are wanted.
TEST(PipelineCacheTest, WhoWantsThePromptsLogitsComputesThem) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  RunOne(&engine, Prompt(64));
  EXPECT_EQ(RunOne(&engine, Prompt(64), {.prompt_logits = true}), 64 + 7u);
  EXPECT_EQ(RunOne(&engine, Prompt(64), {.prompt_logprobs = 2}), 64 + 7u);
  EXPECT_EQ(RunOne(&engine, Prompt(64)), 1 + 7u);
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, AnswersOfAGroupFindThePromptAndAreFound) {
  for (const bool open_pages : {false, true}) {
    SCOPED_TRACE(open_pages);
    SimOptions options = CacheOptions();
    options.limits.open_pages = open_pages;
    SimEngine engine(options);
    engine.AddHome(0, 100);
    RunOne(&engine, Prompt(70));
    std::vector<SimAsk> asks(4, {.max_tokens = 60});
    for (size_t i = 0; i < asks.size(); ++i) asks[i].seed = i;
    const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(70), asks);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (SimRequest* request : group) {
      engine.CheckTokens(*request);
      EXPECT_EQ(request->sequence.times.cached_tokens, 64u);
    }
    for (SimRequest* request : group) {
      RunOne(&engine, Join(Said(*request), {1, 2}));
      EXPECT_EQ(Cached(engine), 128u);
    }
    engine.CheckNothingLeft();
  }
}

// Three are kept, and the first one is used again; then pages are needed.
TEST(PipelineCacheTest, WhatWasNotUsedForLongestGoesFirst) {
  SimOptions options = CacheOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  engine.AddHome(0, 12);
  for (uint64_t i = 1; i <= 3; ++i) RunOne(&engine, Prompt(96, i), {.max_tokens = 1});
  EXPECT_EQ(engine.pipeline().batcher().pages_cached(0), 9u);
  RunOne(&engine, Prompt(96, 1), {.max_tokens = 1});
  RunOne(&engine, Prompt(130, 4), {.max_tokens = 1});
  EXPECT_EQ(engine.pipeline().batcher().preemptions(), 0u);
  // Five pages were needed and three free: two went, from the end of the second one.
  RunOne(&engine, Prompt(96, 1), {.max_tokens = 1});
  EXPECT_EQ(Cached(engine), 95u);
  RunOne(&engine, Prompt(96, 2), {.max_tokens = 1});
  EXPECT_EQ(Cached(engine), 32u);
  engine.CheckNothingLeft();
}

// A prefix that others begin with outlives them.
TEST(PipelineCacheTest, WhatOthersBeginWithGoesAfterThem) {
  SimOptions options = CacheOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  engine.AddHome(0, 10);
  for (uint64_t i = 2; i <= 5; ++i) RunOne(&engine, Join(Prompt(64), Prompt(40, i)), {.max_tokens = 1});
  EXPECT_EQ(engine.pipeline().batcher().pages_cached(0), 2 + 4u);
  RunOne(&engine, Prompt(200, 9), {.max_tokens = 1});  // seven pages: three of these four go
  RunOne(&engine, Join(Prompt(64), Prompt(40, 6)), {.max_tokens = 1});
  EXPECT_EQ(Cached(engine), 64u);
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, AllThatIsKeptGoesBeforeAnybodyHasToGiveWay) {
  for (const bool open_pages : {false, true}) {
    SCOPED_TRACE(open_pages);
    SimOptions options = CacheOptions();
    options.limits.micro_batches = 1;
    options.limits.open_pages = open_pages;
    SimEngine engine(options);
    const uint32_t pages = 20;
    engine.AddHome(0, pages);
    for (uint64_t i = 1; i <= 5; ++i) RunOne(&engine, Prompt(96, i), {.max_tokens = 1});
    EXPECT_EQ(engine.pipeline().batcher().pages_cached(0), 15u);
    std::vector<SimRequest*> running;
    for (uint64_t i = 11; i <= 14; ++i) running.push_back(engine.Submit(Prompt(40, i), {.max_tokens = 130}));
    RunUntil(&engine, [&] { return engine.pipeline().batcher().preemptions() > 0; });
    // What the one had that has just left may be there.
    EXPECT_LE(engine.pipeline().batcher().cache().kept(), 1u);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (const SimRequest* request : running) engine.CheckTokens(*request);
    engine.CheckNothingLeft();
  }
}

TEST(PipelineCacheTest, NoMoreAreKeptThanThereIsRoomFor) {
  SimOptions options = CacheOptions();
  options.limits.cached_max = 3;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  for (uint64_t i = 1; i <= 6; ++i) {
    RunOne(&engine, Prompt(64, i));
    EXPECT_EQ(engine.pipeline().batcher().cache().kept(), std::min<uint64_t>(i, 3));
  }
  RunOne(&engine, Prompt(64, 4));
  EXPECT_EQ(Cached(engine), 63u);
  RunOne(&engine, Prompt(64, 3));
  EXPECT_EQ(Cached(engine), 0u);
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, BlocksRunOutAndTheOldestGo) {
  SimOptions options = CacheOptions();
  options.limits.cached_blocks_max = 8;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  for (uint64_t i = 1; i <= 12; ++i) RunOne(&engine, Prompt(96 + 32 * (i % 3), i));
  RunOne(&engine, Prompt(96, 12));
  EXPECT_EQ(Cached(engine), 95u) << "the last one is there";
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, ALostHomeTakesItsCacheWithIt) {
  SimEngine engine(CacheOptions());
  SimLink* const home = engine.AddHome(0, 100);
  RunOne(&engine, Prompt(96));
  SimRequest* const running = engine.Submit(Join(Prompt(96), Prompt(8, 2)), {.max_tokens = 60});
  RunUntil(&engine, [&] { return running->announced > 5; });
  home->MarkLost("cut");
  RunUntil(&engine, [&] { return engine.let_go(0); });
  EXPECT_EQ(engine.pipeline().batcher().cache().kept(), 0u);
  engine.AddHome(0, 100);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckTokens(*running);
  RunOne(&engine, Prompt(96));
  EXPECT_EQ(Cached(engine), 95u) << "what was computed again there is found";
  engine.CheckNothingLeft();
}

TEST(PipelineCacheTest, AHomeThatDrainsIsLeft) {
  SimOptions options = CacheOptions();
  options.limits.sequences_max = 1;  // few messages at once
  SimEngine engine(options);
  SimLink* const home = engine.AddHome(0, 100);
  for (uint64_t i = 1; i <= 8; ++i) RunOne(&engine, Prompt(64, i));
  SimRequest* const running = engine.Submit(Prompt(64, 1), {.max_tokens = 60});
  RunUntil(&engine, [&] { return running->announced > 2; });
  home->Drain();
  engine.AddHome(1, 100);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckTokens(*running);
  RunUntil(&engine, [&] { return engine.let_go(0); });
  EXPECT_TRUE(home->home().left());
  RunOne(&engine, Prompt(64, 1));
  EXPECT_EQ(Cached(engine), 0u);
  engine.CheckNothingLeft();
}

// Half of the requests begin alike, and are where that is stored.
TEST(PipelineCacheTest, SequencesGoWhereTheirPrefixIs) {
  SimEngine engine(CacheOptions());
  engine.AddHome(0, 100);
  engine.AddHome(1, 100);
  RunOne(&engine, Prompt(128, 1));
  const int home = engine.pipeline().batcher().pages_cached(0) > 0 ? 0 : 1;
  for (uint64_t i = 2; i <= 4; ++i) {
    RunOne(&engine, Join(Prompt(128, 1), Prompt(10, i)));
    EXPECT_EQ(Cached(engine), 128u);
  }
  EXPECT_EQ(engine.pipeline().batcher().pages_cached(1 - home), 0u);
  engine.CheckNothingLeft();
}

// What was stored by a sequence whose row failed is not used.
TEST(PipelineCacheTest, WhatFailedIsNotKept) {
  SimEngine engine(CacheOptions());
  SimLink* const home = engine.AddHome(0, 100);
  SimRequest* const bad = engine.Submit(Prompt(100), {.max_tokens = 50});
  RunUntil(&engine, [&] { return bad->announced > 3; });
  home->home().SpoilRow(bad->sequence.id);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(bad->reason, FinishReason::kBadRow);
  RunOne(&engine, Prompt(100));
  EXPECT_EQ(Cached(engine), 0u);
  engine.CheckNothingLeft();
}

// Eight turns, each of 40 tokens of a user and 60 of an answer, behind a system prompt.
TEST(PipelineCacheTest, AChatComputesLittleTwice) {
  SimOptions options = CacheOptions();
  options.context_max = 1100;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  std::vector<int32_t> prompt = Prompt(200);
  uint64_t asked = 0, found = 0;
  for (uint64_t turn = 1; turn <= 8; ++turn) {
    prompt = Join(prompt, Prompt(40, turn));
    RunOne(&engine, prompt, {.max_tokens = 60});
    asked += prompt.size();
    found += Cached(engine);
    prompt = Said(*engine.requests().back());
  }
  EXPECT_GT(static_cast<double>(found) / static_cast<double>(asked), 0.75);
  engine.CheckNothingLeft();
}

}  // namespace
}  // namespace fastdecode
