#include "tests/engine/rpart/test_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <type_traits>

#include "engine/rpart/rpart_shape.h"
#include "kernels/isa.h"
#include "kernels/reference/attention_reference.h"
#include "numa/check.h"
#include "rdma/shm/local_link.h"

namespace fastdecode {

namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}

// In [-1, 1), a multiple of 1/128: exact in bf16.
float ValueOf(uint64_t key, uint32_t index) {
  return static_cast<float>(static_cast<int>(Mix(key + index) >> 56) - 128) / 128.0f;
}

enum What : uint32_t { kQ, kK, kV };

uint64_t KeyOf(uint64_t content, uint32_t position, uint32_t layer, uint32_t what) {
  return Mix(Mix(content + 0x9e37) ^ (uint64_t{position} << 24) ^ (uint64_t{layer} << 4) ^ what) & ~uint64_t{0xffff};
}

void YieldAwhile() { std::this_thread::yield(); }

}  // namespace

std::unique_ptr<Home> MakeTestHome(int threads, uint64_t kv_bytes, uint32_t peers, uint32_t sequences_max) {
  HomeOptions options;
  options.cores.assign(static_cast<size_t>(threads), -1);
  options.kv_bytes = kv_bytes;
  options.peers = peers;
  options.sequences_max = sequences_max;
  options.poll = PollMode::kYield;
  absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(options);
  FD_CHECK(home.ok(), "the test's home cannot be made");
  return *std::move(home);
}

RPartShape SmallShape(ElementType type) {
  RPartShape shape;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.group = 3;
  shape.head_dim = 32;
  shape.element_type = static_cast<uint32_t>(type);
  shape.kv_type = static_cast<uint32_t>(KvTypeOf(type));
  shape.scale = 0.17677669f;
  shape.micro_batches = 2;
  shape.max_rows = 64;
  shape.max_context = 4096;
  return shape;
}

TestEngine::TestEngine(Home* home, const RPartShape& shape, const PeerRequest& peer, size_t control_ring_bytes)
    : home_(home),
      shape_(shape),
      message_buffer_(kControlMessageBytesMax),
      steps_(shape.micro_batches),
      versions_(shape.micro_batches) {
  static uint64_t next_epoch = 1;
  LinkSize size = LinkSizeFor(shape, /*push=*/true);
  size.control_ring_bytes = control_ring_bytes;
  absl::StatusOr<LocalLink> link = MakeLocalLink(size, -1, -1, next_epoch++);
  FD_CHECK(link.ok(), "the test's link cannot be made");
  link_ = std::move(link->engine);
  const absl::Status attached = home->Attach(shape, std::move(link->home), peer);
  if (!attached.ok()) ADD_FAILURE() << attached;
  FD_CHECK(attached.ok(), "the test's home cannot be attached");
  session_ = home->sessions().back().get();
}

void TestEngine::FillVector(uint64_t content, uint32_t position, uint32_t layer, uint32_t what, uint32_t elements,
                            std::byte* out) const {
  const uint64_t key = KeyOf(content, position, layer, what);
  for (uint32_t i = 0; i < elements; ++i) {
    const float value = ValueOf(key, i);
    const Bf16 rounded = ToBf16(value);
    if (shape_.element_bytes() == 4) std::memcpy(out + i * 4, &value, 4);
    if (shape_.element_bytes() == 2) std::memcpy(out + i * 2, &rounded, 2);
  }
}

std::vector<double> TestEngine::ReadVector(const std::byte* bytes, size_t elements) const {
  std::vector<double> values(elements);
  for (size_t i = 0; i < elements; ++i) {
    float value;
    Bf16 rounded;
    if (shape_.element_bytes() == 4) {
      std::memcpy(&value, bytes + i * 4, 4);
    } else {
      std::memcpy(&rounded, bytes + i * 2, 2);
      value = FromBf16(rounded);
    }
    values[i] = value;
  }
  return values;
}

