// A verbs link under random traffic, one event at a time, over adapters that place bytes piecemeal and in any order,
// complete late, acknowledge later still, or break the rules.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/rdma/link_messages.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {
namespace {

// Bytes that tell of whose message they are.
void FillBytes(std::byte* to, size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(to + i, &word, std::min<size_t>(8, bytes - i));
  }
}
bool HasBytes(const std::byte* at, size_t bytes, uint64_t seed) {
  std::vector<std::byte> expected(bytes);
  FillBytes(expected.data(), bytes, seed);
  return std::equal(expected.begin(), expected.end(), at);
}

// Both ends of a pair, doing at random what they may.
class Traffic {
 public:
  Traffic(VerbsPair* pair, uint64_t seed) : pair_(pair), random_(seed), buffer_(kControlMessageBytesMax) {}

  uint64_t hops() const { return hops_; }
  uint64_t replies() const { return replies_; }
  uint64_t messages() const { return messages_; }
  uint64_t refused() const { return refused_; }
  uint64_t wrong() const { return wrong_; }

  uint64_t segments() const { return segments_; }

  void Step() {
    switch (random_() % 10) {
      case 0:
      case 1:
        PostHop();
        break;
      case 2:
        TakeHops();
        break;
      case 3:
        PostReply();
        break;
      case 4:
        TakeReplies();
        break;
      case 5:
        Send(pair_->engine.get(), &to_home_);
        if (random_() % 8 == 0) pair_->engine->RingHome();
        break;
      case 6:
        Send(pair_->home.get(), &to_engine_);
        break;
      case 7:
        Receive(pair_->home.get(), &to_home_);
        Receive(pair_->engine.get(), &to_engine_);
        break;
      case 8:
        PostBulk();
        break;
      case 9:
        TakeBulk();
        break;
    }
  }

 private:
  // Mostly short, at times a chain, at times as long as may be.
  size_t RandomBytes(size_t bytes_max) {
    if (random_() % 16 != 0) return random_() % std::min<size_t>(bytes_max + 1, 300);
    return random_() % 4 == 0 ? bytes_max : random_() % (bytes_max + 1);
  }

  void PostHop() {
    const int slots = pair_->engine->size().slots;
    const int slot = static_cast<int>(random_() % static_cast<unsigned>(slots));
    if ((open_ >> slot & 1) != 0) return;
    open_ |= 1u << slot;
    ++hops_;
    HopHeader hop = Hop(slot, hops_, static_cast<int>(hops_ % 80));
    hop.payload_bytes = static_cast<uint32_t>(RandomBytes(pair_->engine->size().hop_payload_bytes_max));
    FillBytes(pair_->engine->SendArea(slot), hop.payload_bytes, hop.step);
    pair_->engine->PostHop(hop);
  }

  void TakeHops() {
    HopHeader hop;
    const std::byte* payload = nullptr;
    while (pair_->home->PollHop(&hop, &payload) == LinkPoll::kMessage) {
      wrong_ += !HasBytes(payload, hop.payload_bytes, hop.step);
      at_home_.push_back(hop);
    }
  }

  void PostReply() {
    if (at_home_.empty()) return;
    const size_t chosen = random_() % at_home_.size();
    const HopHeader hop = at_home_[chosen];
    at_home_.erase(at_home_.begin() + static_cast<ptrdiff_t>(chosen));
    ReplyHeader reply = ReplyTo(hop);
    reply.payload_bytes = static_cast<uint32_t>(RandomBytes(pair_->home->size().reply_payload_bytes_max));
    FillBytes(pair_->home->ReplyArea(hop.micro_batch), reply.payload_bytes, ~hop.step);
    pair_->home->PostReply(reply);
  }

  void TakeReplies() {
    ReplyHeader reply;
    while (pair_->engine->PollReply(&reply) == LinkPoll::kMessage) {
      wrong_ += !HasBytes(pair_->engine->ReceiveArea(reply.micro_batch), reply.payload_bytes, ~reply.step);
      open_ &= ~(1u << reply.micro_batch);
      ++replies_;
    }
  }

  void PostBulk() {
    for (uint64_t burst = random_() % 4; burst > 0; --burst) {
      std::byte* const area = pair_->engine->BulkArea();
      if (area == nullptr) return;
      const uint64_t seed = random_();
      FillBytes(area, SegmentBytes(seed), seed);
      pair_->engine->PostBulk(SegmentBytes(seed));
      to_bulk_.push_back(seed);
    }
  }

