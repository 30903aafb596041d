// Prompts whose K and V come over the bulk channel: what is computed on them afterwards is what it would be had they
// come as chunks of hops, in whatever order the channels bring their messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/rpart/home.h"
#include "engine/rpart/rpart_shape.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

struct Variant {
  ElementType type;
  KvType kv_type;
  int threads;
};

class PushVariantTest : public testing::TestWithParam<Variant> {
 protected:
  RPartShape Shape() const {
    RPartShape shape = SmallShape(GetParam().type);
    shape.kv_type = static_cast<uint32_t>(GetParam().kv_type);
    return shape;
  }
};

// Cuts each layer's tokens into segments at random and shuffles those of different layers; a layer's own stay in order.
// Some are sent twice, with other content the second time, which must change nothing.
struct Piece {
  TestEntry entry;
  uint32_t layer;
};
std::vector<Piece> CutAtRandom(const TestEntry& prompt, const RPartShape& shape, std::mt19937* random) {
  std::vector<std::vector<Piece>> layers(shape.layers);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t at = 0; at < prompt.tokens;) {
      const uint32_t tokens =
          std::min<uint32_t>(1 + (*random)() % std::min(70u, PushTokensMax(shape)), prompt.tokens - at);
      TestEntry entry = {prompt.sequence, prompt.position + at, tokens, prompt.content};
      layers[layer].push_back({entry, layer});
      entry.content += 77;
      if ((*random)() % 4 == 0) layers[layer].push_back({entry, layer});
      at += tokens;
    }
  }
  std::vector<Piece> pieces;
  std::vector<size_t> next(shape.layers);
  for (;;) {
    std::vector<uint32_t> open;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      if (next[layer] < layers[layer].size()) open.push_back(layer);
    }
    if (open.empty()) return pieces;
    const uint32_t layer = open[(*random)() % open.size()];
    pieces.push_back(layers[layer][next[layer]++]);
  }
}

// As chunks of hops.
void Prefill(TestEngine* engine, const TestEntry& prompt, uint32_t chunk) {
  for (uint32_t at = 0; at < prompt.tokens; at += chunk) {
    const TestEntry entry = {prompt.sequence, prompt.position + at, std::min(chunk, prompt.tokens - at),
                             prompt.content};
    const TestStep step = engine->Step(1, {entry});
    ASSERT_FALSE(step.lost) << engine->link().lost_cause();
    ASSERT_TRUE(step.failing_rows.empty());
  }
}

TEST_P(PushVariantTest, APushedPromptIsThatOfAChunk) {
  const RPartShape shape = Shape();
  std::mt19937 random(5);
  const std::unique_ptr<Home> by_hops = MakeTestHome(GetParam().threads, 16 * kMiB);
  const std::unique_ptr<Home> by_bulk = MakeTestHome(GetParam().threads, 16 * kMiB);
  TestEngine hops(by_hops.get(), shape), bulk(by_bulk.get(), shape);
  uint32_t neighbour = 0;
  for (uint64_t id = 10; id < 22; ++id) {
    const TestEntry prompt = {id, 0, 1 + static_cast<uint32_t>(random() % 700), id};
    Prefill(&hops, prompt, 40);
    const uint64_t reservation = bulk.Reserve(id, prompt.tokens);
    // Meanwhile another sequence goes on.
    for (const Piece& piece : CutAtRandom(prompt, shape, &random)) {
      ASSERT_TRUE(bulk.Push(piece.entry, piece.layer, reservation)) << bulk.link().lost_cause();
      if (random() % 4 != 0) continue;
      const std::vector<TestEntry> other = {{1, neighbour++, 1, 1}};
      EXPECT_EQ(bulk.Step(0, other).o, hops.Step(0, other).o);
    }
    ASSERT_TRUE(bulk.AwaitPushed()) << bulk.link().lost_cause();
    for (uint32_t i = 0; i < 3; ++i) {
      const std::vector<TestEntry> next = {{id, prompt.tokens + i, 1, 3}, {1, neighbour++, 1, 1}};
      const TestStep expected = hops.Step(0, next), got = bulk.Step(0, next);
      ASSERT_FALSE(got.lost) << bulk.link().lost_cause();
      EXPECT_TRUE(got.failing_rows.empty());
      EXPECT_EQ(got.o, expected.o) << "sequence " << id << " of " << prompt.tokens << " tokens";
    }
  }
  EXPECT_EQ(bulk.Stats().pages_free, hops.Stats().pages_free);
}

INSTANTIATE_TEST_SUITE_P(All, PushVariantTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 1},
                                         Variant{ElementType::kF32, KvType::kF32, 3},
                                         Variant{ElementType::kBf16, KvType::kBf16, 3},
                                         Variant{ElementType::kBf16, KvType::kFp16, 1},
                                         Variant{ElementType::kBf16, KvType::kInt8, 2}));

