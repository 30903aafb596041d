// Clients that have no business at the door, while one that has goes in and out.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/rdma/tcp/door_service.h"
#include "tests/rdma/tcp/raw_client.h"

namespace fastdecode {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// Makes whole links, one after the other, from Begin to End.
class GoodClient {
 public:
  explicit GoodClient(uint16_t port) : thread_([this, port] { Run(port); }) {}
  ~GoodClient() {
    if (thread_.joinable()) End();
  }

  // How many links there were; none of them failed.
  int End() {
    // At least one link was made beside what the test did, and one after it.
    const int so_far = links_.load();
    while (!failed_.load() && links_.load() < so_far + 2) poll(nullptr, 0, 1);
    stopping_.store(true);
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_;
    return links_.load();
  }

 private:
  void Run(uint16_t port) {
    while (!stopping_.load()) {
      status_ = ConnectAndLeave(port);
      if (!status_.ok()) {
        failed_.store(true);
        return;
      }
      links_.fetch_add(1);
    }
  }

  std::atomic<bool> stopping_{false};
  std::atomic<int> links_{0};
  std::atomic<bool> failed_{false};
  absl::Status status_;  // of the thread, until it has ended
  std::thread thread_;
};

class HostileClientTest : public testing::Test {
 protected:
  void Serve(const TcpDoorOptions& options = TestDoorOptions()) {
    service_ = std::make_unique<DoorService>(options);
    good_ = std::make_unique<GoodClient>(service_->port());
  }
  void TearDown() override {
    if (good_ == nullptr) return;
    EXPECT_GE(good_->End(), 2);
  }
  void ExpectLogged(const std::string& text) {
    EXPECT_TRUE(service_->AwaitLog(text)) << "no '" << text << "' in\n" << service_->log();
  }
  uint16_t port() const { return service_->port(); }

