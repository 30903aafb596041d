// How a verbs link is lost: by failed completions, events, calls, silence, farewells, and peers that break the
// protocol.

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {
namespace {

using testing::Test;

std::atomic<uint64_t> g_now_ns{1};

class VerbsLossTest : public Test {
 protected:
  explicit VerbsLossTest(const VerbsPair::Options& options = {.size = SmallSize(),
                                                              .now_ns = [] { return g_now_ns.load(); }})
      : pair_(options) {}
  ~VerbsLossTest() override { pair_.ExpectClean(); }

  LinkPoll PollEngine() { return pair_.engine->PollReply(&reply_); }
  LinkPoll PollHome() { return pair_.home->PollHop(&hop_, &payload_); }
  // Until the heartbeat's timer, which runs in real time, has gone off.
  void Tick(LinkEnd* end) {
    pollfd entry = {end->liveness_fd(), POLLIN, 0};
    ::poll(&entry, 1, 10'000);
    end->CheckPeer();
  }
  void ExpectContains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
  }

  VerbsPair pair_;
  HopHeader hop_;
  ReplyHeader reply_;
  const std::byte* payload_ = nullptr;
};

// ---- What the device says. ----

class VerbsStatusTest : public VerbsLossTest, public testing::WithParamInterface<int> {};

TEST_P(VerbsStatusTest, AFailedCompletionNamesPeerDeviceAndCause) {
  const ibv_wc_status status = static_cast<ibv_wc_status>(GetParam());
  pair_.fabric.FailNextWrite(pair_.engine_context, status);
  pair_.engine->PostHop(Hop(0));
  EXPECT_EQ(PollEngine(), LinkPoll::kLost);
  const std::string cause = pair_.engine->lost_cause();
  ExpectContains(cause, "the home through fake0 port 1, GID 0 10.0.0.1 (RoCE v2): ");
  ExpectContains(cause, "(status " + std::to_string(GetParam()) + ", vendor 0x77) of a hop: ");
  EXPECT_EQ(cause.find("success"), std::string::npos);
  // Nothing is posted any more.
  const uint64_t writes = pair_.fabric.writes();
  pair_.engine->PostHop(Hop(1));
  EXPECT_FALSE(pair_.engine->TrySendControl("x", 1));
  pair_.engine->RingHome();
  EXPECT_EQ(pair_.fabric.writes(), writes);
  // The peer hears of it.
  pair_.home->CheckPeer();
  ExpectContains(pair_.home->lost_cause(), "the engine gave the link up: ");
}

INSTANTIATE_TEST_SUITE_P(Every, VerbsStatusTest,
                         testing::Values(IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_EEC_OP_ERR,
                                         IBV_WC_LOC_PROT_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR,
                                         IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
                                         IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
                                         IBV_WC_LOC_RDD_VIOL_ERR, IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_ABORT_ERR,
                                         IBV_WC_INV_EECN_ERR, IBV_WC_INV_EEC_STATE_ERR, IBV_WC_FATAL_ERR,
                                         IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR));

TEST_F(VerbsLossTest, AFlushedCompletionIsNoCauseWhereAnotherIsKnown) {
  pair_.fabric.FailNextWrite(pair_.engine_context, IBV_WC_WR_FLUSH_ERR);
  pair_.engine->PostHop(Hop(0));
  EXPECT_EQ(PollEngine(), LinkPoll::kEmpty);
  EXPECT_FALSE(pair_.engine->lost()) << "the cause is still to come";
  EXPECT_FALSE(pair_.engine->TrySendControl("x", 1));
  pair_.fabric.RaiseEvent(pair_.engine_context, IBV_EVENT_QP_FATAL);
  pair_.engine->CheckPeer();
  ExpectContains(pair_.engine->lost_cause(), "QP_FATAL");
}

TEST_F(VerbsLossTest, AFlushedCompletionLosesTheLinkIfNothingElseIsKnownSoon) {
  pair_.fabric.FailNextWrite(pair_.engine_context, IBV_WC_WR_FLUSH_ERR);
  pair_.engine->PostHop(Hop(0));
  EXPECT_EQ(PollEngine(), LinkPoll::kEmpty);
  for (int i = 0; i < 100 && !pair_.engine->lost(); ++i) Tick(pair_.engine.get());
  ExpectContains(pair_.engine->lost_cause(), "work request flushed");
}

TEST_F(VerbsLossTest, AFailedBulkSegmentIsNamed) {
  pair_.fabric.FailNextWrite(pair_.engine_context, IBV_WC_REM_ACCESS_ERR);
  ASSERT_NE(pair_.engine->BulkArea(), nullptr);
  pair_.engine->PostBulk(7);
  EXPECT_EQ(PollEngine(), LinkPoll::kLost);
  ExpectContains(pair_.engine->lost_cause(), "remote access error");
  ExpectContains(pair_.engine->lost_cause(), "of a bulk segment");
}

TEST_F(VerbsLossTest, AFlushedBulkQueueTakesNoMore) {
  pair_.fabric.FailNextWrite(pair_.engine_context, IBV_WC_WR_FLUSH_ERR);
  ASSERT_NE(pair_.engine->BulkArea(), nullptr);
  pair_.engine->PostBulk(7);
  EXPECT_EQ(PollEngine(), LinkPoll::kEmpty) << "it is no cause yet";
  EXPECT_EQ(pair_.engine->BulkArea(), nullptr);
  pair_.fabric.FailPosts(pair_.engine_context, EINVAL);
  pair_.engine->PostBulk(7);
  EXPECT_FALSE(pair_.engine->lost()) << pair_.engine->lost_cause();
  pair_.fabric.FailPosts(pair_.engine_context, 0);
}

TEST_F(VerbsLossTest, FatalEventsLoseTheLinkAndOthersDoNot) {
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PORT_ACTIVE,
                                    IBV_EVENT_SM_CHANGE, IBV_EVENT_GID_CHANGE, IBV_EVENT_PKEY_CHANGE}) {
    pair_.fabric.RaiseEvent(pair_.engine_context, type);
  }
  pair_.fabric.RaiseEvent(pair_.engine_context, IBV_EVENT_PORT_ERR, /*port=*/2);
  pair_.engine->CheckPeer();
  EXPECT_FALSE(pair_.engine->lost()) << pair_.engine->lost_cause();
  pair_.fabric.RaiseEvent(pair_.engine_context, IBV_EVENT_PORT_ERR);
  pollfd entry = {pair_.engine->liveness_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  pair_.engine->CheckPeer();
  ExpectContains(pair_.engine->lost_cause(), "PORT_ERR: the port went down");
  EXPECT_EQ(PollEngine(), LinkPoll::kLost);
}

TEST_F(VerbsLossTest, EveryFatalEventIsNamed) {
  const struct {
    ibv_event_type type;
    const char* name;
  } events[] = {{IBV_EVENT_QP_FATAL, "QP_FATAL"},           {IBV_EVENT_QP_REQ_ERR, "QP_REQ_ERR"},
                {IBV_EVENT_QP_ACCESS_ERR, "QP_ACCESS_ERR"}, {IBV_EVENT_CQ_ERR, "CQ_ERR"},
                {IBV_EVENT_PATH_MIG_ERR, "PATH_MIG_ERR"},   {IBV_EVENT_DEVICE_FATAL, "DEVICE_FATAL"},
                {IBV_EVENT_LID_CHANGE, "LID_CHANGE"}};
  for (const auto& [type, name] : events) {
    VerbsPair pair({.size = SmallSize()});
    pair.fabric.RaiseEvent(pair.home_context, type);
    pair.home->CheckPeer();
    ExpectContains(pair.home->lost_cause(), name);
    pair.ExpectClean();
  }
}

TEST_F(VerbsLossTest, AFailedPostLosesTheLink) {
  pair_.fabric.FailPosts(pair_.engine_context, ENOMEM);
  pair_.engine->PostHop(Hop(0));
  EXPECT_EQ(PollEngine(), LinkPoll::kLost);
  ExpectContains(pair_.engine->lost_cause(), "ibv_post_send: Cannot allocate memory (12)");
}

// ---- What the peer's process says. ----

TEST_F(VerbsLossTest, ASilentPeerIsLostAndOneThatWasHeardIsNot) {
  pair_.engine->CheckPeer();
  g_now_ns += 900'000'000;
  pair_.to_engine->Put({PeerNews::Kind::kHeartbeat, 41, ""});
  g_now_ns += 900'000'000;
  pair_.engine->CheckPeer();
  EXPECT_FALSE(pair_.engine->lost()) << "what came while nobody looked counts";
  EXPECT_EQ(pair_.engine->Progress(), 41u);
  g_now_ns += 1'000'000'001;
  pair_.engine->CheckPeer();
  ExpectContains(pair_.engine->lost_cause(), "the home has been silent for 1000 ms");
}

TEST_F(VerbsLossTest, APeerThatIsNotReadyIsNotSilent) {
  pair_.to_home->ready = false;
  g_now_ns += 5'000'000'000;
  pair_.home->CheckPeer();
  pair_.to_home->ready = true;
  g_now_ns += 5'000'000'000;
  pair_.home->CheckPeer();
  g_now_ns += 1'000'000'000;
  pair_.home->CheckPeer();
  EXPECT_FALSE(pair_.home->lost()) << pair_.home->lost_cause();
  g_now_ns += 1;
  pair_.home->CheckPeer();
  ExpectContains(pair_.home->lost_cause(), "the engine has been silent for 1000 ms");
}

// A worker that makes way looks at a link which its monitor looks at as well.
TEST(VerbsLivenessTest, TwoThatLookAtOnceFindNoSilence) {
  VerbsPair pair({.size = SmallSize(), .now_ns = [] {
                    const uint64_t now_ns = ++g_now_ns;
                    sched_yield();
                    return now_ns;
                  }});
  const auto look = [&pair] {
    for (int i = 0; i < 5000; ++i) {
      pair.to_engine->Put({PeerNews::Kind::kHeartbeat, 1, ""});
      pair.engine->CheckPeer();
    }
  };
  std::thread other(look);
  look();
  other.join();
  EXPECT_FALSE(pair.engine->lost()) << pair.engine->lost_cause();
  pair.ExpectClean();
}

TEST_F(VerbsLossTest, TheEndOfTheConnectionIsTheEndOfTheLink) {
  pair_.to_home->Put({PeerNews::Kind::kClosed, 0, "connection reset by peer"});
  pair_.home->Arm();
  pair_.home->CheckPeer();
  EXPECT_EQ(pair_.home->lost_cause(), "the engine went away: connection reset by peer");
  pair_.home->Sleep(3'600'000'000'000);  // would hang the test
}

// ---- A peer that writes what it likes. ----

// Notifications and bytes as the engine's queue pair can send them, whatever its link thinks.
class HostileEngineTest : public VerbsLossTest {
 protected:
  void Notify(uint32_t imm, size_t bytes = 0) {
    const VerbsWiring& wiring = pair_.engine_wiring;
    ibv_sge piece = {reinterpret_cast<uint64_t>(wiring.out.data), static_cast<uint32_t>(bytes), wiring.out.key};
    ibv_send_wr request = {};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = imm;
    request.sg_list = &piece;
    request.num_sge = bytes > 0 ? 1 : 0;
    request.wr.rdma.remote_addr = wiring.peer_slots.address;
    request.wr.rdma.rkey = wiring.peer_slots.key;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(wiring.queue_pair, &request, &bad), 0);
  }
  void Announce(MessageKind kind, int slot, uint64_t sequence, size_t bytes = 0) {
    Notify(ImmData(kind, slot, sequence).ToWire(), bytes);
  }
  // What the home thinks of it.
  std::string Cause() {
    EXPECT_EQ(PollHome(), LinkPoll::kLost);
    EXPECT_EQ(payload_, nullptr);
    return pair_.home->lost_cause();
  }
  MessageLine* OutLine() { return reinterpret_cast<MessageLine*>(pair_.engine_wiring.out.data); }
  // A line that the home takes, of slot 0.
  MessageLine GoodLine(uint32_t payload_bytes) {
    HopHeader hop = Hop(0);
    hop.epoch = 7;
    hop.payload_bytes = payload_bytes;
    MessageLine line = {};
    std::memcpy(line.words, &hop, sizeof(hop));
    line.words[MessageLine::kSequenceWord] = 1;
    return line;
  }
};