class PushTest : public testing::Test {
 protected:
  TestEngine& engine() {
    if (engine_ == nullptr) {
      home_ = MakeTestHome(2, 16 * kMiB);
      engine_ = std::make_unique<TestEngine>(home_.get(), shape_);
    }
    return *engine_;
  }

  void PushAll(const TestEntry& prompt, uint64_t reservation) {
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      ASSERT_TRUE(engine().Push(prompt, layer, reservation)) << engine().link().lost_cause();
    }
  }

  // A segment of sequence 1, for which 40 tokens are reserved, that `spoil` changed.
  void ExpectLostBy(const std::function<void(PushHeader*)>& spoil, size_t bytes, const std::string& cause) {
    const uint64_t reservation = engine().Reserve(1, 40);
    std::vector<std::byte> segment = engine().SegmentOf({1, 0, 20, 1}, 0, reservation);
    PushHeader header;
    std::memcpy(&header, segment.data(), sizeof(header));
    spoil(&header);
    std::memcpy(segment.data(), &header, sizeof(header));
    if (bytes > 0) segment.resize(bytes);
    engine().PushBytes(segment);
    EXPECT_THAT(engine().AwaitEnd(), HasSubstr(cause));
    engine_.reset();
    home_.reset();  // checks that no page is missing
  }

  RPartShape shape_ = SmallShape(ElementType::kF32);
  std::unique_ptr<Home> home_;
  std::unique_ptr<TestEngine> engine_;
};

TEST_F(PushTest, WhatIsComputedOnItIsThatOfTheReference) {
  PushAll({1, 0, 100, 1}, engine().Reserve(1, 100));
  ASSERT_TRUE(engine().AwaitPushed());
  engine().Adopt(1, std::vector<uint64_t>(100, 1));
  engine().CheckedStep(0, {{1, 100, 1, 2}});
  engine().CheckedStep(0, {{1, 101, 30, 3}, {2, 0, 5, 4}});
  engine().CheckedStep(0, {{1, 131, 1, 5}, {2, 5, 1, 6}});
}

TEST_F(PushTest, ASegmentWaitsForItsReservationAndNobodyForIt) {
  const uint64_t reservation = 1;  // to come
  PushAll({1, 0, 50, 1}, reservation);
  for (uint32_t position = 0; position < 20; ++position) engine().CheckedStep(0, {{2, position, 1, 2}});
  EXPECT_EQ(engine().link().BulkFreed(), 0u);
  EXPECT_EQ(engine().Stats().sequences, 1u);
  ASSERT_EQ(engine().Reserve(1, 50), reservation);
  ASSERT_TRUE(engine().AwaitPushed());
  engine().Adopt(1, std::vector<uint64_t>(50, 1));
  engine().CheckedStep(0, {{1, 50, 1, 3}, {2, 20, 1, 2}});
}

TEST_F(PushTest, ReservingTakesThePagesAndAReleaseGivesThemBackWhateverStillComes) {
  const uint64_t all = engine().Stats().pages_free;
  const uint64_t first = engine().Reserve(1, 100);
  EXPECT_EQ(engine().Stats().pages_free, all - 4);
  ASSERT_TRUE(engine().Push({1, 0, 60, 1}, 0, first));
  ASSERT_TRUE(engine().AwaitPushed());
  engine().Release(1);
  EXPECT_EQ(engine().Stats().pages_free, all);
  // What was under way when it was released: before the number comes again, and after.
  ASSERT_TRUE(engine().Push({1, 60, 40, 1}, 0, first));
  ASSERT_TRUE(engine().AwaitPushed()) << engine().link().lost_cause();
  EXPECT_EQ(engine().Stats().sequences, 0u);
  const uint64_t second = engine().Reserve(1, 70);
  ASSERT_TRUE(engine().Push({1, 0, 70, 9}, 1, first));
  PushAll({1, 0, 70, 2}, second);
  ASSERT_TRUE(engine().AwaitPushed()) << engine().link().lost_cause();
  engine().Adopt(1, std::vector<uint64_t>(70, 2));
  engine().CheckedStep(0, {{1, 70, 1, 3}});
  engine().Release(1);
  EXPECT_EQ(engine().Stats().pages_free, all);
}

