// The door for engines on other hosts, from both sides.

#include "rdma/tcp/tcp_door.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "rdma/tcp/tcp_connect.h"
#include "tests/rdma/tcp/door_service.h"
#include "tests/rdma/tcp/raw_client.h"

namespace {
constexpr char kSlowHost[] = "slow.invalid";  // is this host, but to find that out takes a while
constexpr uint64_t kLookUpNs = 1'500'000'000;
}  // namespace

// In the C library's place.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** list) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::strcmp(host, kSlowHost) != 0) return real(host, service, hints, list);
  std::this_thread::sleep_for(std::chrono::nanoseconds(kLookUpNs));
  return real("127.0.0.1", service, hints, list);
}

namespace fastdecode {
namespace {

class TcpDoorTest : public testing::Test {
 protected:
  void SetUp() override { Listen(TestDoorOptions()); }

  void Listen(const TcpDoorOptions& options) {
    auto door = TcpDoor::Listen(options);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    worker_ = "worker at " + FormatHostAndPort(options.host, door_->port());
  }

  // Connects while `decide` has the proposal at the worker's side.
  absl::StatusOr<TcpConnection> Connect(const std::function<void(PendingConnection*)>& decide,
                                        const std::string& host = "127.0.0.1") {
    std::thread worker([&] {
      auto pending = door_->AcceptConnection(kGenerousNs);
      ASSERT_TRUE(pending.ok()) << pending.status();
      decide(pending->get());
    });
    auto connection = ConnectTcpDoor(host, door_->port(), TestSecret(), Offering(TestOffer()), NowNs() + kGenerousNs);
    worker.join();
    return connection;
  }

