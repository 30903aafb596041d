#include "engine/rpart/home.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/rpart/rpart_shape.h"
#include "rdma/shm/local_link.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// Runs whole sequences to their lengths, in chunks of `chunk` rows (the smallest ones from token 480 on only), side by
// side.
std::map<uint64_t, std::vector<std::byte>> Prefill(TestEngine* engine, const std::vector<uint64_t>& sequences,
                                                   uint32_t tokens, uint32_t chunk) {
  std::map<uint64_t, std::vector<std::byte>> o;  // by sequence: [position][layer], so that chunking does not show
  std::map<std::pair<uint64_t, uint32_t>, std::vector<std::byte>> rows;
  uint32_t count = 0;
  for (uint32_t position = 0; position < tokens; position += count) {
    count = std::min(position < 480 && chunk < 20 ? 20 : chunk, tokens - position);
    std::vector<TestEntry> entries;
    for (const uint64_t sequence : sequences) entries.push_back({sequence, position, count, sequence});
    const TestStep step = engine->Step(0, entries);
    EXPECT_FALSE(step.lost) << engine->link().lost_cause();
    EXPECT_TRUE(step.failing_rows.empty());
    for (size_t i = 0; i < entries.size(); ++i) {
      const size_t row_bytes = step.o[i].size() / 2 / count;  // two layers
      for (uint32_t r = 0; r < count; ++r) {
        for (size_t layer = 0; layer < 2; ++layer) {
          const auto from = step.o[i].begin() + static_cast<ptrdiff_t>((layer * count + r) * row_bytes);
          std::vector<std::byte>& row = rows[{entries[i].sequence, position + r}];
          row.insert(row.end(), from, from + static_cast<ptrdiff_t>(row_bytes));
        }
      }
    }
  }
  for (auto& [key, row] : rows) o[key.first].insert(o[key.first].end(), row.begin(), row.end());
  return o;
}

struct Types {
  ElementType rows;
  KvType kv;
};

// Bits, not tolerances: nobody may see how the work was split.
class HomeBitsTest : public testing::TestWithParam<Types> {
 protected:
  static RPartShape shape() {
    RPartShape shape = SmallShape(GetParam().rows);
    shape.kv_type = static_cast<uint32_t>(GetParam().kv);
    if (GetParam().rows == ElementType::kBf16) shape.head_dim = 64;  // whole pages are packed by vectors of 512 bits
    return shape;
  }
};

TEST_P(HomeBitsTest, SameForAnyThreadCount) {
  RPartShape shape = this->shape();
  shape.max_context = 8192;
  std::vector<std::vector<std::byte>> expected;
  for (const int threads : {1, 2, 3, 7}) {
    const std::unique_ptr<Home> home = MakeTestHome(threads, 32 * kMiB);
    TestEngine engine(home.get(), shape);
    engine.Fill(1, 7000);  // one long sequence among short ones: its blocks are cut over all threads
    engine.Fill(2, 2500);
    engine.Fill(3, 5);
    std::vector<std::vector<std::byte>> o;
    for (uint32_t i = 0; i < 3; ++i) {
      const TestStep step = engine.Step(0, {{1, 7000 + i, 1, 1}, {2, 2500 + 20 * i, 20, 2}, {3, 5 + 3 * i, 3, 3}});
      ASSERT_FALSE(step.lost) << engine.link().lost_cause();
      o.insert(o.end(), step.o.begin(), step.o.end());
    }
    if (threads == 1) expected = o;
    ASSERT_TRUE(o == expected) << threads << " threads";
  }
}

TEST_P(HomeBitsTest, SameForAnyNeighboursAndChunks) {
  const RPartShape shape = this->shape();
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB);
  constexpr uint32_t kTokens = 520;
  std::map<uint64_t, std::vector<std::byte>> expected;
  for (const uint32_t chunk : {64u, 21u, 8u, 1u}) {
    TestEngine engine(home.get(), shape);
    const auto alone = Prefill(&engine, {5}, kTokens, chunk);
    if (expected.empty()) expected = alone;
    ASSERT_TRUE(alone.at(5) == expected.at(5)) << "chunks of " << chunk;
    if (chunk == 8 || chunk == 21) {
      const auto together = Prefill(&engine, {7, 6, 8}, kTokens, chunk);  // 5's rows under another name and company
      engine.Release(5);
      const auto again = Prefill(&engine, {9, 5, 10}, kTokens, chunk);
      ASSERT_TRUE(again.at(5) == expected.at(5)) << "with neighbours, chunks of " << chunk;
      ASSERT_FALSE(together.at(6) == expected.at(5)) << "all sequences give the same: the test sees nothing";
    }
    engine.link().MarkLost("test over");
    engine.AwaitEnd();
  }
}