TEST_F(PushTest, ASegmentChangesNoTokenThatIsStored) {
  const uint64_t reservation = engine().Reserve(1, 60);
  PushAll({1, 0, 30, 1}, reservation);
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    // From position 10 on, with other content up to 30.
    std::vector<std::byte> segment = engine().SegmentOf({1, 10, 50, 9}, layer, reservation);
    const std::vector<std::byte> rest = engine().SegmentOf({1, 30, 30, 1}, layer, reservation);
    const size_t stored_bytes = kPushRowsOffset + 20 * shape_.kv_row_bytes();
    std::copy(rest.begin() + kPushRowsOffset, rest.end(), segment.begin() + static_cast<ptrdiff_t>(stored_bytes));
    ASSERT_TRUE(engine().PushBytes(segment));
  }
  ASSERT_TRUE(engine().AwaitPushed()) << engine().link().lost_cause();
  engine().Adopt(1, std::vector<uint64_t>(60, 1));
  engine().CheckedStep(0, {{1, 60, 1, 2}});
}

TEST_F(PushTest, APromptMayGoOnByHopsAndEndBeyondItsReservation) {
  engine().CheckedStep(0, {{7, 0, 40, 8}});
  PushAll({1, 0, 33, 1}, engine().Reserve(1, 33));
  ASSERT_TRUE(engine().AwaitPushed());
  engine().Adopt(1, std::vector<uint64_t>(33, 1));
  for (uint32_t position = 33; position < 70; ++position) engine().CheckedStep(0, {{1, position, 1, 2}});
}

TEST_F(PushTest, SegmentsThatMakeNoSenseEndTheLinkWithTheReason) {
  const auto none = [](PushHeader*) {};
  const std::string row = std::to_string(shape_.kv_row_bytes());
  ExpectLostBy(none, 64, "bulk segment: 64 bytes have no row");
  ExpectLostBy(none, 1, "bulk segment: 1 bytes have no row");
  ExpectLostBy(none, 64 + 19 * shape_.kv_row_bytes(), "for 20 tokens, not " + std::to_string(64 + 20 * 512));
  ExpectLostBy([](PushHeader* push) { push->tokens = 0; }, 0, "for 0 tokens, not 64");
  ExpectLostBy([](PushHeader* push) { push->tokens = 0xffffffff; }, 0, "tokens 4294967295, max_context is 4096");
  ExpectLostBy([](PushHeader* push) { push->first_position = 4090; }, 0, "first_position 4090 and tokens 20");
  ExpectLostBy([](PushHeader* push) { push->first_position = 0xfffffff0; }, 0, "first_position 4294967280");
  ExpectLostBy([](PushHeader* push) { push->layer = 2; }, 0, "layer 2, the model has 2");
  ExpectLostBy([](PushHeader* push) { push->reservation = 0; }, 0, "reservation 0");
  ExpectLostBy([](PushHeader* push) { push->first_position = 1; }, 0,
               "sequence 1 goes on at position 1 of layer 0, but 0 tokens are stored");
}

TEST_F(PushTest, ReservationsThatMakeNoSenseEndTheLinkWithTheReason) {
  const auto expect = [this](uint32_t tokens, const std::string& cause) {
    engine().Reserve(1, tokens);
    EXPECT_THAT(engine().AwaitEnd(), HasSubstr(cause));
    engine_.reset();
    home_.reset();
  };
  expect(0, "reserve: sequence 1 with 0 tokens");
  expect(4097, "reserve: sequence 1 with 4097 tokens, allowed is 1 to 4096");
  engine().CheckedStep(0, {{1, 0, 1, 1}});
  expect(5, "reserve: sequence 1 has tokens already");
  const uint64_t pages = engine().Stats().pages_free;
  for (uint64_t id = 100; id < 100 + pages / 128; ++id) engine().Fill(id, 4096);
  expect(4096, "reserve: 4096 tokens of sequence 1 need more than the");
}

TEST_F(PushTest, MoreThanIsReservedNeedsAPage) {
  const uint64_t reservation = engine().Reserve(1, 32);
  const uint64_t pages = engine().Stats().pages_free;
  uint64_t id = 100;
  for (uint64_t left = pages; left > 0; ++id) {
    const auto taken = static_cast<uint32_t>(std::min<uint64_t>(left, 128));
    engine().Fill(id, taken * kPageTokens);
    left -= taken;
  }
  ASSERT_TRUE(engine().Push({1, 0, 32, 1}, 0, reservation));
  ASSERT_TRUE(engine().AwaitPushed());
  ASSERT_TRUE(engine().Push({1, 32, 1, 1}, 0, reservation));
  EXPECT_THAT(engine().AwaitEnd(), HasSubstr("tokens up to 33 of sequence 1 need more than the 0 free pages"));
  engine_.reset();
}

TEST_F(PushTest, ALinkWithoutABulkChannelReservesNothing) {
  shape_.kv_type = static_cast<uint32_t>(KvType::kInt4);  // and so it has none
  ASSERT_EQ(engine().link().size().bulk_segments, 0);
  engine().Reserve(1, 10);
  EXPECT_THAT(engine().AwaitEnd(), HasSubstr("reserve: sequence 1, but the link has no bulk channel"));
  engine_.reset();
}

