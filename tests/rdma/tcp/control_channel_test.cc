#include "rdma/tcp/control_channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "numa/clock.h"
#include "rdma/tcp/tcp_socket.h"
#include "tests/rdma/tcp/secret_file.h"

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 60'000'000'000;
using Kind = PeerNews::Kind;

ReadyFrames Frames(const std::string& handshake = "all that was said") {
  Transcript transcript(MakeSecret("sixteen bytes ok"));
  transcript.Append(handshake);
  return MakeReadyFrames(std::move(transcript));
}

class ControlChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    engine_socket_ = FileDescriptor(fds[0]);
    worker_socket_ = FileDescriptor(fds[1]);
  }
  void MakeEngine() {
    engine_ = std::make_unique<ControlChannel>(Side::kEngine, "worker at node7:4711", std::move(engine_socket_),
                                               Frames(), NowNs() + kGenerousNs);
  }
  void MakeWorker(uint64_t ready_timeout_ns = kGenerousNs) {
    worker_ = std::make_unique<ControlChannel>(Side::kWorker, "engine at 10.0.0.1:999", std::move(worker_socket_),
                                               Frames(), NowNs() + ready_timeout_ns);
  }
  void MakeReadyPair() {
    MakeEngine();
    MakeWorker();
    engine_->SendReady();
    EXPECT_EQ(Await(worker_.get()).kind, Kind::kNothing);
    EXPECT_TRUE(engine_->AwaitReady(NowNs() + kGenerousNs).ok());
  }
  // Once there is something to read, what it was.
  static PeerNews Await(ControlChannel* channel) {
    EXPECT_TRUE(WaitReadable(channel->fd(), NowNs() + kGenerousNs));
    return channel->Poll();
  }
  static void Say(const FileDescriptor& socket, const std::string& bytes) {
    EXPECT_EQ(SendSome(socket.get(), bytes.data(), bytes.size()), bytes.size());
  }
  static void ExpectClosed(ControlChannel* channel, const std::string& why) {
    PeerNews news = Await(channel);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(news.kind, Kind::kClosed);
      EXPECT_EQ(news.text, why);
      news = channel->Poll();  // it repeats
    }
  }

  FileDescriptor engine_socket_;
  FileDescriptor worker_socket_;
  std::unique_ptr<ControlChannel> engine_;
  std::unique_ptr<ControlChannel> worker_;
};

TEST_F(ControlChannelTest, HeartbeatsBothWays) {
  MakeReadyPair();
  worker_->SendHeartbeat(1);
  worker_->SendHeartbeat(1ull << 60);
  PeerNews news = Await(engine_.get());
  EXPECT_EQ(news.kind, Kind::kHeartbeat);
  EXPECT_EQ(news.progress, 1u);
  news = Await(engine_.get());
  EXPECT_EQ(news.kind, Kind::kHeartbeat);
  EXPECT_EQ(news.progress, 1ull << 60);
  EXPECT_EQ(engine_->Poll().kind, Kind::kNothing);
  engine_->SendHeartbeat(0);
  EXPECT_EQ(Await(worker_.get()).kind, Kind::kHeartbeat);
}

TEST_F(ControlChannelTest, NoHeartbeatBeforeBothAreReady) {
  MakeEngine();
  MakeWorker();
  worker_->SendHeartbeat(1);
  engine_->SendHeartbeat(1);
  EXPECT_EQ(worker_->Poll().kind, Kind::kNothing);
  EXPECT_EQ(engine_->Poll().kind, Kind::kNothing);
}

TEST_F(ControlChannelTest, AFarewellRepeats) {
  MakeReadyPair();
  engine_->SendFarewell("hop \x1b[2Jdeadline");
  engine_->SendFarewell("another");  // dropped
  engine_->SendHeartbeat(5);         // dropped
  engine_.reset();
  for (int i = 0; i < 3; ++i) {
    const PeerNews news = Await(worker_.get());
    EXPECT_EQ(news.kind, Kind::kFarewell);
    EXPECT_EQ(news.text, "hop ?[2Jdeadline");
  }
}

TEST_F(ControlChannelTest, TheEndOfTheConnection) {
  MakeReadyPair();
  worker_->SendHeartbeat(3);
  worker_.reset();
  EXPECT_EQ(Await(engine_.get()).kind, Kind::kHeartbeat);
  ExpectClosed(engine_.get(), "closed the connection");
}

TEST_F(ControlChannelTest, AnEngineThatNeverBecomesReady) {
  MakeWorker(0);
  EXPECT_EQ(worker_->Poll().kind, Kind::kClosed);
  EXPECT_EQ(worker_->Poll().text, "never became ready");
}

TEST_F(ControlChannelTest, AReadyThatCameInTimeIsInTime) {
  Say(engine_socket_, Frames().engine);
  MakeWorker(0);
  EXPECT_EQ(worker_->Poll().kind, Kind::kNothing);
  EXPECT_TRUE(worker_->ready());
}

TEST_F(ControlChannelTest, EitherGivesUpBeforeItIsReady) {
  MakeEngine();
  MakeWorker();
  engine_->SendFarewell("ibv_modify_qp: RTR: Invalid argument");
  EXPECT_EQ(Await(worker_.get()).text, "ibv_modify_qp: RTR: Invalid argument");
  worker_->SendFarewell("no");
  const absl::Status status = engine_->AwaitReady(NowNs() + kGenerousNs);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "worker at node7:4711 gave the link up: no");
}

TEST_F(ControlChannelTest, AWorkerThatDoesNotBecomeReady) {
  MakeEngine();
  engine_->SendReady();
  EXPECT_EQ(engine_->AwaitReady(NowNs()).message(), "worker at node7:4711 did not become ready in time");
  worker_socket_.Close();
  const absl::Status status = engine_->AwaitReady(NowNs() + kGenerousNs);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message().find("worker at node7:4711 "), 0u) << status;
}