TEST_F(HostileEngineTest, AGoodMessageMadeByHandIsTaken) {
  *OutLine() = GoodLine(40);
  Announce(MessageKind::kHop, 0, 1, sizeof(MessageLine) + 40);
  EXPECT_EQ(PollHome(), LinkPoll::kMessage) << pair_.home->lost_cause();
}

TEST_F(HostileEngineTest, UnknownKind) {
  Notify(0xffffffff);
  EXPECT_EQ(Cause(), "protocol error by the engine: a notification of unknown kind");
}

TEST_F(HostileEngineTest, AReplyIsNoHop) {
  Announce(MessageKind::kReply, 0, 1);
  EXPECT_EQ(Cause(), "protocol error by the engine: a notification of unknown kind");
}

TEST_F(HostileEngineTest, SlotOutOfRange) {
  Announce(MessageKind::kHop, 3, 1);
  EXPECT_EQ(Cause(), "protocol error by the engine: a notification of a slot that does not exist (slot 3)");
}

TEST_F(HostileEngineTest, AnnouncedOutOfSequence) {
  Announce(MessageKind::kHop, 1, 2);
  EXPECT_EQ(Cause(), "protocol error by the engine: message out of sequence (slot 1)");
}

TEST_F(HostileEngineTest, TwiceTheSameSlot) {
  Announce(MessageKind::kHop, 1, 1);
  Announce(MessageKind::kHop, 1, 2);
  EXPECT_EQ(Cause(), "protocol error by the engine: a second message in a slot before the first was answered (slot 1)");
}

