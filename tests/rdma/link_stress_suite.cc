// Links of every provider between two threads that both run as fast as they can.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numa/clock.h"
#include "numa/spin.h"
#include "tests/rdma/link_suite.h"

namespace fastdecode {
namespace {

constexpr size_t kWords = 100;
constexpr size_t kPayloadBytes = kWords * sizeof(uint64_t);
constexpr size_t kSegmentBytes = 4000;
// Where both cores are taken, every hop costs a turn of the scheduler: then fewer hops have to do.
constexpr uint64_t kBudgetNs = 2'000'000'000;
constexpr uint64_t kSleepTimeoutNs = 3'600'000'000'000;  // a lost wake-up ends in ctest's timeout

LinkSize StressSize(int slots) {
  return {.slots = slots,
          .hop_payload_bytes_max = kPayloadBytes,
          .reply_payload_bytes_max = kPayloadBytes,
          .control_ring_bytes = 4096,
          .bulk_segments = 16,
          .bulk_segment_bytes_max = kSegmentBytes};
}

uint64_t Pattern(int slot, uint64_t step, size_t i) { return (step << 24) ^ (static_cast<uint64_t>(slot) << 16) ^ i; }

// A home that replies with every word of the hop inverted; the number of rows says how many words it has.
// `park`: it goes to sleep whenever it finds nothing.
struct EchoHome {
  HomeLink* link;
  bool park;
  uint64_t hops = 0;
  std::atomic<uint64_t> sleeps{0};
  uint64_t wrong = 0;

  bool PollOnce() {
    HopHeader hop;
    const std::byte* payload;
    if (link->PollHop(&hop, &payload) != LinkPoll::kMessage) return false;
    ++hops;
    for (uint32_t i = 0; i < hop.rows; ++i) {
      uint64_t word;
      std::memcpy(&word, payload + i * sizeof(word), sizeof(word));
      wrong += word != Pattern(hop.micro_batch, hop.step, i);
      word = ~word;
      std::memcpy(link->ReplyArea(hop.micro_batch) + i * sizeof(word), &word, sizeof(word));
    }
    ReplyHeader reply;
    reply.step = hop.step;
    reply.layer = hop.layer;
    reply.micro_batch = hop.micro_batch;
    reply.payload_bytes = hop.payload_bytes;
    link->AddProgress(1);
    link->PostReply(reply);
    return true;
  }

  void Run() {
    PollBackoff backoff(PollMode::kYield);
    while (!link->lost()) {
      if (PollOnce()) {
        backoff.Reset();
        continue;
      }
      if (!park) {
        backoff.Idle();
        continue;
      }
      link->Arm();
      if (PollOnce() || link->lost()) {
        link->Disarm();
      } else {
        ++sleeps;
        link->Sleep(kSleepTimeoutNs);
      }
    }
  }
};

void Post(EngineLink* engine, int slot, uint64_t step, uint32_t rows) {
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t word = Pattern(slot, step, i);
    std::memcpy(engine->SendArea(slot) + i * sizeof(word), &word, sizeof(word));
  }
  HopHeader hop;
  hop.step = step;
  hop.rows = rows;
  hop.payload_bytes = rows * sizeof(uint64_t);
  hop.layer = static_cast<uint16_t>(step % 80);
  hop.micro_batch = static_cast<uint8_t>(slot);
  engine->PostHop(hop);
}

uint64_t WrongWords(EngineLink* engine, const ReplyHeader& reply) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < reply.payload_bytes / sizeof(uint64_t); ++i) {
    uint64_t word;
    std::memcpy(&word, engine->ReceiveArea(reply.micro_batch) + i * sizeof(word), sizeof(word));
    wrong += ~word != Pattern(reply.micro_batch, reply.step, i);
  }
  return wrong;
}

TEST_P(LinkStressSuite, EveryPayloadArrivesOnEverySlot) {
  constexpr uint64_t kStepsMax = 4000;
  constexpr int kSlots = 4;
  const auto ends = GetParam().make(StressSize(kSlots), 3);
  const uint64_t end_ns = NowNs() + kBudgetNs;
  EchoHome home = {ends->home.get(), /*park=*/false};
  std::thread home_thread([&] { home.Run(); });

  std::mt19937_64 random(1);
  std::vector<uint64_t> step(kSlots, 1);
  auto rows = [&] { return static_cast<uint32_t>(1 + random() % kWords); };
  for (int slot = 0; slot < kSlots; ++slot) Post(ends->engine.get(), slot, 1, rows());
  uint64_t hops = kSlots, replies = 0, wrong = 0;
  PollBackoff backoff(PollMode::kYield);
  while (replies < hops) {
    ReplyHeader reply;
    const LinkPoll outcome = ends->engine->PollReply(&reply);
    if (outcome == LinkPoll::kLost) break;
    if (outcome == LinkPoll::kEmpty) {
      backoff.Idle();
      continue;
    }
    backoff.Reset();
    ++replies;
    const int slot = reply.micro_batch;
    wrong += reply.step != step[slot] || WrongWords(ends->engine.get(), reply) != 0;
    if (step[slot] == kStepsMax || NowNs() > end_ns) continue;
    ++hops;
    Post(ends->engine.get(), slot, ++step[slot], rows());
  }
  EXPECT_EQ(ends->engine->lost_cause(), "");
  EXPECT_EQ(replies, hops);
  EXPECT_EQ(wrong, 0u);
  for (int i = 0; i < 100 && ends->engine->Progress() != hops; ++i) ends->PassNews();
  EXPECT_EQ(ends->engine->Progress(), hops);
  ends->engine.reset();
  ends->PassNews();
  home_thread.join();
  EXPECT_EQ(home.wrong, 0u);
  EXPECT_EQ(home.hops, hops);
}

