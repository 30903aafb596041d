// The slot and control ring's own code in every interleaving and with every stale value that Relacy's random scheduler
// comes to; and with one memory order weakened each, which must be found.

#include <gtest/gtest.h>

#include <ostream>
#include <streambuf>
#include <string>

#include "rdma/shm/control_ring.h"
#include "rdma/shm/published_line.h"
#include "rdma/wire.h"
#include "tests/numa/relacy_atomics.h"

namespace fastdecode {
namespace {

// Atomics whose release stores are not.
template <class T>
class WeakStoreAtomic : public RelacyAtomic<T> {
 public:
  using RelacyAtomic<T>::RelacyAtomic;
  void store(T value, std::memory_order /*order*/) { RelacyAtomic<T>::store(value, std::memory_order_relaxed); }
};
struct WeakAtomics : RelacyAtomics {
  template <class T>
  using Atomic = WeakStoreAtomic<T>;
};

// One slot for two hops: payload and line there, payload and line back; the reply lets the engine overwrite the slot.
template <class HopAtomics, class ReplyAtomics>
struct SlotModel : rl::test_suite<SlotModel<HopAtomics, ReplyAtomics>, 2> {
  static constexpr uint64_t kHops = 2;

  PublishedLine<HopAtomics> hop_line;
  PublishedLine<ReplyAtomics> reply_line;
  RelacyAtomics::Cell<uint64_t> hop_payload;
  RelacyAtomics::Cell<uint64_t> reply_payload;

  void thread(unsigned index) {
    rl::linear_backoff backoff;
    for (uint64_t n = 1; n <= kHops; ++n) {
      uint64_t word = 0;
      if (index == 0) {
        hop_payload.Put(100 + n);
        HopHeader hop;
        hop.step = n;
        hop.rows = static_cast<uint32_t>(10 * n);
        hop_line.Publish(hop, n);
        while (reply_line.sequence() != n) backoff.yield($);
        ReplyHeader reply;
        reply_line.CopyHeader(&reply);
        RL_ASSERT(reply.step == n && reply.work_ns == 20 * n);
        reply_payload.TakeInto(&word);
        RL_ASSERT(word == 200 + n);
      } else {
        while (hop_line.sequence() != n) backoff.yield($);
        HopHeader hop;
        hop_line.CopyHeader(&hop);
        RL_ASSERT(hop.step == n && hop.rows == 10 * n);
        hop_payload.TakeInto(&word);
        RL_ASSERT(word == 100 + n);
        reply_payload.Put(200 + n);
        ReplyHeader reply;
        reply.step = n;
        reply.work_ns = static_cast<uint32_t>(20 * n);
        reply_line.Publish(reply, n);
      }
    }
  }
};

// The ring's bytes as words that Relacy watches; messages here are whole words.
constexpr size_t kRingBytes = 32;

template <template <class> class Atomic>
struct RelacyRingPolicy {
  using Index = Atomic<uint64_t>;

  struct Words {
    RelacyAtomics::Cell<uint64_t> cells[kRingBytes / 8];
  };
  class Data {
   public:
    explicit Data(Words* words) : words_(words) {}
    void StoreLength(size_t offset, uint64_t length) { words_->cells[offset / 8].Put(length); }
    uint64_t LoadLength(size_t offset) const {
      uint64_t length;
      words_->cells[offset / 8].TakeInto(&length);
      return length;
    }
    void CopyIn(size_t offset, const void* from, size_t bytes) {
      for (size_t i = 0; i < bytes; i += 8) words_->cells[(offset + i) / 8].Put(*Word(from, i));
    }
    void CopyOut(size_t offset, void* to, size_t bytes) const {
      for (size_t i = 0; i < bytes; i += 8)
        words_->cells[(offset + i) / 8].TakeInto(const_cast<uint64_t*>(Word(to, i)));
    }

   private:
    static const uint64_t* Word(const void* base, size_t offset) {
      return reinterpret_cast<const uint64_t*>(static_cast<const char*>(base) + offset);
    }
    Words* words_;
  };
};

// Messages of one and two words through a ring of four: it fills up, runs dry and wraps around inside a message.
template <template <class> class Atomic>
struct RingModel : rl::test_suite<RingModel<Atomic>, 2> {
  using Policy = RelacyRingPolicy<Atomic>;
  static constexpr uint64_t kMessages = 4;

  ControlRingIndices<Policy> indices;
  typename Policy::Words words;
  static size_t BytesOf(uint64_t n) { return n % 2 == 0 ? 16 : 8; }

  void thread(unsigned index) {
    rl::linear_backoff backoff;
    if (index == 0) {
      ControlRingWriter<Policy> writer(&indices, typename Policy::Data(&words), kRingBytes);
      for (uint64_t n = 1; n <= kMessages; ++n) {
        const uint64_t message[2] = {n, 100 + n};
        RingOutcome outcome;
        while ((outcome = writer.TryWrite(message, BytesOf(n))) == RingOutcome::kNothing) backoff.yield($);
        RL_ASSERT(outcome == RingOutcome::kDone);
      }
    } else {
      ControlRingReader<Policy> reader(&indices, typename Policy::Data(&words), kRingBytes);
      for (uint64_t n = 1; n <= kMessages; ++n) {
        uint64_t message[kRingBytes / 8] = {};
        size_t bytes = 0;
        RingOutcome outcome;
        while ((outcome = reader.TryRead(message, &bytes)) == RingOutcome::kNothing) backoff.yield($);
        RL_ASSERT(outcome == RingOutcome::kDone && bytes == BytesOf(n) && message[0] == n);
        RL_ASSERT(bytes == 8 || message[1] == 100 + n);
      }
    }
  }
};

// Relacy's history goes here, and is cut at the end. A stream that grows would ask for memory inside the simulation,
// where Relacy answers for `new` itself.
class FixedBuffer : public std::streambuf {
 public:
  FixedBuffer() { setp(text_, text_ + sizeof(text_)); }
  std::string text() const { return std::string(pbase(), pptr()); }

 private:
  char text_[1 << 16];
};

template <class Model>
bool Simulate(int iterations, std::string* log) {
  FixedBuffer buffer;
  std::ostream stream(&buffer);
  rl::test_params params;
  params.iteration_count = static_cast<rl::iteration_t>(iterations);
  params.output_stream = &stream;
  params.progress_stream = &stream;
  const bool passed = rl::simulate<Model>(params);
  *log = buffer.text();
  return passed;
}

TEST(ShmRelacyTest, SlotsCarryHeaderAndPayload) {
  std::string log;
  EXPECT_TRUE((Simulate<SlotModel<RelacyAtomics, RelacyAtomics>>(30'000, &log))) << log;
}

TEST(ShmRelacyTest, AWeakHopOrReplyIsFound) {
  std::string log;
  EXPECT_FALSE((Simulate<SlotModel<WeakAtomics, RelacyAtomics>>(20'000, &log))) << log;
  EXPECT_FALSE((Simulate<SlotModel<RelacyAtomics, WeakAtomics>>(20'000, &log))) << log;
}

TEST(ShmRelacyTest, TheControlRingLosesAndSpoilsNothing) {
  std::string log;
  EXPECT_TRUE((Simulate<RingModel<RelacyAtomic>>(30'000, &log))) << log;
}

TEST(ShmRelacyTest, AWeakControlRingIsFound) {
  std::string log;
  EXPECT_FALSE((Simulate<RingModel<WeakStoreAtomic>>(20'000, &log))) << log;
}

}  // namespace
}  // namespace fastdecode