HopHeader TestEngine::WriteRows(int micro_batch, const std::vector<TestEntry>& entries, uint32_t layer) {
  std::byte* row = link_->SendArea(micro_batch);
  HopHeader header;
  for (const TestEntry& entry : entries) {
    for (uint32_t t = 0; t < entry.tokens; ++t) {
      const uint32_t position = entry.position + t;
      const uint32_t kv_elements = shape_.kv_heads * shape_.head_dim;
      FillVector(entry.content, position, layer, kQ, shape_.heads() * shape_.head_dim, row);
      FillVector(entry.content, position, layer, kK, kv_elements, row + shape_.k_offset_bytes());
      FillVector(entry.content, position, layer, kV, kv_elements, row + shape_.v_offset_bytes());
      row += shape_.hop_row_bytes();
      ++header.rows;
    }
  }
  header.payload_bytes = static_cast<uint32_t>(header.rows * shape_.hop_row_bytes());
  header.layer = static_cast<uint16_t>(layer);
  header.micro_batch = static_cast<uint8_t>(micro_batch);
  header.step = steps_[static_cast<size_t>(micro_batch)];
  header.roster_version = versions_[static_cast<size_t>(micro_batch)];
  return header;
}

std::vector<std::byte> RosterOf(int micro_batch, uint32_t version, const std::vector<TestEntry>& entries,
                                uint64_t step_from) {
  RosterMessage header;
  header.micro_batch = static_cast<uint32_t>(micro_batch);
  header.version = version;
  header.entries = static_cast<uint32_t>(entries.size());
  std::vector<std::byte> message(sizeof(header) + entries.size() * sizeof(RosterEntry));
  std::memcpy(message.data(), &header, sizeof(header));
  for (size_t i = 0; i < entries.size(); ++i) {
    const RosterEntry entry = {entries[i].sequence, step_from, entries[i].position, entries[i].tokens};
    std::memcpy(message.data() + sizeof(header) + i * sizeof(entry), &entry, sizeof(entry));
  }
  return message;
}

void TestEngine::SendRoster(int micro_batch, const std::vector<TestEntry>& entries, uint64_t step_from) {
  const std::vector<std::byte> message =
      RosterOf(micro_batch, ++versions_[static_cast<size_t>(micro_batch)], entries, step_from);
  Send(message.data(), message.size());
}

void TestEngine::Send(const void* message, size_t bytes) {
  uint32_t kind = 0;
  if (bytes >= sizeof(kind)) std::memcpy(&kind, message, sizeof(kind));
  idles_unanswered_ += kind == static_cast<uint32_t>(ControlKind::kIdle);
  while (!link_->TrySendControl(message, bytes) && !link_->lost()) YieldAwhile();
  link_->RingHome();
}

bool TestEngine::AwaitReply(ReplyHeader* reply) {
  for (;;) {
    switch (link_->PollReply(reply)) {
      case LinkPoll::kMessage:
        return true;
      case LinkPoll::kLost:
        return false;
      case LinkPoll::kEmpty:
        YieldAwhile();
    }
  }
}

TestStep TestEngine::Step(int micro_batch, const std::vector<TestEntry>& entries) {
  TestStep result;
  result.o.resize(entries.size());
  const uint64_t step = BeginStep(micro_batch);
  SendRoster(micro_batch, entries, step);
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    link_->PostHop(WriteRows(micro_batch, entries, layer));
    link_->RingHome();
    ReplyHeader reply;
    if (!AwaitReply(&reply) || reply.status == HopStatus::kBadHop) {
      result.lost = true;
      return result;
    }
    if (reply.status == HopStatus::kBadRow) result.failing_rows.push_back(reply.failing_row);
    const std::byte* o = link_->ReceiveArea(micro_batch);
    for (size_t i = 0; i < entries.size(); ++i) {
      const size_t bytes = entries[i].tokens * shape_.reply_row_bytes();
      result.o[i].insert(result.o[i].end(), o, o + bytes);
      o += bytes;
    }
    EXPECT_EQ(reply.payload_bytes, static_cast<size_t>(o - link_->ReceiveArea(micro_batch)));
  }
  return result;
}