// A home that checks every bulk segment, holding up to two, and sleeps whenever it finds nothing.
struct BulkHome {
  HomeLink* const link;
  std::atomic<uint64_t> segments{0};
  uint64_t wrong = 0;
  uint64_t held = 0;

  bool PollOnce() {
    const std::byte* segment;
    size_t bytes;
    if (link->PollBulk(&segment, &bytes) != LinkPoll::kMessage) return false;
    const uint64_t number = segments + 1;
    wrong += bytes != SegmentBytes(number) || !HasPattern(segment, bytes, number);
    if (++held == 2 || number % 3 == 0) {
      for (; held > 0; --held) link->FreeBulk();
    }
    segments = number;
    return true;
  }

  void Run() {
    while (!link->lost()) {
      if (PollOnce()) continue;
      link->Arm();
      if (PollOnce() || link->lost()) {
        link->Disarm();
      } else {
        link->Sleep(kSleepTimeoutNs);
      }
    }
  }

  static size_t SegmentBytes(uint64_t number) { return 1 + number * 7919 % kSegmentBytes; }
};

TEST_P(LinkStressSuite, EveryBulkSegmentArrivesAndWakesTheHome) {
  constexpr uint64_t kSegmentsMax = 3000;
  const auto ends = GetParam().make(StressSize(1), 3);
  const uint64_t end_ns = NowNs() + kBudgetNs;
  BulkHome home{ends->home.get()};
  std::thread home_thread([&] { home.Run(); });
  std::mt19937_64 random(3);
  uint64_t sent = 0;
  PollBackoff backoff(PollMode::kYield);
  while (sent < kSegmentsMax && NowNs() < end_ns && !ends->engine->lost()) {
    std::byte* const area = ends->engine->BulkArea();
    if (area == nullptr) {
      backoff.Idle();
      continue;
    }
    backoff.Reset();
    for (uint64_t pause = random() % 500; pause > 0; --pause) CpuRelax();
    ++sent;
    FillPattern(area, BulkHome::SegmentBytes(sent), sent);
    ends->engine->PostBulk(BulkHome::SegmentBytes(sent));
    ends->engine->RingHome();
  }
  // Made-up adapters run only while somebody uses them.
  for (ReplyHeader reply; home.segments < sent && ends->engine->PollReply(&reply) == LinkPoll::kEmpty;) backoff.Idle();
  EXPECT_EQ(ends->engine->lost_cause(), "");
  ends->engine.reset();
  ends->PassNews();
  home_thread.join();
  EXPECT_EQ(home.segments, sent);
  EXPECT_EQ(home.wrong, 0u);
}

TEST_P(LinkStressSuite, NoRingIsLost) {
  constexpr uint64_t kStepsMax = 3000;
  const auto ends = GetParam().make(StressSize(1), 3);
  const uint64_t end_ns = NowNs() + kBudgetNs;
  EchoHome home = {ends->home.get(), /*park=*/true};
  std::thread home_thread([&] { home.Run(); });
  std::mt19937_64 random(2);
  uint64_t step = 0;
  while (step < kStepsMax && (NowNs() < end_ns || home.sleeps == 0)) {
    ++step;
    // From none to some microseconds, so that the hop meets the home anywhere between its poll and its sleep.
    for (uint64_t pause = random() % 2000; pause > 0; --pause) CpuRelax();
    Post(ends->engine.get(), 0, step, 1);
    ends->engine->RingHome();
    ReplyHeader reply;
    PollBackoff backoff(PollMode::kYield);
    LinkPoll outcome;
    while ((outcome = ends->engine->PollReply(&reply)) == LinkPoll::kEmpty) backoff.Idle();
    ASSERT_EQ(outcome, LinkPoll::kMessage);
  }
  // The loss of the link wakes it, too.
  ends->engine.reset();
  ends->PassNews();
  home_thread.join();
  EXPECT_EQ(home.hops, step);
  EXPECT_GT(home.sleeps, 0u);
}

TEST_P(LinkStressSuite, ManyThreadsLoseALinkOnce) {
  for (int round = 0; round < 10; ++round) {
    const auto ends = GetParam().make(StressSize(1), 3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&ends, i] {
        const std::string cause = "cause " + std::to_string(i);
        LinkEnd* const end = i % 2 == 0 ? static_cast<LinkEnd*>(ends->engine.get()) : ends->home.get();
        end->MarkLost(cause.c_str());
        EXPECT_TRUE(end->lost());
        EXPECT_FALSE(end->lost_cause().empty());
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string cause = ends->engine->lost_cause();
    ends->PassNews();
    EXPECT_TRUE(ends->home->lost());
    EXPECT_EQ(cause, ends->engine->lost_cause());
  }
}

}  // namespace
}  // namespace fastdecode
