#ifndef FASTDECODE_TESTS_ENGINE_RPART_TEST_ENGINE_H_
#define FASTDECODE_TESTS_ENGINE_RPART_TEST_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/rpart/home.h"
#include "engine/rpart/messages.h"
#include "rdma/link.h"

namespace fastdecode {

// One entry of a step as a test asks for it: `tokens` rows from `position` on.
struct TestEntry {
  uint64_t sequence = 0;
  uint32_t position = 0;
  uint32_t tokens = 1;
  // Salt of the row's q, k and v: other content at the same position, as after another continuation of a fork.
  uint64_t content = 0;
};

// What a step brought back: per entry the bytes of its o rows, all layers one after the other.
struct TestStep {
  std::vector<std::vector<std::byte>> o;
  std::vector<uint32_t> failing_rows;  // named by replies, in order
  bool lost = false;                   // the link, on the way
};

// The engine's end of a link to a home, driven by hand. q, k and v of a row follow from (content, position, layer)
// alone, so that the same token has the same rows in whatever company it comes. Keeps the K and V of every sequence in
// double, to compare with.
class TestEngine {
 public:
  // Makes a link to `home` and attaches as `peer`. Aborts the test program if that fails.
  TestEngine(Home* home, const RPartShape& shape, const PeerRequest& peer = {},
             size_t control_ring_bytes = LinkSize().control_ring_bytes);

  // Runs one step of all layers: a roster if the entries differ from the last step's, then a hop a layer.
  TestStep Step(int micro_batch, const std::vector<TestEntry>& entries);
  // As Step, and compares every o with the reference in double precision, with int8 and int4 as far as their codes
  // allow, also in pages that were closed and opened any number of times. Remembers K and V that were appended.
  void CheckedStep(int micro_batch, const std::vector<TestEntry>& entries);

  void Release(uint64_t sequence);
  void Truncate(uint64_t sequence, uint32_t tokens);
  void Fork(uint64_t sequence, uint32_t tokens, uint64_t new_sequence);
  void Fill(uint64_t sequence, uint32_t tokens);
  // Begins to push a sequence of so many tokens. Returns the reservation's number.
  uint64_t Reserve(uint64_t sequence, uint32_t tokens);
  // Pushes the entry's K and V of one layer as one segment, when the link has room for it; false: it was lost instead.
  bool Push(const TestEntry& entry, uint32_t layer, uint64_t reservation);
  // Posts any bytes as a segment.
  bool PushBytes(const std::vector<std::byte>& bytes);
  std::vector<std::byte> SegmentOf(const TestEntry& entry, uint32_t layer, uint64_t reservation) const;
  // Until the home has freed all segments; false if the link was lost instead.
  bool AwaitPushed();
  // Says that nothing is in flight, which the home answers with these.
  StatsMessage Stats();
  // False: the home has ended the link instead of answering.
  bool TryStats(StatsMessage* stats);
  // Asks for a hand-over and waits for the answer. Done: `to` must Adopt the sequence.
  HandOverOutcome HandOver(uint64_t sequence, const PeerId& to, uint64_t new_sequence);
  void SendHandOver(uint64_t sequence, const PeerId& to, uint64_t new_sequence);
  // The next answer; false if the link was lost instead.
  bool AwaitAnswer(HandOverAnswer* answer);
  // The next word of a hand-over to this engine; false if there is none yet, or the link was lost.
  bool TryHandedOver(HandedOverMessage* told);
  bool AwaitHandedOver(HandedOverMessage* told);
  // What is known of a sequence's KV, to be adopted by the engine that it was handed to.
  std::vector<uint64_t> Forget(uint64_t sequence);
  void Adopt(uint64_t sequence, std::vector<uint64_t> contents) { contents_[sequence] = std::move(contents); }
  // Length of what was appended by checked steps.
  uint32_t Length(uint64_t sequence) const;

  // The next reply; false if the link was lost instead.
  bool AwaitReply(ReplyHeader* reply);
  void Send(const void* message, size_t bytes);
  // Until the home has dropped us; detaches, and returns the cause as the home sees it.
  std::string AwaitEnd();

  // Writes the rows of `entries` for `layer` into the slot's send area; returns the hop's header.
  HopHeader WriteRows(int micro_batch, const std::vector<TestEntry>& entries, uint32_t layer);
  void SendRoster(int micro_batch, const std::vector<TestEntry>& entries, uint64_t step_from);

  EngineLink& link() { return *link_; }
  PeerSession* session() const { return session_; }
  // The end of the link, without a word.
  void Close() { link_.reset(); }
  // The number of the next step, for tests that post its hops themselves.
  uint64_t BeginStep(int micro_batch) { return ++steps_[static_cast<size_t>(micro_batch)]; }

 private:
  // Takes in what the home has sent.
  LinkPoll PollMessage();

  void FillVector(uint64_t content, uint32_t position, uint32_t layer, uint32_t what, uint32_t elements,
                  std::byte* out) const;
  std::vector<double> ReadVector(const std::byte* bytes, size_t elements) const;
  void CheckRounded(const TestEntry& entry, const std::vector<double>& expected, const std::vector<double>& actual);
  void CheckEntry(const TestEntry& entry, const std::vector<std::byte>& o);

  Home* const home_;
  const RPartShape shape_;
  std::unique_ptr<EngineLink> link_;
  PeerSession* session_ = nullptr;  // the home's; gone once it is detached
  std::vector<std::byte> message_buffer_;
  StatsMessage stats_;        // the last one
  int idles_unanswered_ = 0;  // each is answered by one
  std::deque<HandOverAnswer> answers_;
  std::deque<HandedOverMessage> handed_over_;
  std::vector<uint64_t> steps_;  // [micro-batch], the last one
  uint64_t reservations_ = 0;
  uint64_t segments_ = 0;                               // posted
  std::vector<uint32_t> versions_;                      // [micro-batch], of its roster
  std::map<uint64_t, std::vector<uint64_t>> contents_;  // [sequence][position]
};

// The message of a roster of these entries, whose first step is `step_from`.
std::vector<std::byte> RosterOf(int micro_batch, uint32_t version, const std::vector<TestEntry>& entries,
                                uint64_t step_from);

// A home of `threads` unpinned threads that yield. Aborts the test program if it cannot be made.
std::unique_ptr<Home> MakeTestHome(int threads, uint64_t kv_bytes, uint32_t peers = 1,
                                   uint32_t sequences_max = 1 << 16);

// Two layers, 2 KV heads, 3 query heads each, dimension 32.
RPartShape SmallShape(ElementType type);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_RPART_TEST_ENGINE_H_