std::string NameOf(const testing::TestParamInfo<Types>& types) {
  return std::string(ElementName(types.param.rows)) + "_" + KvTypeName(types.param.kv);
}
INSTANTIATE_TEST_SUITE_P(Types, HomeBitsTest,
                         testing::Values(Types{ElementType::kF32, KvType::kF32},
                                         Types{ElementType::kBf16, KvType::kBf16}),
                         NameOf);
#if !defined(__SANITIZE_THREAD__)  // to threads they are alike
INSTANTIATE_TEST_SUITE_P(NarrowTypes, HomeBitsTest,
                         testing::Values(Types{ElementType::kBf16, KvType::kFp16},
                                         Types{ElementType::kBf16, KvType::kInt8},
                                         Types{ElementType::kBf16, KvType::kInt4}),
                         NameOf);
#endif

TEST(HomeTest, AReplayChangesNothing) {
  const RPartShape shape = SmallShape(ElementType::kBf16);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.CheckedStep(0, {{1, 0, 50, 1}});
  const TestStep first = engine.Step(0, {{1, 50, 1, 1}});
  const TestStep again = engine.Step(0, {{1, 50, 1, 1}});
  EXPECT_TRUE(first.o == again.o);
  // What is stored stays, whatever k and v come now.
  engine.CheckedStep(0, {{1, 50, 1, 1}});
  engine.CheckedStep(0, {{1, 0, 50, 99}});
  engine.CheckedStep(0, {{1, 10, 3, 98}});
  // A replay that goes on beyond the stored length: 45 to 50 are skipped, the rest is written.
  engine.CheckedStep(0, {{1, 45, 12, 97}});
  engine.CheckedStep(0, {{1, 57, 1, 1}});
  engine.CheckedStep(0, {{1, 0, 58, 1}});
  EXPECT_EQ(engine.Stats().pages_total - engine.Stats().pages_free, 2u);
}

// Steps that end with their first layer, and others in their place: layers then differ in how far they have come, and
// so in which page was their open one.
TEST(HomeTest, AnotherStepTakesThePlaceOfAnAbandonedOneWithInt4) {
  RPartShape shape = SmallShape(ElementType::kF32);
  shape.kv_type = static_cast<uint32_t>(KvType::kInt4);
  struct Case {
    uint32_t stored;
    TestEntry abandoned, instead;
  };
  constexpr uint64_t kContent = 1;
  for (const Case& c :
       {Case{70, {1, 70, 30, kContent}, {1, 70, 10, kContent}}, Case{70, {1, 70, 30, kContent}, {1, 70, 1, kContent}},
        Case{64, {1, 60, 6, kContent}, {1, 60, 30, kContent}}, Case{64, {1, 64, 1, kContent}, {1, 64, 1, kContent}},
        Case{64, {1, 64, 30, kContent}, {1, 40, 26, kContent}}, Case{64, {1, 64, 1, kContent}, {1, 63, 1, kContent}},
        Case{31, {1, 31, 40, kContent}, {1, 31, 1, kContent}}}) {
    SCOPED_TRACE(testing::Message() << c.stored << " tokens, " << c.abandoned.tokens << " from " << c.abandoned.position
                                    << ", then " << c.instead.tokens << " from " << c.instead.position);
    const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
    TestEngine engine(home.get(), shape);
    for (uint32_t first = 0; first < c.stored; first += 50) {
      engine.CheckedStep(0, {{1, first, std::min(50u, c.stored - first), kContent}});
    }
    const uint64_t step = engine.BeginStep(0);
    engine.SendRoster(0, {c.abandoned}, step);
    engine.link().PostHop(engine.WriteRows(0, {c.abandoned}, 0));
    ReplyHeader reply;
    ASSERT_TRUE(engine.AwaitReply(&reply)) << engine.link().lost_cause();
    engine.CheckedStep(0, {c.instead});
    for (uint32_t position = std::max(c.stored, engine.Length(1)); position < 110; ++position) {
      engine.CheckedStep(0, {{1, position, 1, kContent}});
    }
  }
}