TEST_F(HostileEngineTest, AHopIntoAnOpenSlot) {
  pair_.engine->PostHop(Hop(0));
  EXPECT_EQ(PollHome(), LinkPoll::kMessage);
  payload_ = nullptr;
  Announce(MessageKind::kHop, 0, 2);
  EXPECT_EQ(Cause(), "protocol error by the engine: hop to a slot whose last hop has no reply yet (slot 0)");
}

TEST_F(HostileEngineTest, AnnouncedButNotWritten) {
  Announce(MessageKind::kHop, 0, 1);
  EXPECT_EQ(Cause(), "protocol error by the engine: a slot's line is not the one that was announced (slot 0)");
}

TEST_F(HostileEngineTest, AnotherLengthThanTheHeaderSays) {
  *OutLine() = GoodLine(40);
  Announce(MessageKind::kHop, 0, 1, sizeof(MessageLine) + 39);
  EXPECT_EQ(Cause(), "protocol error by the engine: header and write differ in the message's length (slot 0)");
}

TEST_F(HostileEngineTest, AHeaderThatBreaksTheRules) {
  *OutLine() = GoodLine(201);
  Announce(MessageKind::kHop, 0, 1, sizeof(MessageLine));
  EXPECT_EQ(Cause(), "protocol error by the engine: hop payload larger than agreed (slot 0)");
}