// The home itself checks that no page is missing when a peer has gone.
TEST_F(PushTest, ALinkMayGoInTheMiddle) {
  std::mt19937 random(3);
  for (int life = 0; life < 60; ++life) {
    const uint64_t reservation = engine().Reserve(1, 300);
    const std::vector<Piece> pieces = CutAtRandom({1, 0, 300, 1}, shape_, &random);
    const size_t sent = random() % pieces.size();
    for (size_t i = 0; i < sent; ++i) {
      ASSERT_TRUE(engine().Push(pieces[i].entry, pieces[i].layer, reservation + (life % 3 == 0 && i + 1 == sent)));
      if (random() % 5 == 0) engine().CheckedStep(0, {{2, engine().Length(2), 1, 2}});
    }
    if (random() % 2 == 0) {
      engine().link().MarkLost("enough");
    } else {
      engine().Close();
    }
    EXPECT_FALSE(engine().AwaitEnd().empty());
    engine_ = std::make_unique<TestEngine>(home_.get(), shape_);
  }
}

// Has a segment whenever it is asked for one.
class BusyLink final : public HomeLink {
 public:
  // Of all links of a home.
  struct Log {
    std::atomic<int> segments{0};  // freed since somebody was last asked for a hop
    std::atomic<int> most{0};
  };

  BusyLink(const RPartShape& shape, Log* log)
      : size_(LinkSizeFor(shape, /*push=*/true)), log_(log), segment_(kPushRowsOffset + shape.kv_row_bytes()) {
    PushHeader header;
    header.sequence = 1;
    header.reservation = 1;
    header.tokens = 1;
    std::memcpy(segment_.data(), &header, sizeof(header));
  }

  LinkPoll PollHop(HopHeader*, const std::byte**) override {
    log_->segments = 0;
    return Poll();
  }
  LinkPoll PollControl(void* buffer, size_t* bytes) override {
    if (reserved_ || lost()) return Poll();
    const SequenceMessage message = {static_cast<uint32_t>(ControlKind::kReserve), 1, 1};
    std::memcpy(buffer, &message, sizeof(message));
    *bytes = sizeof(message);
    reserved_ = true;
    return LinkPoll::kMessage;
  }
  LinkPoll PollBulk(const std::byte** segment, size_t* bytes) override {
    if (lost()) return LinkPoll::kLost;
    *segment = segment_.data();
    *bytes = segment_.size();
    return LinkPoll::kMessage;
  }
  void FreeBulk() override {
    ++freed;
    log_->most = std::max(log_->most.load(), ++log_->segments);
  }
  bool TrySendControl(const void*, size_t) override { return true; }
  std::byte* ReplyArea(int) override { return nullptr; }
  void PostReply(const ReplyHeader&) override {}
  void Arm() override {}
  void Disarm() override {}
  void Sleep(uint64_t) override { std::this_thread::yield(); }
  void AddProgress(uint64_t) override {}
  bool lost() const override { return lost_; }
  std::string lost_cause() const override { return "it was enough"; }
  void MarkLost(const char*) override { lost_ = true; }
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "a test"; }
  std::string Describe() const override { return "no memory"; }

  std::atomic<int> freed{0};

 private:
  LinkPoll Poll() const { return lost() ? LinkPoll::kLost : LinkPoll::kEmpty; }

  const LinkSize size_;
  Log* const log_;
  std::vector<std::byte> segment_;
  bool reserved_ = false;
  std::atomic<bool> lost_{false};
};

TEST_F(PushTest, AHomeStoresOneSegmentBetweenTwoLooksForHops) {
  home_ = MakeTestHome(1, 16 * kMiB, /*peers=*/3);
  BusyLink::Log log;
  std::vector<BusyLink*> links;
  for (uint32_t i = 0; i < 3; ++i) {
    auto link = std::make_unique<BusyLink>(shape_, &log);
    links.push_back(link.get());
    const absl::Status attached = home_->Attach(shape_, std::move(link), PeerRequest{{i + 1, 0}, "a test", 1});
    ASSERT_TRUE(attached.ok()) << attached;
  }
  for (BusyLink* const link : links) {
    while (link->freed < 100) std::this_thread::yield();  // none starves
  }
  EXPECT_EQ(log.most, 1);
  for (BusyLink* const link : links) link->MarkLost("enough");
  while (!home_->sessions().empty()) {
    PeerSession* const session = home_->sessions().back().get();
    while (!session->ended()) std::this_thread::yield();
    home_->Detach(session);
  }
}

}  // namespace
}  // namespace fastdecode