void TestEngine::CheckedStep(int micro_batch, const std::vector<TestEntry>& entries) {
  const TestStep step = Step(micro_batch, entries);
  ASSERT_FALSE(step.lost) << link_->lost_cause();
  ASSERT_TRUE(step.failing_rows.empty()) << "row " << step.failing_rows[0];
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<uint64_t>& contents = contents_[entries[i].sequence];
    ASSERT_LE(entries[i].position, contents.size());
    // What is stored already stays as it is.
    while (contents.size() < entries[i].position + entries[i].tokens) contents.push_back(entries[i].content);
    CheckEntry(entries[i], step.o[i]);
  }
}

void TestEngine::CheckEntry(const TestEntry& entry, const std::vector<std::byte>& o) {
  const std::vector<uint64_t>& contents = contents_[entry.sequence];
  ReferenceAttentionInput in;
  in.kv_heads = static_cast<int>(shape_.kv_heads);
  in.group = static_cast<int>(shape_.group);
  in.head_dim = static_cast<int>(shape_.head_dim);
  in.scale = shape_.scale;
  in.soft_cap = shape_.soft_cap;
  in.context = static_cast<int>(entry.position + entry.tokens);
  in.rows = static_cast<int>(entry.tokens);
  in.first_row_position = static_cast<int>(entry.position);
  const size_t row_elements = shape_.heads() * shape_.head_dim;
  const size_t kv_elements = shape_.kv_heads * shape_.head_dim;
  // |q|, |k|, |v| <= 1. A score is a sum of head_dim products, off by at most head_dim + 2 roundings of its largest
  // partial sum; a probability by twice that, plus the exponential's 2^-22 and what the kernel rounds it by; a sum over
  // the context by a rounding a token.
  const double rounding = 0x1p-24;
  const double score_error = (shape_.head_dim + 2) * rounding * shape_.head_dim * shape_.scale;
  const double p_rounding = SelectAttention(DetectIsa(), shape_.attention()).p_rounding;
  const double o_error = 2 * (2 * score_error + 0x1p-22 + p_rounding) + 4 * in.context * rounding;
  const double output_rounding = shape_.element_bytes() == 2 ? 0x1p-8 : 0x1p-24;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    in.sliding_window = shape_.windowed(layer) ? static_cast<int>(shape_.sliding_window) : 0;
    in.q.clear();
    in.k.clear();
    in.v.clear();
    for (uint32_t r = 0; r < entry.tokens; ++r) {
      const uint64_t key = KeyOf(entry.content, entry.position + r, layer, kQ);
      for (uint32_t e = 0; e < row_elements; ++e) in.q.push_back(ValueOf(key, e));
    }
    for (uint32_t p = 0; p < entry.position + entry.tokens; ++p) {
      for (uint32_t e = 0; e < kv_elements; ++e) {
        in.k.push_back(ValueOf(KeyOf(contents[p], p, layer, kK), e));
        in.v.push_back(ValueOf(KeyOf(contents[p], p, layer, kV), e));
      }
    }
    const std::vector<double> expected = ReferenceAttention(in);
    const std::vector<double> actual =
        ReadVector(o.data() + layer * entry.tokens * shape_.reply_row_bytes(), entry.tokens * row_elements);
    if (shape_.attention().kv_type == KvType::kInt4 || shape_.attention().kv_type == KvType::kInt8) {
      CheckRounded(entry, expected, actual);
      continue;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], o_error + output_rounding * std::abs(expected[i]))
          << "sequence " << entry.sequence << " row " << i / row_elements << " of " << entry.tokens << " from position "
          << entry.position << " layer " << layer << " element " << i % row_elements;
    }
  }
}

