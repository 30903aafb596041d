// A peer that writes whatever it likes into the shared regions, at any time. Nothing may crash, read or write beyond
// the regions and the caller's buffers (AddressSanitizer watches their ends), or hand out a header that was not
// checked.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rdma/shm/shm_link.h"
#include "tests/rdma/heap_link.h"

namespace fastdecode {
namespace {

constexpr uint64_t kEpoch = 11;

LinkSize TestSize() {
  return {.slots = 2,
          .hop_payload_bytes_max = 192,
          .reply_payload_bytes_max = 128,
          .control_ring_bytes = 4096,
          .bulk_segments = 2,
          .bulk_segment_bytes_max = 100};
}

// Writes one word of `buffer`: near a good value more often than not, since noise alone does not get past the first
// check.
void Scribble(const ExactBuffer& buffer, std::mt19937_64* random) {
  const size_t words = buffer.bytes() / sizeof(uint64_t);
  // The engine's credit lies at 8, the control indices at 64 and 128, slots and bulk segments at the end.
  size_t word = (*random)() % words;
  switch ((*random)() % 5) {
    case 0:
      word = 8;
      break;
    case 1:
      word = 16;
      break;
    case 2:
      word = words - 1 - (*random)() % (words < 120 ? words : 120);
      break;
    case 3:
      word = 1;
      break;
  }
  uint64_t value = (*random)();
  switch ((*random)() % 4) {
    case 0:
      value %= 8192;
      break;
    case 1:
      value = value % 1024 * 8;
      break;
    case 2:
      value = uint64_t{1} << (value % 64);
      break;
  }
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(buffer.data() + word * 8))
      .store(value, std::memory_order_relaxed);
}

// Reads every byte that a header allows the caller to read.
uint64_t Sum(const std::byte* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum += static_cast<uint64_t>(data[i]);
  return sum;
}

volatile uint64_t g_sink;

using Outcomes = std::map<std::string, int>;

// What the home's end does with what it finds, for a bounded number of polls.
void DriveHome(ShmHomeLink* home, std::vector<char>* buffer, Outcomes* outcomes) {
  HopHeader hop;
  const std::byte* payload = nullptr;
  if (home->PollHop(&hop, &payload) == LinkPoll::kMessage) {
    ++(*outcomes)["hop"];
    ASSERT_LT(hop.micro_batch, home->size().slots);
    ASSERT_EQ(hop.epoch, kEpoch);
    ASSERT_GT(hop.rows, 0u);
    ASSERT_LE(hop.payload_bytes, home->size().hop_payload_bytes_max);
    g_sink = Sum(payload, hop.payload_bytes);
    ReplyHeader reply;
    reply.micro_batch = hop.micro_batch;
    home->PostReply(reply);
  }
  size_t bytes = 0;
  if (home->PollControl(buffer->data(), &bytes) == LinkPoll::kMessage) {
    ++(*outcomes)["control"];
    ASSERT_LE(bytes, buffer->size());
  }
  if (home->TrySendControl(buffer->data(), 700)) ++(*outcomes)["sent"];
  const std::byte* segment = nullptr;
  if (home->PollBulk(&segment, &bytes) == LinkPoll::kMessage) {
    ++(*outcomes)["segment"];
    ASSERT_GT(bytes, 0u);
    ASSERT_LE(bytes, home->size().bulk_segment_bytes_max);
    g_sink = Sum(segment, bytes);
    home->FreeBulk();
  }
}

void DriveEngine(ShmEngineLink* engine, std::vector<char>* buffer, uint64_t step, uint32_t* open, Outcomes* outcomes) {
  for (int slot = 0; slot < engine->size().slots; ++slot) {
    if ((*open >> slot & 1) != 0) continue;
    HopHeader hop;
    hop.step = step;
    hop.rows = 1;
    hop.micro_batch = static_cast<uint8_t>(slot);
    engine->PostHop(hop);
    *open |= 1u << slot;
  }
  ReplyHeader reply;
  if (engine->PollReply(&reply) == LinkPoll::kMessage) {
    ++(*outcomes)["reply"];
    ASSERT_LT(reply.micro_batch, engine->size().slots);
    ASSERT_LE(reply.payload_bytes, engine->size().reply_payload_bytes_max);
    g_sink = Sum(engine->ReceiveArea(reply.micro_batch), reply.payload_bytes);
    *open &= ~(1u << reply.micro_batch);
  }
  size_t bytes = 0;
  if (engine->PollControl(buffer->data(), &bytes) == LinkPoll::kMessage) {
    ++(*outcomes)["control"];
    ASSERT_LE(bytes, buffer->size());
  }
  if (engine->TrySendControl(buffer->data(), 700)) ++(*outcomes)["sent"];
  g_sink = engine->Progress();
  if (std::byte* const area = engine->BulkArea(); area != nullptr) {
    ++(*outcomes)["area"];
    std::memset(area, 1, engine->size().bulk_segment_bytes_max);
    engine->PostBulk(engine->size().bulk_segment_bytes_max);
  }
}

// A cause without its place.
std::string Kind(const std::string& cause) { return cause.substr(0, cause.find(" (")); }

TEST(HostilePeerTest, TheHomeSurvivesAnyBytes) {
  std::mt19937_64 random(1);
  Outcomes outcomes;
  for (int round = 0; round < 20'000; ++round) {
    HeapRegions memory(TestSize());
    auto home = MakeHeapHome(memory, kEpoch);
    std::vector<char> buffer(RingMessageBytesMax(TestSize().control_ring_bytes));
    const HomeRegion region(memory.home.data(), TestSize());
    ShmRingWriter control(region.control_indices(), region.control_data(), TestSize().control_ring_bytes);
    for (int turn = 0; turn < 20 && !home->lost(); ++turn) {
      // A good hop or message now and then, so that noise meets every state.
      if (random() % 2 == 0) control.TryWrite(buffer.data(), 1 + random() % 1000);
      if (random() % 2 == 0) {
        HopHeader hop;
        hop.epoch = kEpoch;
        hop.rows = 1;
        hop.payload_bytes = static_cast<uint32_t>(random() % 200);
        region.line(0)->Publish(hop, region.line(0)->sequence() + 1);
      }
      if (random() % 2 == 0) {
        const uint64_t written = region.bulk_written()->load();
        region.segment_bytes(written % 2)->store(random() % 110);
        region.bulk_written()->store(written + 1);
      }
      for (uint64_t i = random() % 3; i > 0; --i) Scribble(random() % 3 == 0 ? memory.engine : memory.home, &random);
      DriveHome(home.get(), &buffer, &outcomes);
    }
    ++outcomes[Kind(home->lost_cause())];
  }
  // The noise reached every check, and what is good got through.
  for (const char* outcome : {"hop", "control", "sent", "protocol error by the engine: hop out of sequence",
                              "protocol error by the engine: hop header of another epoch",
                              "protocol error by the engine: hop payload larger than agreed",
                              "protocol error by the engine: control message out of bounds",
                              "protocol error by the engine: control ring index out of bounds", "segment",
                              "protocol error by the engine: bulk segment out of sequence",
                              "protocol error by the engine: bulk segment size"}) {
    EXPECT_GT(outcomes[outcome], 0) << outcome;
  }
}

TEST(HostilePeerTest, TheEngineSurvivesAnyBytes) {
  std::mt19937_64 random(2);
  Outcomes outcomes;
  for (int round = 0; round < 20'000; ++round) {
    HeapRegions memory(TestSize());
    auto engine = MakeHeapEngine(memory, kEpoch);
    std::vector<char> buffer(RingMessageBytesMax(TestSize().control_ring_bytes));
    const EngineRegion region(memory.engine.data(), TestSize());
    ShmRingWriter control(region.control_indices(), region.control_data(), TestSize().control_ring_bytes);
    uint32_t open = 0;
    for (int turn = 0; turn < 20 && !engine->lost(); ++turn) {
      DriveEngine(engine.get(), &buffer, turn / 2, &open, &outcomes);
      if (random() % 2 == 0) control.TryWrite(buffer.data(), 1 + random() % 1000);
      if (random() % 2 == 0) {
        ReplyHeader reply;
        reply.epoch = kEpoch;
        reply.step = turn / 2;
        reply.payload_bytes = static_cast<uint32_t>(random() % 130);
        region.line(0)->Publish(reply, region.line(0)->sequence() + 1);
      }
      for (uint64_t i = random() % 3; i > 0; --i) Scribble(random() % 3 == 0 ? memory.home : memory.engine, &random);
      if (!engine->lost()) DriveEngine(engine.get(), &buffer, turn / 2, &open, &outcomes);
    }
    ++outcomes[Kind(engine->lost_cause())];
  }
  for (const char* outcome : {"reply", "control", "sent", "protocol error by the home: reply out of sequence",
                              "protocol error by the home: reply header of another epoch",
                              "protocol error by the home: reply payload larger than agreed",
                              "protocol error by the home: control message out of bounds",
                              "protocol error by the home: control ring index out of bounds", "area",
                              "protocol error by the home: bulk credit out of bounds"}) {
    EXPECT_GT(outcomes[outcome], 0) << outcome;
  }
}

#if !defined(__SANITIZE_THREAD__)  // a peer that races is the point here
TEST(HostilePeerTest, BytesThatChangeWhileTheyAreChecked) {
  std::mt19937_64 seeds(3);
  Outcomes outcomes;
  for (int round = 0; round < 200; ++round) {
    HeapRegions memory(TestSize());
    std::atomic<bool> done{false};
    std::thread peer([&, seed = seeds()] {
      std::mt19937_64 random(seed);
      while (!done.load()) Scribble(random() % 2 == 0 ? memory.home : memory.engine, &random);
    });
    std::vector<char> buffer(RingMessageBytesMax(TestSize().control_ring_bytes));
    for (int life = 0; life < 20; ++life) {
      auto home = MakeHeapHome(memory, kEpoch);
      auto engine = MakeHeapEngine(memory, kEpoch);
      uint32_t open = 0;
      for (int turn = 0; turn < 20; ++turn) {
        DriveHome(home.get(), &buffer, &outcomes);
        DriveEngine(engine.get(), &buffer, turn, &open, &outcomes);
      }
    }
    done.store(true);
    peer.join();
  }
}
#endif

}  // namespace
}  // namespace fastdecode