  // Holds some, and looks at them only when it frees them.
  void TakeBulk() {
    const std::byte* segment = nullptr;
    size_t bytes = 0;
    while (pair_->home->PollBulk(&segment, &bytes) == LinkPoll::kMessage) held_.push_back({segment, bytes});
    for (uint64_t burst = random_() % 4; burst > 0 && !held_.empty(); --burst) {
      if (to_bulk_.empty()) {
        ++wrong_;
        return;
      }
      wrong_ += held_.front().second != SegmentBytes(to_bulk_.front()) ||
                !HasBytes(held_.front().first, held_.front().second, to_bulk_.front());
      to_bulk_.pop_front();
      held_.pop_front();
      pair_->home->FreeBulk();
      ++segments_;
    }
  }

  template <class End>
  void Send(End* end, std::deque<uint64_t>* sent) {
    for (uint64_t burst = random_() % 12; burst > 0; --burst) {
      const uint64_t seed = random_();
      const size_t bytes = MessageBytes(seed);
      FillBytes(reinterpret_cast<std::byte*>(buffer_.data()), bytes, seed);
      if (!end->TrySendControl(buffer_.data(), bytes)) {
        ++refused_;
        return;
      }
      sent->push_back(seed);
    }
  }

  template <class End>
  void Receive(End* end, std::deque<uint64_t>* sent) {
    size_t bytes = 0;
    for (uint64_t burst = random_() % 20; burst > 0; --burst) {
      if (end->PollControl(buffer_.data(), &bytes) != LinkPoll::kMessage) return;
      ++messages_;
      if (sent->empty()) {
        ++wrong_;
        return;
      }
      wrong_ += bytes != MessageBytes(sent->front()) ||
                !HasBytes(reinterpret_cast<std::byte*>(buffer_.data()), bytes, sent->front());
      sent->pop_front();
    }
  }

  static size_t SegmentBytes(uint64_t seed) { return 1 + seed % 3000; }
  static size_t MessageBytes(uint64_t seed) { return 1 + (seed % 16 == 0 ? seed % 4000 : seed % 100); }

  VerbsPair* const pair_;
  std::mt19937_64 random_;
  std::vector<char> buffer_;
  std::deque<uint64_t> to_home_, to_engine_;  // seeds of messages under way
  std::deque<uint64_t> to_bulk_;              // seeds of segments that were not freed
  std::deque<std::pair<const std::byte*, size_t>> held_;
  std::vector<HopHeader> at_home_;
  uint32_t open_ = 0;
  uint64_t hops_ = 0, replies_ = 0, messages_ = 0, segments_ = 0, refused_ = 0, wrong_ = 0;
};

LinkSize TrafficSize() {
  return {.slots = 4,
          .hop_payload_bytes_max = 20'000,
          .reply_payload_bytes_max = 12'000,
          .control_ring_bytes = kControlRingBytesMin,
          .bulk_segments = 5,
          .bulk_segment_bytes_max = 3000};
}

TEST(VerbsRandomTest, AHundredThousandMessagesArriveWholeAndInOrder) {
  constexpr uint64_t kMessages = 100'000;
  uint64_t messages = 0;
  for (uint64_t seed = 1; messages < kMessages; ++seed) {
    MadeUpCuda cuda;
    VerbsPair pair({.size = TrafficSize(),
                    .fabric = {.seed = seed, .steps_per_call = static_cast<int>(1 + seed % 30), .piece_bytes = 512},
                    .checksum = seed % 3 == 0,
                    .cuda = seed % 3 == 1 ? &cuda : nullptr});
    Traffic traffic(&pair, seed);
    for (int i = 0; i < 40'000 && !pair.engine->lost() && !pair.home->lost(); ++i) traffic.Step();
    ASSERT_EQ(pair.engine->lost_cause(), "") << seed;
    ASSERT_EQ(pair.home->lost_cause(), "") << seed;
    ASSERT_EQ(traffic.wrong(), 0u) << seed;
    ASSERT_GT(traffic.replies(), 100u) << seed;
    ASSERT_GT(traffic.segments(), 100u) << seed;
    ASSERT_GT(traffic.refused(), 0u) << "the ring was never full; seed " << seed;
    messages += traffic.messages() + traffic.hops() + traffic.replies() + traffic.segments();
    pair.ExpectClean();
    if (HasFailure()) return;
  }
}

// With chains, so that the queue's end comes often.
TEST(VerbsRandomTest, NothingOverflowsWhereAcknowledgementsComeLate) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    VerbsPair pair({.size = TrafficSize(), .fabric = {.seed = seed, .steps_per_call = 40, .piece_bytes = 4096}});
    Traffic traffic(&pair, seed);
    std::mt19937_64 random(seed);
    uint64_t full = 0;
    for (int round = 0; round < 8; ++round) {
      const bool engine_waits = round % 2 == 0;
      ibv_context* const context = engine_waits ? pair.engine_context : pair.home_context;
      pair.fabric.HoldAcknowledgements(context, true);
      uint64_t before = UINT64_MAX;
      for (int i = 0; i < 20'000 && before != pair.fabric.writes(); ++i) {
        before = pair.fabric.writes();
        for (int turn = 0; turn < 200; ++turn) traffic.Step();
      }
      full += pair.fabric.send_queue_peak() + 20 >= pair.engine_wiring.depths.send;
      pair.fabric.HoldAcknowledgements(context, false);
      for (int i = 0; i < 2000; ++i) traffic.Step();
    }
    EXPECT_GT(full, 0u) << "the send queue was never full";
    EXPECT_EQ(traffic.wrong(), 0u);
    EXPECT_EQ(pair.engine->lost_cause(), "");
    EXPECT_EQ(pair.home->lost_cause(), "");
    pair.ExpectClean();
    if (HasFailure()) return;
  }
}