TEST_F(HostileEngineTest, ControlThatWasNotWritten) {
  Announce(MessageKind::kControl, 0, 1);
  char buffer[64];
  size_t bytes;
  EXPECT_EQ(pair_.home->PollControl(buffer, &bytes), LinkPoll::kLost);
  EXPECT_EQ(pair_.home->lost_cause(), "protocol error by the engine: control message out of bounds");
}

TEST_F(HostileEngineTest, MoreControlThanTheWindow) {
  for (uint64_t i = 1; i <= kControlWindow + 1; ++i) Announce(MessageKind::kRing, 0, i);
  for (int i = 0; i < 10 && !pair_.home->lost(); ++i) PollHome();
  EXPECT_EQ(Cause(), "protocol error by the engine: more control messages than the window allows");
}

TEST_F(HostileEngineTest, CreditForWhatWasNotSent) {
  std::byte* const line = pair_.home_wiring.in.data + pair_.home_wiring.in_layout.credit_offset();
  const uint64_t forged = 8;
  std::memcpy(line, &forged, sizeof(forged));
  while (pair_.home->TrySendControl("x", 1)) {  // the first eight bytes of credit would be right after one message
  }
  const uint64_t beyond = 1 << 20;
  std::memcpy(line, &beyond, sizeof(beyond));
  EXPECT_FALSE(pair_.home->TrySendControl("x", 1));
  EXPECT_EQ(pair_.home->lost_cause(), "protocol error by the engine: control credit out of bounds");
}