TEST(HomeTest, ARosterHoldsForManySteps) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.Fill(1, 20);
  engine.Fill(2, 30);
  engine.SendRoster(0, {{1, 20, 1, 1}, {2, 30, 1, 2}}, 7);
  for (uint64_t step = 7; step < 60; ++step) {
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      HopHeader hop = engine.WriteRows(0, {{1, static_cast<uint32_t>(13 + step), 1, 1}, {2, 30, 1, 2}}, layer);
      hop.step = step;
      engine.link().PostHop(hop);
      ReplyHeader reply;
      ASSERT_TRUE(engine.AwaitReply(&reply)) << engine.link().lost_cause();
      ASSERT_EQ(reply.status, HopStatus::kOk);
      ASSERT_EQ(reply.step, step);
    }
  }
  // 20 and 30 tokens and 53 more are 3 pages each.
  const StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.pages_total - stats.pages_free, 6u);
  EXPECT_EQ(stats.hops, 53 * shape.layers);
  EXPECT_GT(stats.busy_ns, 0u);
  EXPECT_GT(stats.kv_bytes_read, 53 * shape.layers * (20 + 30) * shape.kv_heads * shape.head_dim * 2 * 4);
}

// 300 tokens are 10 pages: one that has as many takes pieces of 8, so that two of them have room for 6 more.
TEST(HomeTest, TellsWhatIsHeldBehindASequenceThatHasGrown) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  ASSERT_GE(KvPool::RunPages(shape.attention()), 8u);
  const std::unique_ptr<Home> home = MakeTestHome(1, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.Fill(1, 300);
  StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.pages_held, 6u);
  EXPECT_EQ(stats.pages_total - stats.pages_free, 10u) << "what is held is free";
  engine.Release(1);
  stats = engine.Stats();
  EXPECT_EQ(stats.pages_held, 0u);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
}

TEST(HomeTest, TruncateAndForkFollowTheReference) {
  const RPartShape shape = SmallShape(ElementType::kBf16);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.CheckedStep(0, {{1, 0, 64, 1}});
  engine.CheckedStep(0, {{1, 64, 11, 1}});
  engine.Truncate(1, 70);
  engine.CheckedStep(0, {{1, 70, 3, 11}});  // other tokens than before
  engine.Fork(1, 73, 2);
  engine.Fork(1, 66, 3);
  EXPECT_EQ(engine.Stats().pages_total - engine.Stats().pages_free, 3u);
  engine.CheckedStep(0, {{2, 73, 1, 22}, {1, 73, 1, 1}, {3, 66, 2, 33}});  // all three go their own ways
  EXPECT_EQ(engine.Stats().pages_total - engine.Stats().pages_free, 5u);
  engine.CheckedStep(0, {{3, 68, 9, 33}, {2, 74, 1, 22}, {1, 74, 1, 1}});
  engine.Release(1);
  engine.CheckedStep(0, {{2, 75, 1, 22}, {3, 77, 1, 33}});
  EXPECT_EQ(engine.Stats().pages_total - engine.Stats().pages_free, 4u);
  engine.Release(2);
  engine.Release(3);
  const StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.sequences, 0u);
}

// A prompt, its forks, and what they go on with on their own, in company of others.
TEST(HomeTest, ForksOfALongPrefixGiveWhatPrivateCopiesGive) {
  const RPartShape shape = SmallShape(ElementType::kBf16);
  constexpr uint32_t kPrefix = 560;  // a block, and 48 tokens more
  for (const int threads : {1, 3}) {
    const std::unique_ptr<Home> home = MakeTestHome(threads, 16 * kMiB);
    TestEngine engine(home.get(), shape);
    // Fork i continues with content 10 + i; sequence 20 + i has the same tokens for itself.
    Prefill(&engine, {1}, kPrefix, 60);
    for (uint32_t position = 0; position < kPrefix; position += 20) {
      engine.Step(1, {{21, position, 20, 1}, {22, position, 20, 1}, {23, position, 20, 1}});
    }
    for (uint64_t i = 2; i <= 3; ++i) engine.Fork(1, kPrefix, i);
    const uint64_t before = engine.Stats().kv_bytes_read;
    for (uint32_t position = kPrefix; position < kPrefix + 4; ++position) {
      const TestStep forks = engine.Step(0, {{3, position, 1, 13}, {1, position, 1, 11}, {2, position, 1, 12}});
      ASSERT_FALSE(forks.lost) << engine.link().lost_cause();
      const TestStep copies = engine.Step(1, {{23, position, 1, 13}, {21, position, 1, 11}, {22, position, 1, 12}});
      ASSERT_TRUE(forks.o == copies.o) << "position " << position;
      ASSERT_FALSE(forks.o[0] == forks.o[1]) << "all sequences give the same: the test sees nothing";
    }
    // Each step of each kind: the block counts once, or three times.
    const uint64_t own_tokens = 4 * 2 * 3 * (kPrefix - 512) + 2 * 3 * (1 + 2 + 3 + 4);
    const uint64_t tokens = 4 * (1 + 3) * 512 + own_tokens;
    EXPECT_EQ(engine.Stats().kv_bytes_read - before,
              tokens * shape.layers * 2 * shape.kv_heads * shape.head_dim * shape.element_bytes());
  }
}