  std::unique_ptr<DoorService> service_;
  std::unique_ptr<GoodClient> good_;
};

TEST_F(HostileClientTest, WrongSecret) {
  Serve();
  const absl::Status status = ConnectAndLeave(port(), MakeSecret("what neither of them knows"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "worker at 127.0.0.1:" + std::to_string(port()) + " refused the link: wrong secret");
  ExpectLogged(": wrong secret");
  EXPECT_NE(service_->log().find("refused the client at 127.0.0.1:"), std::string::npos) << service_->log();
}

TEST_F(HostileClientTest, AnotherShape) {
  Serve();
  LinkOffer offer = TestOffer();
  offer.proposal.shape = "another";
  EXPECT_EQ(ConnectAndLeave(port(), TestSecret(), offer).message(),
            "worker at 127.0.0.1:" + std::to_string(port()) + " refused the link: model shape: 22 layers, not 16");
}

TEST_F(HostileClientTest, AnOlderVersion) {
  Serve();
  RawClient client(port());
  client.Send(Spoilt(MakeHelloFrame({}), 8, uint32_t{0}).substr(0, 40));  // of another size, too
  EXPECT_EQ(client.Refusal(), "this worker speaks protocol version 8, the engine version 0");
  ExpectLogged("this worker speaks protocol version 8, the engine version 0");
}

TEST_F(HostileClientTest, OtherHeaderSizes) {
  Serve();
  RawClient client(port());
  client.ExchangeHellos();
  client.Propose(Spoilt(MakeProposalFrame(TestOffer()), offsetof(ProposalFrame, hop_header_bytes), uint16_t{48}));
  EXPECT_EQ(client.Refusal(), "header sizes differ: worker 32 and 48 bytes, engine 48 and 48");
  ExpectLogged("header sizes differ");
}

// Without the secret, nothing of a proposal is looked at.
TEST_F(HostileClientTest, AnAbsurdProposalOfAStranger) {
  Serve();
  RawClient client(port(), MakeSecret("what neither of them knows"));
  client.ExchangeHellos();
  client.Propose(Spoilt(MakeProposalFrame(TestOffer()), offsetof(ProposalFrame, slots), ~uint32_t{0}));
  EXPECT_EQ(client.Refusal(), "wrong secret");
}

TEST_F(HostileClientTest, FramesOutOfTurn) {
  Serve();
  const auto refusal = [&](const std::string& first, const std::string& second) {
    RawClient client(port());
    client.Send(first);
    if (second.empty()) return client.Refusal();
    EXPECT_EQ(client.Receive().kind, FrameNews::Kind::kFrame);
    client.Send(second);
    return client.Refusal();
  };
  const std::string hello = MakeHelloFrame({});
  const std::string proposal = MakeProposalFrame(TestOffer());
  EXPECT_EQ(refusal(proposal, ""), "proposal came where hello was due");
  EXPECT_EQ(refusal(MakeHeartbeatFrame(1), ""), "heartbeat came where hello was due");
  EXPECT_EQ(refusal(MakeTextFrame(FrameKind::kRefusal, "no"), ""), "refusal came where hello was due");
  EXPECT_EQ(refusal(hello, hello), "hello came where proposal was due");
  EXPECT_EQ(refusal(hello, MakeReadyFrame()), "ready came where proposal was due");
  EXPECT_EQ(refusal(hello, Spoilt(proposal, 16, uint32_t{1} << 30)),
            "malformed frame: proposal of 1073741824 bytes, where it has 1152");
  EXPECT_EQ(refusal(Spoilt(hello, 12, uint32_t{99}), ""), "malformed frame: kind 99 does not exist");
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\nHost: here\r\n", ""), "what was sent is nothing that a FastDecode engine sends");
}

TEST_F(HostileClientTest, RandomBytes) {
  Serve();
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    RawClient client(port());
    std::string bytes(24 + random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Past the first checks: the prefix, or a whole hello.
    if (i % 3 == 1) bytes.replace(0, 16, MakeHelloFrame({}).substr(0, 16));
    if (i % 3 == 2) bytes = MakeHelloFrame({}) + MakeProposalFrame({}).substr(0, 24) + bytes;
    client.Send(bytes);
    if (i % 2 == 0) client.Reset();
  }
  EXPECT_TRUE(service_->Await([&] { return service_->turned_away() >= 300; })) << service_->turned_away();
}

TEST_F(HostileClientTest, AProposalThatIsCutShort) {
  Serve();
  {
    RawClient client(port());
    client.ExchangeHellos();
    client.Send(MakeProposalFrame(TestOffer()).substr(0, 500));
  }
  ExpectLogged("closed the connection within a frame without a proposal");
}

// ---- Time ----

TEST_F(HostileClientTest, ASlowLorisIsDropped) {
  TcpDoorOptions options = TestDoorOptions();
  options.handshake_timeout_ns = 300'000'000;
  service_ = std::make_unique<DoorService>(options);  // a good client could be too slow, too, on a busy machine
  RawClient client(port());
  const std::string hello = MakeHelloFrame({});
  for (size_t i = 0; i + 1 < hello.size() && service_->turned_away() == 0; ++i) {  // it never is a whole one
    client.Send(hello.substr(i, 1));
    poll(nullptr, 0, 20);
  }
  EXPECT_EQ(client.Refusal(), "no proposal came in time");
  ExpectLogged("no proposal came in time");
}

TEST_F(HostileClientTest, HelloDoesNotBuyTime) {
  TcpDoorOptions options = TestDoorOptions();
  options.handshake_timeout_ns = 300'000'000;
  service_ = std::make_unique<DoorService>(options);
  RawClient client(port());
  client.Send(MakeHelloFrame({}));
  while (client.Receive().kind == FrameNews::Kind::kFrame) {  // its hello, the refusal
  }
  ExpectLogged("no proposal came in time");
}

// The silent ones have to make room; who has said hello stays.
TEST_F(HostileClientTest, ManySilentClients) {
  Serve();
  RawClient polite(port());
  polite.ExchangeHellos();
  std::vector<std::unique_ptr<RawClient>> silent;
  for (size_t i = 0; i < TcpDoor::kHalfOpenMax + 50; ++i) silent.push_back(std::make_unique<RawClient>(port()));
  EXPECT_EQ(silent.front()->Refusal(), "too many clients are at the door; try again");
  ExpectLogged("too many clients are at the door");
  polite.Propose(MakeProposalFrame(TestOffer()));
  polite.AwaitAcceptance();
}

// From another address of this machine than the rest.
FileDescriptor ConnectFromAside(uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

TEST_F(HostileClientTest, ACrowdMakesRoomAtItsOwnCost) {
  Serve();
  RawClient engine(port());
  engine.ExchangeHellos();  // and now it registers its memory
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (size_t i = 0; i < TcpDoor::kHalfOpenMax + 10; ++i) {
    crowd.push_back(std::make_unique<RawClient>(ConnectFromAside(port())));
    crowd.back()->ExchangeHellos();
  }
  EXPECT_EQ(crowd.front()->Refusal(), "too many clients are at the door; try again");
  engine.Propose(MakeProposalFrame(TestOffer()));
  engine.AwaitAcceptance();
}

TEST_F(HostileClientTest, ClientsThatVanishWithoutAWord) {
  TcpDoorOptions options = TestDoorOptions();
  options.handshake_timeout_ns = 300'000'000;
  service_ = std::make_unique<DoorService>(options);
  // A connection in repair mode ends without telling the other end, as when its host loses power. Where that is not
  // allowed, it just stays silent, which looks the same from there.
  std::vector<FileDescriptor> kept;
  for (int i = 0; i < 20; ++i) {
    RawClient client(port());
    if (i % 2 == 0) client.Send(MakeHelloFrame({}).substr(0, 30));
    FileDescriptor socket = client.TakeSocket();
    const int on = 1;
    if (setsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) != 0) kept.push_back(std::move(socket));
  }
  EXPECT_TRUE(service_->Await([&] { return service_->turned_away() == 20; })) << service_->turned_away();
  ExpectLogged("no proposal came in time");
}

// ---- Many ----

TEST_F(HostileClientTest, TenThousandShortConnections) {
  Serve();
  const size_t before = OpenDescriptors();
  constexpr uint64_t kConnections = 10'000;
  const std::string hello = MakeHelloFrame({});
  for (uint64_t i = 0; i < kConnections; ++i) {
    auto socket = ConnectTcp("127.0.0.1", port(), NowNs() + kGenerousNs);
    ASSERT_TRUE(socket.ok()) << i << ": " << socket.status();
    if (i % 3 == 1) SendSome(socket->get(), hello.data(), hello.size());
    if (i % 3 == 2) SendSome(socket->get(), "nonsense of 24 bytes or more", 28);
    const linger at_once = {.l_onoff = 1, .l_linger = 0};  // a reset: leaves no port in TIME_WAIT
    if (i % 10 != 0) setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  EXPECT_GE(good_->End(), 2);
  good_.reset();
  EXPECT_GT(service_->turned_away(), kConnections / 10);
  // Who came before the last good one has been served before it.
  EXPECT_TRUE(ConnectAndLeave(port()).ok());
  EXPECT_TRUE(service_->Await([&] { return service_->ended() == service_->ready(); }));
  for (int i = 0; i < 60'000 && OpenDescriptors() > before; ++i) poll(nullptr, 0, 1);  // the last is being closed
  EXPECT_LE(OpenDescriptors(), before);
}

// ---- Clients that know the secret ----

TEST_F(HostileClientTest, VanishesAfterTheProposal) {
  Serve();
  {
    RawClient client(port());
    client.ExchangeHellos();
    client.Propose(MakeProposalFrame(TestOffer()));
    client.Reset();
  }
  // Which it is depends on when the worker looks.
  EXPECT_TRUE(service_->AwaitLog("lost the connection", "has gone before it was answered")) << service_->log();
}

TEST_F(HostileClientTest, VanishesAfterTheAcceptance) {
  Serve();
  {
    RawClient client(port());
    client.ExchangeHellos();
    client.Propose(MakeProposalFrame(TestOffer()));
    client.AwaitAcceptance();
    client.Reset();
  }
  ExpectLogged(" ended: lost the connection: Connection reset by peer");
}

TEST_F(HostileClientTest, NeverBecomesReady) {
  TcpDoorOptions options = TestDoorOptions();
  options.ready_timeout_ns = 100'000'000;
  service_ = std::make_unique<DoorService>(options);
  RawClient client(port());
  client.ExchangeHellos();
  client.Propose(MakeProposalFrame(TestOffer()));
  client.AwaitAcceptance();
  ExpectLogged(" ended: never became ready");
  EXPECT_EQ(service_->ready(), 0);
}

TEST_F(HostileClientTest, SaysMoreThanItsProposal) {
  Serve();
  RawClient client(port());
  client.ExchangeHellos();
  client.Propose(MakeProposalFrame(TestOffer()));
  client.Send(MakeReadyFrame());  // it cannot know yet what to sign
  client.AwaitAcceptance();
  ExpectLogged("broke the protocol: its ready is not signed for this link");
}

// ---- A man in the middle ----

// Passes bytes on between one engine and the door, and remembers them; changes one of them if it is told to.
class ManInTheMiddle {
 public:
  struct Change {
    Side sender = Side::kEngine;
    size_t offset = 0;  // in all that the sender sends
    char mask = 0;
  };

  explicit ManInTheMiddle(uint16_t door_port) : door_port_(door_port), sockets_(*ListenTcp("127.0.0.1", 0)) {}

  uint16_t port() const { return LocalPort(sockets_.front().get()); }
  // The next connection, until one end closes it.
  void PassOn(const Change& change) {
    ASSERT_TRUE(WaitReadable(sockets_.front().get(), NowNs() + kGenerousNs));
    std::string peer;
    FileDescriptor engine = AcceptTcp(sockets_.front().get(), &peer);
    auto worker = ConnectTcp("127.0.0.1", door_port_, NowNs() + kGenerousNs);
    ASSERT_TRUE(worker.ok()) << worker.status();
    sent_ = {};
    bool open = true;
    while (open) {
      pollfd entries[] = {{engine.get(), POLLIN, 0}, {worker->get(), POLLIN, 0}};
      ASSERT_GT(poll(entries, 2, 60'000), 0) << "both wait for ever";
      open = (entries[0].revents == 0 || Pass(engine.get(), worker->get(), Side::kEngine, change)) &&
             (entries[1].revents == 0 || Pass(worker->get(), engine.get(), Side::kWorker, change));
    }
    CloseTcp(std::move(engine));
    CloseTcp(*std::move(worker));
  }
  // What this side sent on the last connection.
  const std::string& sent(Side side) const { return sent_[side == Side::kEngine ? 0 : 1]; }

 private:
  bool Pass(int from, int to, Side sender, const Change& change) {
    char buffer[4096];
    const ssize_t got = recv(from, buffer, sizeof(buffer), 0);
    if (got <= 0) return false;
    std::string& sent = sent_[sender == Side::kEngine ? 0 : 1];
    const size_t at = sent.size();
    sent.append(buffer, static_cast<size_t>(got));
    if (sender == change.sender && change.offset >= at && change.offset < sent.size()) {
      buffer[change.offset - at] = static_cast<char>(buffer[change.offset - at] ^ change.mask);
    }
    SendSome(to, buffer, static_cast<size_t>(got));
    return true;
  }

  const uint16_t door_port_;
  const std::vector<FileDescriptor> sockets_;
  std::array<std::string, 2> sent_;
};

constexpr size_t kEngineSends = sizeof(HelloFrame) + sizeof(ProposalFrame) + sizeof(ReadyFrame);
constexpr size_t kWorkerSends = sizeof(HelloFrame) + sizeof(AcceptanceFrame) + sizeof(ReadyFrame);

TEST_F(HostileClientTest, AManInTheMiddleMayOnlyListen) {
  Serve();
  ManInTheMiddle man(port());
  absl::Status status = absl::UnknownError("");
  std::thread engine([&] { status = ConnectAndLeave(man.port()); });
  man.PassOn({});
  engine.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(man.sent(Side::kEngine).size(), kEngineSends);
  EXPECT_EQ(man.sent(Side::kWorker).size(), kWorkerSends);
}

TEST_F(HostileClientTest, AReplayedHandshake) {
  Serve();
  ManInTheMiddle man(port());
  absl::Status status = absl::UnknownError("");
  std::thread engine([&] { status = ConnectAndLeave(man.port()); });
  man.PassOn({});
  engine.join();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(man.sent(Side::kEngine).size(), kEngineSends);

  RawClient again(port());
  again.Send(man.sent(Side::kEngine).substr(0, sizeof(HelloFrame)));
  EXPECT_EQ(again.Receive().kind, FrameNews::Kind::kFrame);
  again.Send(man.sent(Side::kEngine).substr(sizeof(HelloFrame)));
  EXPECT_EQ(again.Refusal(), "replayed handshake");
  ExpectLogged(": replayed handshake");
}

TEST_F(HostileClientTest, AManInTheMiddleCanChangeNoByte) {
  service_ = std::make_unique<DoorService>(TestDoorOptions());
  ManInTheMiddle man(port());
  std::vector<ManInTheMiddle::Change> changes;
  for (size_t i = 0; i < kEngineSends; ++i) changes.push_back({Side::kEngine, i, static_cast<char>(1 << i % 8)});
  for (size_t i = 0; i < kWorkerSends; ++i) changes.push_back({Side::kWorker, i, static_cast<char>(1 << i % 8)});

  for (size_t i = 0; i < changes.size(); ++i) {
    const std::string what =
        (changes[i].sender == Side::kEngine ? "engine's byte " : "worker's byte ") + std::to_string(changes[i].offset);
    absl::Status outcome;
    std::thread engine([&] { outcome = ConnectAndLeave(man.port()); });
    man.PassOn(changes[i]);
    engine.join();
    ASSERT_FALSE(outcome.ok()) << what;
    // The worker turned it away, or its link has ended.
    ASSERT_TRUE(service_->Await([&] {
      return service_->turned_away() + static_cast<uint64_t>(service_->ended()) == i + 1;
    })) << what
        << "\n"
        << service_->log();
    // A worker cannot know what became of its last frame; the engine does.
    const bool last_frame =
        changes[i].sender == Side::kWorker && changes[i].offset >= kWorkerSends - sizeof(ReadyFrame);
    ASSERT_TRUE(last_frame || service_->ready() == 0) << what;
  }
}

}  // namespace
}  // namespace fastdecode