// On the bulk queue pair.
class HostileBulkTest : public HostileEngineTest {
 protected:
  void AnnounceBulk(MessageKind kind, uint64_t sequence, size_t bytes) {
    const VerbsWiring& wiring = pair_.engine_wiring;
    ibv_sge piece = {reinterpret_cast<uint64_t>(wiring.bulk.data), static_cast<uint32_t>(bytes), wiring.bulk.key};
    ibv_send_wr request = {};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = ImmData(kind, 0, sequence).ToWire();
    request.sg_list = &piece;
    request.num_sge = bytes > 0 ? 1 : 0;
    request.wr.rdma.remote_addr = wiring.peer_bulk.address;
    request.wr.rdma.rkey = wiring.peer_bulk.key;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(wiring.bulk_pair, &request, &bad), 0);
  }
};

TEST_F(HostileBulkTest, ASegmentMadeByHandIsTaken) {
  const uint64_t number = 1;
  std::memcpy(pair_.engine_wiring.bulk.data + 9, &number, sizeof(number));
  AnnounceBulk(MessageKind::kBulk, 1, 9 + sizeof(BulkTrailer));
  size_t bytes = 0;
  ASSERT_EQ(pair_.home->PollBulk(&payload_, &bytes), LinkPoll::kMessage);
  EXPECT_EQ(bytes, 9u);
}

TEST_F(HostileBulkTest, AnnouncedButNotWritten) {
  AnnounceBulk(MessageKind::kBulk, 1, 9 + sizeof(BulkTrailer));
  size_t bytes = 0;
  EXPECT_EQ(pair_.home->PollBulk(&payload_, &bytes), LinkPoll::kLost);
  EXPECT_EQ(Cause(), "protocol error by the engine: a bulk segment is not the one that was announced");
}

TEST_F(HostileBulkTest, OutOfSequence) {
  AnnounceBulk(MessageKind::kBulk, 2, 9);
  EXPECT_EQ(Cause(), "protocol error by the engine: bulk segment out of sequence");
}

TEST_F(HostileBulkTest, AnotherKindOfMessage) {
  AnnounceBulk(MessageKind::kHop, 1, 9);
  EXPECT_EQ(Cause(), "protocol error by the engine: bulk segment out of sequence");
}

TEST_F(HostileBulkTest, AnEmptySegment) {
  AnnounceBulk(MessageKind::kBulk, 1, sizeof(BulkTrailer));
  EXPECT_EQ(Cause(), "protocol error by the engine: bulk segment size");
}

TEST_F(HostileBulkTest, ALongerSegmentThanAgreed) {
  AnnounceBulk(MessageKind::kBulk, 1, 501 + sizeof(BulkTrailer));
  EXPECT_EQ(Cause(), "protocol error by the engine: bulk segment size");
}

TEST_F(HostileBulkTest, MoreSegmentsThanWereFreed) {
  for (uint64_t i = 1; i <= 4; ++i) AnnounceBulk(MessageKind::kBulk, i, 9 + sizeof(BulkTrailer));
  EXPECT_EQ(Cause(), "protocol error by the engine: more bulk segments than were freed");
}