TEST(HomeTest, ControlBetweenTheLayersOfAStep) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.CheckedStep(0, {{1, 0, 40, 1}});
  engine.CheckedStep(1, {{2, 0, 40, 2}});
  // Micro-batch 0 is between its layers when a neighbour forks and another leaves.
  engine.SendRoster(0, {{1, 40, 1, 1}}, 9);
  HopHeader hop = engine.WriteRows(0, {{1, 40, 1, 1}}, 0);
  hop.step = 9;
  engine.link().PostHop(hop);
  ReplyHeader reply;
  ASSERT_TRUE(engine.AwaitReply(&reply));
  engine.Fork(1, 40, 5);  // shares the very page that the step is writing to
  engine.Release(2);
  hop = engine.WriteRows(0, {{1, 40, 1, 1}}, 1);
  hop.step = 9;
  engine.link().PostHop(hop);
  ASSERT_TRUE(engine.AwaitReply(&reply)) << engine.link().lost_cause();
  EXPECT_EQ(reply.status, HopStatus::kOk);
  engine.CheckedStep(1, {{5, 40, 1, 55}});
  engine.CheckedStep(1, {{5, 41, 12, 55}});
}

// Any history of steps, truncations, forks and releases gives what the reference gives, and no page is lost.
TEST(HomeTest, RandomHistoriesMatchTheReferenceAndLeakNothing) {
  RPartShape shape = SmallShape(ElementType::kF32);
  shape.max_context = 200;
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  std::mt19937 random(5);
  uint64_t next_content = 100;
  for (int i = 0; i < 250 && !testing::Test::HasFailure(); ++i) {
    const uint64_t id = random() % 6;
    const uint32_t length = engine.Length(id);
    switch (random() % 8) {
      case 0:
        if (length > 0) engine.Truncate(id, random() % (length + 1));
        break;
      case 1: {
        const uint64_t fork = 6 + random() % 4;
        if (length == 0) break;
        engine.Release(fork);
        engine.Fork(id, 1 + random() % length, fork);
        break;
      }
      case 2:
        engine.Release(random() % 10);
        break;
      default: {
        std::vector<TestEntry> entries;
        uint32_t rows = 0;
        for (uint64_t s = 0; s < 10; ++s) {
          const uint32_t stored = engine.Length(s);
          const uint32_t tokens = random() % 4 == 0 ? 1 + random() % 20 : 1;
          if (random() % 2 == 0 || stored + tokens > shape.max_context || rows + tokens > shape.max_rows) continue;
          entries.push_back({s, stored, tokens, next_content++});
          rows += tokens;
        }
        if (!entries.empty()) engine.CheckedStep(static_cast<int>(random() % 2), entries);
      }
    }
  }
  for (uint64_t s = 0; s < 10; ++s) engine.Release(s);
  const StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.sequences, 0u);
}

TEST(HomeTest, AHopWaitsForItsRoster) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  HopHeader hop = engine.WriteRows(0, {{1, 0, 1, 1}}, 0);
  hop.step = 1;
  hop.roster_version = 1;
  engine.link().PostHop(hop);
  engine.CheckedStep(1, {{2, 0, 5, 2}});  // the other micro-batch goes on meanwhile
  ReplyHeader reply;
  EXPECT_EQ(engine.link().PollReply(&reply), LinkPoll::kEmpty);
  engine.SendRoster(0, {{1, 0, 1, 1}}, 1);
  ASSERT_TRUE(engine.AwaitReply(&reply)) << engine.link().lost_cause();
  EXPECT_EQ(reply.micro_batch, 0);
  EXPECT_EQ(reply.status, HopStatus::kOk);
}