TEST(VerbsRandomTest, AHopWaitsForRoomInTheSendQueueAndTheRingWaitsForTheHop) {
  VerbsPair pair({.size = {.slots = 1, .hop_payload_bytes_max = 100, .reply_payload_bytes_max = 100}});
  pair.fabric.HoldAcknowledgements(pair.engine_context, true);
  HopHeader hop;
  ReplyHeader reply;
  const std::byte* payload = nullptr;
  uint64_t step = 0;
  do {
    hop = Hop(0, ++step);
    hop.payload_bytes = 100;
    pair.engine->PostHop(hop);
    if (pair.home->PollHop(&hop, &payload) != LinkPoll::kMessage) break;
    pair.home->PostReply(ReplyTo(hop));
    ASSERT_EQ(pair.engine->PollReply(&reply), LinkPoll::kMessage);
  } while (step < 100'000);
  EXPECT_EQ(step, pair.engine_wiring.depths.send + 1u) << "as many as the queue has places go without acknowledgement";
  EXPECT_FALSE(pair.engine->TrySendControl("x", 1));
  pair.home->Arm();
  pair.engine->RingHome();
  EXPECT_EQ(pair.home->PollHop(&hop, &payload), LinkPoll::kEmpty);
  pair.fabric.HoldAcknowledgements(pair.engine_context, false);
  EXPECT_EQ(pair.engine->PollReply(&reply), LinkPoll::kEmpty);  // posts both
  pair.home->Sleep(3'600'000'000'000);                          // would hang the test
  EXPECT_EQ(pair.home->PollHop(&hop, &payload), LinkPoll::kMessage);
  EXPECT_EQ(hop.step, step);
  pair.ExpectClean();
}

// ---- Adapters that break the rules: the notification comes before what was written before it. ----

struct EarlyOutcome {
  uint64_t wrong = 0;
  std::string cause;
};

EarlyOutcome RunEarly(uint64_t seed, bool checksum, size_t piece_bytes) {
  VerbsPair pair(
      {.size = TrafficSize(),
       .fabric = {.seed = seed, .steps_per_call = 2, .piece_bytes = piece_bytes, .notify_before_payload = true},
       .checksum = checksum});
  Traffic traffic(&pair, seed);
  for (int i = 0; i < 2000 && !pair.engine->lost() && !pair.home->lost(); ++i) traffic.Step();
  const std::string cause = pair.engine->lost() ? pair.engine->lost_cause() : pair.home->lost_cause();
  return {traffic.wrong(), cause};
}

TEST(VerbsEarlyNotificationTest, ChecksumsCatchEveryByteThatIsMissing) {
  int by_line = 0, by_checksum = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const EarlyOutcome outcome = RunEarly(seed, /*checksum=*/true, 64);
    EXPECT_EQ(outcome.wrong, 0u) << seed;
    EXPECT_NE(outcome.cause, "") << seed;
    by_line += outcome.cause.find("not the one that was announced") != std::string::npos;
    by_checksum += outcome.cause.find("checksum") != std::string::npos;
  }
  EXPECT_GT(by_line, 0);
  EXPECT_GT(by_checksum, 0);
}

TEST(VerbsEarlyNotificationTest, AnOldLineIsNeverTakenEvenWithoutChecksums) {
  // Whole messages late: the line that is found is the one of the slot's last message.
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const EarlyOutcome outcome = RunEarly(seed, /*checksum=*/false, 1 << 20);
    EXPECT_EQ(outcome.wrong, 0u) << seed;
    EXPECT_NE(outcome.cause, "") << seed;
  }
}

TEST(VerbsEarlyNotificationTest, WithoutChecksumsHalfAMessageIsTakenForAWholeOne) {
  // What the checksum is for, and proof that these adapters do what they are made up for.
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) wrong += RunEarly(seed, /*checksum=*/false, 64).wrong;
  EXPECT_GT(wrong, 0u);
}

}  // namespace
}  // namespace fastdecode