TEST_F(HostileBulkTest, CreditForSegmentsThatWereNotSent) {
  std::byte* const line = pair_.engine_wiring.in.data + pair_.engine_wiring.in_layout.credit_offset();
  const uint64_t forged = 4;
  std::memcpy(line + offsetof(CreditLine, segments), &forged, sizeof(forged));
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(pair_.engine->BulkArea(), nullptr);
    pair_.engine->PostBulk(1);
  }
  EXPECT_EQ(pair_.engine->BulkArea(), nullptr);
  EXPECT_EQ(pair_.engine->lost_cause(), "protocol error by the home: bulk credit out of bounds");
}

TEST_F(HostileBulkTest, AHopsNotificationIsNoBulkSegmentThere) {
  Announce(MessageKind::kBulk, 0, 1);
  EXPECT_EQ(Cause(), "protocol error by the engine: a notification of unknown kind");
}

TEST_F(HostileEngineTest, AWriteOutsideTheRegionsIsRefusedByTheDevice) {
  VerbsWiring& wiring = pair_.engine_wiring;
  wiring.peer_slots.address += wiring.peer_layout.slots_bytes() - 8;  // its last bytes lie behind the slots
  Notify(ImmData(MessageKind::kHop, 0, 1).ToWire(), 16);
  EXPECT_EQ(PollHome(), LinkPoll::kEmpty);
  pair_.home->CheckPeer();
  ExpectContains(pair_.home->lost_cause(), "QP_ACCESS_ERR: the peer wrote outside the memory that it may write");
  EXPECT_EQ(PollEngine(), LinkPoll::kLost);
  ExpectContains(pair_.engine->lost_cause(), "remote access error");
}

// ---- Epochs. ----

TEST(VerbsEpochTest, AnOldEndCannotWriteIntoANewOne) {
  // The home's end goes and another takes over; what the old engine still sends reaches neither.
  VerbsPair pair({.size = SmallSize()});
  pair.fabric.Hold(pair.engine_context, true);
  std::memset(pair.engine->SendArea(0), 0x5a, 200);
  pair.engine->PostHop(Hop(0));
  pair.home.reset();
  VerbsOptions options;
  options.calls = &pair.calls;
  auto next = VerbsEnd::Create(options, SmallSize(), LinkRole::kHome, -1);
  ASSERT_TRUE(next.ok()) << next.status();
  auto next_engine = VerbsEnd::Create(options, SmallSize(), LinkRole::kEngine, -1);
  ASSERT_TRUE(next_engine.ok());
  ASSERT_TRUE((*next)->Connect((*next_engine)->parameters()).ok());
  ASSERT_TRUE((*next_engine)->Connect((*next)->parameters()).ok());
  pair.fabric.Hold(pair.engine_context, false);
  pair.fabric.Settle();
  const VerbsWiring wiring = (*next)->wiring();
  for (size_t i = 0; i < wiring.in_layout.bytes(); ++i) ASSERT_EQ(wiring.in.data[i], std::byte{0});
  ReplyHeader reply;
  EXPECT_EQ(pair.engine->PollReply(&reply), LinkPoll::kLost);
  next->reset();
  next_engine->reset();
  pair.ExpectClean();
}

TEST(VerbsEpochTest, EndsAreDestroyedInAnyOrderWithMessagesUnderWay) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    VerbsPair pair({.size = SmallSize(), .fabric = {.seed = seed, .steps_per_call = 2}});
    for (int slot = 0; slot < 3; ++slot) pair.engine->PostHop(Hop(slot));
    for (int i = 0; i < 5; ++i) {
      pair.engine->TrySendControl("abc", 3);
      pair.home->TrySendControl("abc", 3);
    }
    if (seed % 2 == 0) {
      pair.engine.reset();
    } else {
      pair.home.reset();
    }
    pair.ExpectClean();
  }
}

}  // namespace
}  // namespace fastdecode