// A mean of V in [-1, 1), with int4 each within half of a fifteenth of its range, and a little more where the range was
// opened and closed again; each such time K is off by .04 rms, and a score, of 32 dims, by as much. With int8 both are
// off by .003.
void TestEngine::CheckRounded(const TestEntry& entry, const std::vector<double>& expected,
                              const std::vector<double>& actual) {
  double squares = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_LE(std::abs(actual[i]), 1.1) << "sequence " << entry.sequence << " position " << entry.position;
    squares += (actual[i] - expected[i]) * (actual[i] - expected[i]);
  }
  const double most = shape_.attention().kv_type == KvType::kInt4 ? 0.2 : 0.02;
  ASSERT_LT(std::sqrt(squares / static_cast<double>(expected.size())), most)
      << "sequence " << entry.sequence << ", " << entry.tokens << " tokens from " << entry.position;
}

void TestEngine::Release(uint64_t sequence) {
  const SequenceMessage message = {static_cast<uint32_t>(ControlKind::kRelease), 0, sequence};
  Send(&message, sizeof(message));
  contents_.erase(sequence);
}

void TestEngine::Truncate(uint64_t sequence, uint32_t tokens) {
  const SequenceMessage message = {static_cast<uint32_t>(ControlKind::kTruncate), tokens, sequence};
  Send(&message, sizeof(message));
  if (contents_.contains(sequence)) contents_[sequence].resize(tokens);
}

void TestEngine::Fork(uint64_t sequence, uint32_t tokens, uint64_t new_sequence) {
  const ForkMessage message = {static_cast<uint32_t>(ControlKind::kFork), tokens, sequence, new_sequence};
  Send(&message, sizeof(message));
  contents_[new_sequence] = contents_[sequence];
  contents_[new_sequence].resize(tokens);
}

void TestEngine::Fill(uint64_t sequence, uint32_t tokens) {
  const SequenceMessage message = {static_cast<uint32_t>(ControlKind::kFill), tokens, sequence};
  Send(&message, sizeof(message));
}

uint64_t TestEngine::Reserve(uint64_t sequence, uint32_t tokens) {
  const SequenceMessage message = {static_cast<uint32_t>(ControlKind::kReserve), tokens, sequence};
  Send(&message, sizeof(message));
  return ++reservations_;
}

std::vector<std::byte> TestEngine::SegmentOf(const TestEntry& entry, uint32_t layer, uint64_t reservation) const {
  std::vector<std::byte> segment(kPushRowsOffset + entry.tokens * shape_.kv_row_bytes());
  PushHeader header;
  header.sequence = entry.sequence;
  header.reservation = reservation;
  header.layer = layer;
  header.first_position = entry.position;
  header.tokens = entry.tokens;
  std::memcpy(segment.data(), &header, sizeof(header));
  std::byte* row = segment.data() + kPushRowsOffset;
  const uint32_t elements = shape_.kv_heads * shape_.head_dim;
  for (uint32_t position = entry.position; position < entry.position + entry.tokens; ++position) {
    FillVector(entry.content, position, layer, kK, elements, row);
    FillVector(entry.content, position, layer, kV, elements, row + shape_.kv_row_bytes() / 2);
    row += shape_.kv_row_bytes();
  }
  return segment;
}

bool TestEngine::PushBytes(const std::vector<std::byte>& bytes) {
  std::byte* area = nullptr;
  while ((area = link_->BulkArea()) == nullptr) {
    if (link_->lost()) return false;
    YieldAwhile();
  }
  std::memcpy(area, bytes.data(), bytes.size());
  link_->PostBulk(bytes.size());
  link_->RingHome();
  ++segments_;
  return true;
}

bool TestEngine::Push(const TestEntry& entry, uint32_t layer, uint64_t reservation) {
  return PushBytes(SegmentOf(entry, layer, reservation));
}

bool TestEngine::AwaitPushed() {
  while (link_->BulkFreed() != segments_) {
    if (link_->lost()) return false;
    YieldAwhile();
  }
  return true;
}