TEST(HomeTest, ParksWhenIdleAndWakesWhenRung) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  const IdleMessage idle;
  uint32_t length = 0;
  for (int i = 0; i < 40; ++i) {
    engine.Send(&idle, sizeof(idle));
    // Every other time long enough for all to be asleep; any moment must do.
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (i % 4 == 0) {
      EXPECT_EQ(engine.Stats().hops, 2 * length);
    }
    engine.CheckedStep(0, {{1, length++, 1, 1}});
  }
}

TEST(HomeTest, ALostLinkFreesAllAndTheNextPeerMayCome) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  uint64_t total = 0;
  for (int i = 0; i < 3; ++i) {
    RPartShape shape = SmallShape(i == 1 ? ElementType::kF32 : ElementType::kBf16);
    shape.layers = static_cast<uint32_t>(2 + i);
    TestEngine engine(home.get(), shape);
    EXPECT_TRUE(home->serving());
    StatsMessage stats = engine.Stats();
    EXPECT_EQ(stats.pages_free, stats.pages_total);
    EXPECT_EQ(stats.pages_total, home->Describe(shape).pages);
    EXPECT_NE(stats.pages_total, total) << "the memory was not carved anew";
    total = stats.pages_total;
    engine.CheckedStep(0, {{1, 0, 33, 1}, {2, 0, 1, 2}});

    // A second peer is refused while the first is served.
    absl::StatusOr<LocalLink> second = MakeLocalLink(LinkSizeFor(shape), -1, -1, 99);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(home->Attach(shape, std::move(second->home)).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(second->engine->lost());

    engine.link().MarkLost("the test pulled the plug");
    EXPECT_THAT(engine.AwaitEnd(), HasSubstr("the test pulled the plug"));
  }
}

TEST(HomeTest, DetachEndsAServiceInFullSwing) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB);
  TestEngine engine(home.get(), shape);
  engine.Fill(1, 4000);
  engine.SendRoster(0, {{1, 4000, 1, 1}}, 1);
  HopHeader hop = engine.WriteRows(0, {{1, 4000, 1, 1}}, 0);
  hop.step = 1;
  engine.link().PostHop(hop);
  EXPECT_EQ(home->Detach(), "the home was stopped");
  EXPECT_FALSE(home->serving());
  EXPECT_THAT(engine.link().lost_cause(), HasSubstr("the home was stopped"));
  EXPECT_EQ(home->Detach(), "");
}

TEST(HomeTest, DescribesItself) {
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB);
  const RPartShape shape = SmallShape(ElementType::kBf16);
  const HomeDescription description = home->Describe(shape);
  EXPECT_EQ(description.threads, 3u);
  EXPECT_EQ(description.page_bytes, PageBytes(shape.attention()) * shape.layers);
  EXPECT_GE(description.pages, 16 * kMiB / description.page_bytes);
  EXPECT_STREQ(description.isa, IsaName(DetectIsa()));
  EXPECT_THAT(description.memory, HasSubstr("MiB"));
}

TEST(HomeTest, RefusesWhatCannotBeServed) {
  HomeOptions options;
  options.cores = {};
  options.kv_bytes = kMiB;
  EXPECT_THAT(std::string(Home::Create(options).status().message()), HasSubstr("no cores"));
  options.cores = {-1};
  options.kv_bytes = 0;
  EXPECT_FALSE(Home::Create(options).ok());

  const std::unique_ptr<Home> home = MakeTestHome(1, 4096);
  RPartShape shape = SmallShape(ElementType::kF32);
  shape.kv_heads = 64;
  shape.layers = 80;
  EXPECT_THAT(std::string(home->CheckShape(shape).message()), HasSubstr("not even one page"));
  shape.head_dim = 0;
  EXPECT_THAT(std::string(home->CheckShape(shape).message()), HasSubstr("head_dim is 0"));
  shape = SmallShape(ElementType::kF32);
  LinkSize size = LinkSizeFor(shape);
  size.slots = 1;
  absl::StatusOr<LocalLink> link = MakeLocalLink(size, -1, -1, 1);
  ASSERT_TRUE(link.ok());
  EXPECT_FALSE(MakeTestHome(1, 16 * kMiB)->Attach(shape, std::move(link->home)).ok());
}

}  // namespace
}  // namespace fastdecode