TEST_F(ControlChannelTest, AReadyOfAnotherHandshake) {
  MakeWorker();
  Say(engine_socket_, Frames("all that was said before").engine);
  ExpectClosed(worker_.get(), "broke the protocol: its ready is not signed for this link");
  EXPECT_FALSE(worker_->ready());
}

TEST_F(ControlChannelTest, ItsOwnReadySentBack) {
  MakeWorker();
  Say(engine_socket_, Frames().worker);
  ExpectClosed(worker_.get(), "broke the protocol: its ready is not signed for this link");
}

TEST_F(ControlChannelTest, WhatDoesNotBelongHere) {
  const std::pair<std::string, std::string> before_ready[] = {
      {MakeHeartbeatFrame(1), "broke the protocol: heartbeat came before it was ready"},
      {MakeHelloFrame({}), "broke the protocol: hello came before it was ready"},
      {MakeTextFrame(FrameKind::kRefusal, "x"), "broke the protocol: refusal came before it was ready"},
      {std::string(24, 'x'), "what was sent is nothing that a FastDecode engine sends"},
  };
  for (const auto& [bytes, why] : before_ready) {
    SetUp();
    MakeWorker();
    Say(engine_socket_, bytes);
    ExpectClosed(worker_.get(), why);
  }
  const std::pair<std::string, std::string> after_ready[] = {
      {Frames().engine, "broke the protocol: ready came on a link that is up"},
      {MakeAcceptanceFrame(1, {}), "broke the protocol: acceptance came on a link that is up"},
  };
  for (const auto& [bytes, why] : after_ready) {
    SetUp();
    MakeWorker();
    Say(engine_socket_, Frames().engine);
    EXPECT_EQ(Await(worker_.get()).kind, Kind::kNothing);
    Say(engine_socket_, bytes);
    ExpectClosed(worker_.get(), why);
  }
}

TEST_F(ControlChannelTest, FramesThatComeByteByByte) {
  MakeWorker();
  const std::string stream = Frames().engine + MakeHeartbeatFrame(42);
  for (size_t i = 0; i + 1 < stream.size(); ++i) {
    Say(engine_socket_, stream.substr(i, 1));
    EXPECT_EQ(Await(worker_.get()).kind, Kind::kNothing);
  }
  Say(engine_socket_, stream.substr(stream.size() - 1));
  EXPECT_EQ(Await(worker_.get()).progress, 42u);
}

// A peer that does not read costs heartbeats, never a torn frame and never time.
TEST_F(ControlChannelTest, APeerThatDoesNotRead) {
  const int small = 1;  // the kernel makes it its minimum
  ASSERT_EQ(setsockopt(worker_socket_.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  MakeReadyPair();
  constexpr uint64_t kSent = 100'000;
  for (uint64_t progress = 1; progress <= kSent; ++progress) worker_->SendHeartbeat(progress);
  worker_->SendFarewell("you do not listen");  // no room: cut short by the end of the connection
  uint64_t last = 0;
  uint64_t received = 0;
  PeerNews news;
  while ((news = Await(engine_.get())).kind == Kind::kHeartbeat) {
    EXPECT_GT(news.progress, last);
    last = news.progress;
    ++received;
  }
  EXPECT_EQ(news.kind, Kind::kClosed) << news.text;
  EXPECT_GT(received, 0u);
  EXPECT_LT(received, kSent);
}

// Over TCP a frame may be cut anywhere by a full buffer; what was begun is finished first.
TEST_F(ControlChannelTest, NoFrameIsTornOverTcp) {
  const auto sockets = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const int small = 1;
  ASSERT_EQ(setsockopt(sockets->front().get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
  auto client = ConnectTcp("127.0.0.1", LocalPort(sockets->front().get()), NowNs() + kGenerousNs);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ(setsockopt(client->get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  ASSERT_TRUE(WaitReadable(sockets->front().get(), NowNs() + kGenerousNs));
  std::string peer;
  worker_socket_ = *std::move(client);
  engine_socket_ = AcceptTcp(sockets->front().get(), &peer);
  MakeReadyPair();
  uint64_t progress = 0;
  uint64_t last = 0;
  uint64_t received = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 1000; ++i) worker_->SendHeartbeat(++progress);
    for (int i = 0; i < 30; ++i) {
      const PeerNews news = engine_->Poll();
      if (news.kind != Kind::kHeartbeat) {
        ASSERT_EQ(news.kind, Kind::kNothing) << news.text;
        continue;
      }
      ASSERT_GT(news.progress, last);
      last = news.progress;
      ++received;
    }
  }
  EXPECT_GT(received, 0u);
  EXPECT_LT(received, progress);
}

TEST_F(ControlChannelTest, AFarewellFromAnotherThread) {
  MakeReadyPair();
  std::atomic<bool> go{false};
  std::thread other([&] {
    while (!go.load()) std::this_thread::yield();
    worker_->SendFarewell("from the side");
  });
  uint64_t heartbeats = 0;
  PeerNews news;
  for (uint64_t i = 1; news.kind != Kind::kFarewell; ++i) {
    worker_->SendHeartbeat(i);
    EXPECT_EQ(worker_->Poll().kind, Kind::kNothing);
    news = engine_->Poll();
    ASSERT_NE(news.kind, Kind::kClosed) << news.text;
    heartbeats += news.kind == Kind::kHeartbeat;
    if (heartbeats == 10) go.store(true);
  }
  other.join();
  EXPECT_EQ(news.text, "from the side");
}

}  // namespace
}  // namespace fastdecode