StatsMessage TestEngine::Stats() {
  StatsMessage stats;
  EXPECT_TRUE(TryStats(&stats)) << link_->lost_cause();
  return stats;
}

bool TestEngine::TryStats(StatsMessage* stats) {
  const IdleMessage idle;
  Send(&idle, sizeof(idle));
  while (idles_unanswered_ > 0) {
    const LinkPoll poll = PollMessage();
    if (poll == LinkPoll::kLost) return false;
    if (poll == LinkPoll::kEmpty) YieldAwhile();
  }
  *stats = stats_;
  return true;
}

LinkPoll TestEngine::PollMessage() {
  const auto take = [this](size_t bytes, auto* messages) {
    typename std::remove_reference_t<decltype(*messages)>::value_type message;
    EXPECT_EQ(bytes, sizeof(message));
    std::memcpy(&message, message_buffer_.data(), sizeof(message));
    messages->push_back(message);
  };
  size_t bytes = 0;
  const LinkPoll poll = link_->PollControl(message_buffer_.data(), &bytes);
  if (poll != LinkPoll::kMessage) return poll;
  uint32_t kind = 0;
  std::memcpy(&kind, message_buffer_.data(), sizeof(kind));
  switch (static_cast<ControlKind>(kind)) {
    case ControlKind::kStats:
      EXPECT_EQ(bytes, sizeof(stats_));
      std::memcpy(&stats_, message_buffer_.data(), sizeof(stats_));
      idles_unanswered_ -= stats_.idle != 0;
      break;
    case ControlKind::kHandOverAnswer:
      take(bytes, &answers_);
      break;
    case ControlKind::kHandedOver:
      take(bytes, &handed_over_);
      break;
    default:
      ADD_FAILURE() << "a home says nothing of kind " << kind;
  }
  return poll;
}

void TestEngine::SendHandOver(uint64_t sequence, const PeerId& to, uint64_t new_sequence) {
  HandOverMessage message;
  message.role = to.role;
  message.engine_id = to.engine_id;
  message.sequence = sequence;
  message.new_sequence = new_sequence;
  Send(&message, sizeof(message));
}

bool TestEngine::AwaitAnswer(HandOverAnswer* answer) {
  while (answers_.empty()) {
    const LinkPoll poll = PollMessage();
    if (poll == LinkPoll::kLost) return false;
    if (poll == LinkPoll::kEmpty) YieldAwhile();
  }
  *answer = answers_.front();
  answers_.pop_front();
  return true;
}

HandOverOutcome TestEngine::HandOver(uint64_t sequence, const PeerId& to, uint64_t new_sequence) {
  SendHandOver(sequence, to, new_sequence);
  HandOverAnswer answer;
  EXPECT_TRUE(AwaitAnswer(&answer)) << link_->lost_cause();
  EXPECT_EQ(answer.sequence, sequence);
  return answer.outcome;
}

bool TestEngine::TryHandedOver(HandedOverMessage* told) {
  while (handed_over_.empty()) {
    if (PollMessage() != LinkPoll::kMessage) return false;
  }
  *told = handed_over_.front();
  handed_over_.pop_front();
  return true;
}

bool TestEngine::AwaitHandedOver(HandedOverMessage* told) {
  while (!TryHandedOver(told)) {
    if (link_->lost()) return false;
    YieldAwhile();
  }
  return true;
}

std::vector<uint64_t> TestEngine::Forget(uint64_t sequence) {
  std::vector<uint64_t> contents = std::move(contents_[sequence]);
  contents_.erase(sequence);
  return contents;
}

uint32_t TestEngine::Length(uint64_t sequence) const {
  const auto found = contents_.find(sequence);
  return found == contents_.end() ? 0 : static_cast<uint32_t>(found->second.size());
}

std::string TestEngine::AwaitEnd() {
  while (!session_->ended()) YieldAwhile();
  return home_->Detach(session_);
}

}  // namespace fastdecode