  std::unique_ptr<TcpDoor> door_;
  std::string worker_;
};

TEST_F(TcpDoorTest, BothEndsAgree) {
  std::unique_ptr<ControlChannel> worker;
  const auto connected = Connect([&](PendingConnection* pending) {
    const LinkProposal& seen = pending->proposal();
    EXPECT_EQ(seen.size.slots, 2);
    EXPECT_EQ(seen.size.hop_payload_bytes_max, 100u);
    EXPECT_EQ(seen.size.control_ring_bytes, 4096u);
    EXPECT_EQ(seen.epoch, 77u);
    EXPECT_EQ(seen.peer.engine_id, 0x1234567890u);
    EXPECT_EQ(seen.home_index, 1u);
    EXPECT_EQ(seen.shape, "shape");
    EXPECT_EQ(pending->parameters(), std::string("engine\0parameters", 17));
    EXPECT_EQ(pending->peer_name().find("127.0.0.1:"), 0u) << pending->peer_name();
    auto accepted = pending->Accept({.homes = 3, .answer = "described"}, std::string(512, 'w'));
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    worker = *std::move(accepted);
    EXPECT_EQ(worker->name(), "engine at " + pending->peer_name());
  });
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(connected->answer.acceptance.homes, 3u);
  EXPECT_EQ(connected->answer.acceptance.answer, "described");
  EXPECT_EQ(connected->answer.parameters, std::string(512, 'w'));
  ControlChannel* const engine = connected->channel.get();
  EXPECT_EQ(engine->name(), worker_);

  // Neither end is ready before the engine says so, and the engine not before the worker has seen it.
  EXPECT_EQ(worker->Poll().kind, PeerNews::Kind::kNothing);
  EXPECT_FALSE(worker->ready());
  engine->SendReady();
  EXPECT_FALSE(engine->ready());
  ASSERT_TRUE(WaitReadable(worker->fd(), NowNs() + kGenerousNs));
  EXPECT_EQ(worker->Poll().kind, PeerNews::Kind::kNothing);
  EXPECT_TRUE(worker->ready());
  EXPECT_TRUE(engine->AwaitReady(NowNs() + kGenerousNs).ok());
  EXPECT_TRUE(engine->ready());
  EXPECT_EQ(door_->turned_away(), 0u);
}

TEST_F(TcpDoorTest, ARefusalReachesTheEngine) {
  const auto connected = Connect([](PendingConnection* pending) { pending->Refuse("no room for\na second engine"); });
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(connected.status().message(), worker_ + " refused the link: no room for?a second engine");
}

TEST_F(TcpDoorTest, NoDecisionIsARefusal) {
  const auto connected = Connect([](PendingConnection*) {});
  EXPECT_EQ(connected.status().message(), worker_ + " refused the link: the worker did not decide");
}

TEST_F(TcpDoorTest, NobodyComes) {
  EXPECT_EQ(door_->AcceptConnection(1'000'000).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(door_->turned_away(), 0u);
}

TEST_F(TcpDoorTest, APortInUse) {
  TcpDoorOptions options = TestDoorOptions();
  options.port = door_->port();
  const auto second = TcpDoor::Listen(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
}

TEST_F(TcpDoorTest, ADoorAtEveryAddress) {
  TcpDoorOptions options = TestDoorOptions();
  options.host = "::";
  auto door = TcpDoor::Listen(options);
  if (!door.ok()) GTEST_SKIP() << door.status();
  door_ = *std::move(door);
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    const auto connected = Connect([](PendingConnection* pending) { pending->Refuse("seen"); }, host);
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kFailedPrecondition) << connected.status();
  }
}

// ---- The engine's side ----

TEST_F(TcpDoorTest, NobodyListens) {
  const uint16_t port = door_->port();
  door_.reset();
  int offers = 0;
  const auto make_offer = [&offers]() -> absl::StatusOr<LinkOffer> {
    ++offers;
    return TestOffer();
  };
  const auto connected = ConnectTcpDoor("127.0.0.1", port, TestSecret(), make_offer, NowNs() + kGenerousNs);
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kNotFound) << connected.status();
  EXPECT_EQ(offers, 0) << "nothing is made for a worker that is not there";
}

TEST_F(TcpDoorTest, AnOfferThatCannotBeMade) {
  const auto make_offer = []() -> absl::StatusOr<LinkOffer> { return absl::ResourceExhaustedError("no memory"); };
  const DoorService service(TestDoorOptions());
  const auto connected = ConnectTcpDoor("127.0.0.1", service.port(), TestSecret(), make_offer, NowNs() + kGenerousNs);
  EXPECT_EQ(connected.status(), absl::ResourceExhaustedError("no memory"));
}

TEST_F(TcpDoorTest, AWorkerThatDoesNotAnswer) {
  const auto make_offer = []() -> absl::StatusOr<LinkOffer> {
    ADD_FAILURE() << "nothing is made for a worker that says nothing";
    return TestOffer();
  };
  for (const bool hello_is_due_first : {false, true}) {
    constexpr uint64_t kSoonNs = 50'000'000;
    const uint64_t now_ns = NowNs();
    const auto connected = ConnectTcpDoor("127.0.0.1", door_->port(), TestSecret(), make_offer,
                                          now_ns + (hello_is_due_first ? kGenerousNs : kSoonNs),
                                          hello_is_due_first ? kSoonNs : kGenerousNs);
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(connected.status().message(), worker_ + " did not answer in time");
    EXPECT_LT(NowNs(), now_ns + kGenerousNs);
  }
}

TEST_F(TcpDoorTest, ASlowResolverTakesNoTimeFromTheHello) {
  const DoorService service(TestDoorOptions());
  const auto connect = [&](uint64_t deadline_ns, uint64_t hello_timeout_ns) {
    const LinkOffer offer = TestOffer();
    return ConnectTcpDoor(kSlowHost, service.port(), TestSecret(), Offering(offer), deadline_ns, hello_timeout_ns);
  };
  const auto connected = connect(NowNs() + kGenerousNs, kLookUpNs * 2 / 3);
  EXPECT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(connect(NowNs() + kLookUpNs / 2, kGenerousNs).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(TcpDoorTest, AnOfferThatCannotBe) {
  const DoorService service(TestDoorOptions());
  const auto error = [&](const LinkOffer& offer) {
    const auto connected =
        ConnectTcpDoor("127.0.0.1", service.port(), TestSecret(), Offering(offer), NowNs() + kGenerousNs);
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(connected.status().message());
  };
  LinkOffer offer = TestOffer();
  offer.proposal.size.slots = 17;
  EXPECT_EQ(error(offer), "link slots: 17 is not 1 to 16");
  offer = TestOffer();
  offer.proposal.shape.assign(513, 's');
  EXPECT_EQ(error(offer), "link shape: 513 bytes are more than 512");
  offer = TestOffer();
  offer.parameters.assign(513, 'p');
  EXPECT_EQ(error(offer), "provider parameters: 513 bytes are more than 512");
}

// A worker that answers what it likes: `answers` in turn, each after one frame of the engine.
class RawWorker {
 public:
  using Answer = std::function<std::string(Transcript*)>;

  absl::StatusOr<TcpConnection> Answers(const std::vector<Answer>& answers) {
    auto sockets = ListenTcp("127.0.0.1", 0);
    EXPECT_TRUE(sockets.ok()) << sockets.status();
    const FileDescriptor& door = sockets->front();
    std::thread worker([&] {
      EXPECT_TRUE(WaitReadable(door.get(), NowNs() + kGenerousNs));
      std::string peer;
      FileDescriptor socket = AcceptTcp(door.get(), &peer);
      FrameReader reader(Side::kWorker);
      Transcript transcript(MakeSecret("what somebody else knows"));
      for (const Answer& answer : answers) {
        FrameNews news;
        while ((news = ReadFrame(socket.get(), &reader)).kind == FrameNews::Kind::kNothing) {
          if (!WaitReadable(socket.get(), NowNs() + kGenerousNs)) break;
        }
        EXPECT_EQ(news.kind, FrameNews::Kind::kFrame) << news.text;
        transcript.Append(news.text);
        const std::string bytes = answer(&transcript);
        EXPECT_EQ(SendSome(socket.get(), bytes.data(), bytes.size()), bytes.size());
      }
      CloseTcp(std::move(socket));
    });
    auto connected =
        ConnectTcpDoor("127.0.0.1", LocalPort(door.get()), TestSecret(), Offering(TestOffer()), NowNs() + kGenerousNs);
    worker.join();
    return connected;
  }
};

TEST_F(TcpDoorTest, AWorkerThatDoesNotKnowTheSecret) {
  const auto hello = [](Transcript* transcript) {
    const std::string frame = MakeHelloFrame({});
    transcript->Append(frame);
    return frame;
  };
  const auto acceptance = [](Transcript* transcript) {
    std::string frame = MakeAcceptanceFrame(77, {{.homes = 1, .answer = ""}, ""});
    transcript->SignAndAppend(Side::kWorker, &frame);
    return frame;
  };
  const absl::Status status = RawWorker().Answers({hello, acceptance}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(status.message().find(" does not know the secret"), std::string::npos) << status;
}

TEST_F(TcpDoorTest, AnswersThatCannotBe) {
  const auto error = [](const std::string& answer) {
    const absl::Status status = RawWorker().Answers({[&](Transcript*) { return answer; }}).status();
    const std::string text(status.message());
    return text.substr(text.find(' ', text.find("127.0.0.1")) + 1);
  };
  const std::string hello = MakeHelloFrame({});
  EXPECT_EQ(error(""), "closed the connection without an answer");
  EXPECT_EQ(error(hello.substr(0, 55)), "closed the connection within a frame without an answer");
  EXPECT_EQ(error("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"), "what was sent is nothing that a FastDecode worker sends");
  EXPECT_EQ(error(Spoilt(hello, 8, uint32_t{9})), "this engine speaks protocol version 8, the worker version 9");
  EXPECT_EQ(error(Spoilt(hello, 16, ~uint32_t{0})), "malformed frame: hello of 4294967295 bytes, where it has 56");
  EXPECT_EQ(error(MakeReadyFrame()), "sent ready where hello was due");
  EXPECT_EQ(error(Spoilt(MakeTextFrame(FrameKind::kRefusal, "I am older than you"), 8, uint32_t{0})),
            "refused the link: I am older than you");
}

}  // namespace
}  // namespace fastdecode
