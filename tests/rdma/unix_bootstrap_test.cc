// The door of a worker, from both sides, and clients that have no business there.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/rdma/unix_bootstrap_fixture.h"

namespace fastdecode {
namespace {

FileDescriptor Memfd(size_t bytes, int seals) {
  FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST_F(UnixBootstrapTest, BothEndsAgree) {
  const absl::StatusOr<ConnectResult> connected = Connect(Proposal(), [this](PendingLink* pending) {
    const LinkProposal& seen = pending->proposal();
    EXPECT_EQ(seen.size.slots, 2);
    EXPECT_EQ(seen.size.hop_payload_bytes_max, 100u);
    EXPECT_EQ(seen.size.reply_payload_bytes_max, 100u);
    EXPECT_EQ(seen.size.control_ring_bytes, 4096u);
    EXPECT_EQ(seen.size.bulk_segments, 4);
    EXPECT_EQ(seen.size.bulk_segment_bytes_max, 300u);
    EXPECT_EQ(seen.epoch, 77u);
    EXPECT_EQ(seen.peer.engine_id, 0x1234567890u);
    EXPECT_EQ(seen.home_index, 1u);
    EXPECT_EQ(seen.shape, std::string("shape\0with a zero", 17));
    EXPECT_EQ(pending->peer_name(), "pid " + std::to_string(getpid()) + ", uid " + std::to_string(getuid()));
    Accept(pending);
  });
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(connected->answer, "described");
  EXPECT_EQ(connected->homes, 3u);
  EngineLink* const engine = connected->link.get();
  EXPECT_EQ(engine->epoch(), 77u);
  EXPECT_EQ(home_->epoch(), 77u);

  // What one end writes, the other reads.
  std::memset(engine->SendArea(1), 0x42, 100);
  HopHeader hop;
  hop.step = 1;
  hop.rows = 1;
  hop.payload_bytes = 100;
  hop.micro_batch = 1;
  engine->PostHop(hop);
  const std::byte* payload;
  ASSERT_EQ(home_->PollHop(&hop, &payload), LinkPoll::kMessage);
  EXPECT_EQ(payload[99], std::byte{0x42});
  home_->ReplyArea(1)[99] = std::byte{0x24};
  ReplyHeader reply;
  reply.step = 1;
  reply.micro_batch = 1;
  home_->PostReply(reply);
  ASSERT_EQ(engine->PollReply(&reply), LinkPoll::kMessage);
  EXPECT_EQ(engine->ReceiveArea(1)[99], std::byte{0x24});
}

TEST_F(UnixBootstrapTest, ARefusalReachesTheEngine) {
  const auto connected =
      Connect(Proposal(), [](PendingLink* pending) { pending->Refuse("model shape: 22 layers, not 16"); });
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(connected.status().message(), "worker process at unix:" + path_ + " (pid " + std::to_string(getpid()) +
                                              ") refused the link: model shape: 22 layers, not 16");
}

TEST_F(UnixBootstrapTest, NoDecisionIsARefusal) {
  const auto connected = Connect(Proposal(), [](PendingLink*) {});
  EXPECT_NE(connected.status().message().find("refused the link: the worker did not decide"), std::string::npos)
      << connected.status();
}

TEST_F(UnixBootstrapTest, AnAnswerWithControlCharactersIsDefused) {
  const auto connected = Connect(Proposal(), [](PendingLink* pending) { pending->Refuse("\x1b[2Jboo\n"); });
  EXPECT_NE(connected.status().message().find("?[2Jboo?"), std::string::npos) << connected.status();
}

TEST_F(UnixBootstrapTest, AnotherVersionIsRefusedAndBothAreNamed) {
  RawClient client(path_);
  ProposalPacket packet = Packet();
  packet.prefix.version = 9;
  client.Send(&packet, 300);  // of another size, too
  ExpectTurnedAway("protocol version 8, the engine version 9");
  EXPECT_EQ(client.Refusal(), "this worker speaks protocol version 8, the engine version 9");
}

TEST_F(UnixBootstrapTest, SpoiltProposalsAreRefused) {
  const Arena region = Region();
  const auto refusal = [&](auto spoil) {
    RawClient client(path_);
    ProposalPacket packet = Packet();
    spoil(&packet);
    client.Send(&packet, sizeof(packet), region.fd());
    EXPECT_FALSE(listener_->AcceptProposal(kGenerousNs).ok());
    return client.Refusal();
  };
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->prefix.magic = 1; }),
            "what was sent is no proposal of a FastDecode engine");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->prefix.kind = PacketKind::kAcceptance; }), "malformed proposal");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->prefix.bytes = 1; }), "malformed proposal");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->shape_bytes = 513; }), "malformed proposal");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->hop_header_bytes = 40; }),
            "header sizes differ: worker 32 and 48 bytes, engine 40 and 48");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->slots = 0xffffffff; }), "link slots: -1 is not 1 to 16");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->slots = 0; }), "link slots: 0 is not 1 to 16");
  EXPECT_NE(refusal([](ProposalPacket* p) { p->hop_payload_bytes_max = ~uint64_t{0}; }).find("is more than"),
            std::string::npos);
  EXPECT_NE(refusal([](ProposalPacket* p) { p->control_ring_bytes = 0; }).find("not a power of two"),
            std::string::npos);
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->bulk_segments = 257; }), "link bulk segments: -1 is not 0 to 256");
  EXPECT_EQ(refusal([](ProposalPacket* p) { p->bulk_segment_bytes_max = 0; }),
            "link bulk segment: 0 bytes is not 1 to 262144");
}

TEST_F(UnixBootstrapTest, MemoryThatIsNotWhatItShouldBeIsRefused) {
  const size_t bytes = EngineRegion::Bytes(Proposal().size);
  const auto refusal = [&](int fd) {
    RawClient client(path_);
    const ProposalPacket packet = Packet();
    client.Send(&packet, sizeof(packet), fd);
    EXPECT_FALSE(listener_->AcceptProposal(kGenerousNs).ok());
    return client.Refusal();
  };
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(refusal(-1), "no memory descriptor came with the packet");
  EXPECT_EQ(refusal(Memfd(bytes - 1, kSeals).get()),
            "shared memory of " + std::to_string(bytes - 1) + " bytes, where the link needs " + std::to_string(bytes));
  EXPECT_NE(refusal(Memfd(size_t{1} << 40, kSeals).get()).find("where the link needs"), std::string::npos);
  EXPECT_NE(refusal(Memfd(8192, F_SEAL_SHRINK).get()).find("not a sealed"), std::string::npos);
  EXPECT_NE(refusal(Memfd(8192, F_SEAL_GROW).get()).find("not a sealed"), std::string::npos);
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_NE(refusal(null.get()).find("where the link needs"), std::string::npos);
  std::ofstream(folder_.File("file")) << std::string(8192, 'x');
  const FileDescriptor file(open(folder_.File("file").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_NE(refusal(file.get()).find("not a sealed"), std::string::npos);
}

TEST_F(UnixBootstrapTest, GarbageDoesNotKeepAnHonestEngineOut) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    RawClient client(path_);
    std::vector<char> bytes(1 + random() % 3000);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0) {  // past the first check
      ProposalPacket packet = Packet();
      std::memcpy(bytes.data(), &packet, std::min(sizeof(PacketPrefix), bytes.size()));
    }
    client.Send(bytes.data(), bytes.size(), i % 3 == 0 ? client.fd() : -1);
    if (i % 5 == 0) client.Send(bytes.data(), bytes.size());
    const auto pending = listener_->AcceptProposal(kGenerousNs);
    EXPECT_FALSE(pending.ok());
    EXPECT_NE(pending.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  const auto connected = Connect();
  EXPECT_TRUE(connected.ok()) << connected.status();
}

TEST_F(UnixBootstrapTest, SilentClientsDoNotKeepAnHonestEngineOut) {
  const uint64_t start_ns = NowNs();
  std::vector<std::unique_ptr<RawClient>> silent;
  for (size_t i = 0; i < UnixListener::kHalfOpenMax + 20; ++i) silent.push_back(std::make_unique<RawClient>(path_));
  const auto connected = Connect();
  EXPECT_TRUE(connected.ok()) << connected.status();
  const bool all_had_time = NowNs() - start_ns < UnixListener::kProposalTimeoutNs;
  // And do not stay: one is told after its time, if only the youngest, and the oldest had to make room.
  silent.push_back(std::make_unique<RawClient>(path_));
  ExpectTurnedAway("no proposal came in time");
  if (all_had_time) {
    EXPECT_EQ(silent.front()->Refusal(), "closed");
  }
}

TEST_F(UnixBootstrapTest, AProposalThatCameInTimeIsHeardHoweverLate) {
  const Arena region = Region();
  RawClient client(path_);
  EXPECT_EQ(listener_->AcceptProposal(1'000'000).status().code(), absl::StatusCode::kDeadlineExceeded);
  const ProposalPacket packet = Packet();
  client.Send(&packet, sizeof(packet), region.fd());
  std::this_thread::sleep_for(std::chrono::nanoseconds(UnixListener::kProposalTimeoutNs));  // busy elsewhere
  const auto pending = listener_->AcceptProposal(kGenerousNs);
  EXPECT_TRUE(pending.ok()) << pending.status();
}

TEST_F(UnixBootstrapTest, AClientThatLeavesIsForgotten) {
  RawClient(path_).fd();
  const auto pending = listener_->AcceptProposal(kGenerousNs);
  EXPECT_EQ(pending.status().message(), "a client closed its connection without a proposal");
  EXPECT_EQ(listener_->AcceptProposal(1'000'000).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(UnixBootstrapTest, AnEngineThatLeavesBeforeItsTurn) {
  EXPECT_EQ(ConnectUnix(path_, Proposal(), -1, 1'000'000).status().code(), absl::StatusCode::kDeadlineExceeded);
  const auto pending = listener_->AcceptProposal(kGenerousNs);
  EXPECT_EQ(pending.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pending.status().message(),
            "the engine process with pid " + std::to_string(getpid()) + " had gone before its turn came");
}

// Its socket is held by a child, until the pipe ends.
TEST_F(UnixBootstrapTest, AnEngineThatDiesBeforeItsTurnAndLeavesAChild) {
  const Arena region = Region();
  int until[2];
  ASSERT_EQ(pipe2(until, O_CLOEXEC), 0);
  const pid_t engine = fork();
  ASSERT_GE(engine, 0);
  if (engine == 0) {
    RawClient client(path_);
    const ProposalPacket packet = Packet();
    client.Send(&packet, sizeof(packet), region.fd());
    if (fork() == 0) {
      close(until[1]);
      char byte;
      while (read(until[0], &byte, 1) > 0) continue;
    }
    _exit(0);
  }
  ASSERT_EQ(waitpid(engine, nullptr, 0), engine);
  ExpectTurnedAway("the engine process with pid " + std::to_string(engine) + " had gone before its turn came");
  close(until[0]);
  close(until[1]);
}

TEST_F(UnixBootstrapTest, AnEngineThatLeavesBeforeTheAnswer) {
  const Arena region = Region();
  auto client = std::make_unique<RawClient>(path_);
  const ProposalPacket packet = Packet();
  client->Send(&packet, sizeof(packet), region.fd());
  const auto pending = listener_->AcceptProposal(kGenerousNs);
  ASSERT_TRUE(pending.ok()) << pending.status();
  client.reset();
  EXPECT_EQ((*pending)->Accept({}, -1).status().code(), absl::StatusCode::kUnavailable);
}

// ---- The path ----

TEST_F(UnixBootstrapTest, APathInUseNamesItsProcess) {
  const auto second = UnixListener::Listen(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.status().message(),
            "cannot listen at unix:" + path_ + ": in use by the process with pid " + std::to_string(getpid()));
  const auto connected = Connect();  // the probe has done the first one no harm
  EXPECT_TRUE(connected.ok()) << connected.status();
}

TEST_F(UnixBootstrapTest, TheFileIsPrivateAndGoesWithTheListener) {
  struct stat info = {};
  ASSERT_EQ(lstat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  listener_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixBootstrapTest, AStaleSocketIsReplacedAndAnotherFileIsNot) {
  const std::string stale = folder_.File("stale");
  {
    const FileDescriptor socket = *OpenSocket();
    const sockaddr_un address = *SocketAddress(stale);
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(stale));
  EXPECT_TRUE(UnixListener::Listen(stale).ok());

  const std::string file = folder_.File("file");
  std::ofstream(file) << "precious";
  const auto listener = UnixListener::Listen(file);
  EXPECT_EQ(listener.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(listener.status().message().find("a file that is no socket is in the way"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(UnixBootstrapTest, AListenerRemovesOnlyItsOwnFile) {
  ASSERT_EQ(unlink(path_.c_str()), 0);
  const auto other = UnixListener::Listen(path_);
  ASSERT_TRUE(other.ok()) << other.status();
  listener_.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(UnixBootstrapTest, BadPaths) {
  EXPECT_EQ(UnixListener::Listen("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Listen(std::string(108, 'p')).status().code(), absl::StatusCode::kInvalidArgument);
  const auto missing = UnixListener::Listen(folder_.File("none/worker"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound) << missing.status();
  EXPECT_NE(missing.status().message().find(folder_.File("none/worker")), std::string::npos);
}

// ---- The engine's side ----

TEST_F(UnixBootstrapTest, NobodyListens) {
  const auto connected = ConnectUnix(folder_.File("nobody"), Proposal(), -1, kGenerousNs);
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(connected.status().message().find("unix:" + folder_.File("nobody")), std::string::npos);
}

TEST_F(UnixBootstrapTest, AWorkerThatDoesNotAnswer) {
  const auto connected = ConnectUnix(path_, Proposal(), -1, 50'000'000);
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(connected.status().message().find("did not answer in time"), std::string::npos) << connected.status();
}

TEST_F(UnixBootstrapTest, AWorkerThatTakesUpNoProposal) {
  const uint64_t start_ns = NowNs();
  const auto connected = ConnectUnix(path_, Proposal(), -1, kGenerousNs, /*hello_timeout_ns=*/50'000'000);
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(connected.status().message().find("did not answer in time"), std::string::npos) << connected.status();
  EXPECT_LT(NowNs() - start_ns, kGenerousNs);
}

TEST_F(UnixBootstrapTest, AWorkerThatHasTakenUpAProposalHasTimeToDecide) {
  constexpr uint64_t kHelloTimeoutNs = 2'000'000'000;
  std::thread worker([&] {
    const absl::StatusOr<std::unique_ptr<PendingLink>> pending = listener_->AcceptProposal(kGenerousNs);
    ASSERT_TRUE(pending.ok()) << pending.status();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kHelloTimeoutNs * 3 / 2));
    Accept(pending->get());
  });
  const auto connected = ConnectUnix(path_, Proposal(), -1, kGenerousNs, kHelloTimeoutNs);
  worker.join();
  EXPECT_TRUE(connected.ok()) << connected.status();
}

TEST_F(UnixBootstrapTest, AProposalThatCannotBe) {
  LinkProposal proposal = Proposal();
  proposal.size.slots = 0;
  EXPECT_EQ(ConnectUnix(path_, proposal, -1, kGenerousNs).status().code(), absl::StatusCode::kInvalidArgument);
  proposal = Proposal();
  proposal.shape.assign(513, 's');
  EXPECT_EQ(ConnectUnix(path_, proposal, -1, kGenerousNs).status().code(), absl::StatusCode::kInvalidArgument);
}

// A worker that answers what it likes.
class RawWorker {
 public:
  explicit RawWorker(const std::string& path) : socket_(*OpenSocket()) {
    const sockaddr_un address = *SocketAddress(path);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_.get(), 4), 0);
  }

  absl::Status Answer(const std::string& path, const void* bytes, size_t count, int fd) {
    std::thread answer([&] {
      EXPECT_TRUE(WaitReadable(socket_.get(), NowNs() + kGenerousNs));
      const FileDescriptor client(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      EXPECT_TRUE(WaitReadable(client.get(), NowNs() + kGenerousNs));
      char proposal[1024];
      ReceivedPacket packet;
      EXPECT_EQ(ReceivePacket(client.get(), proposal, sizeof(proposal), &packet), ReceiveOutcome::kPacket);
      if (count == 0) return;
      EXPECT_TRUE(SendPacket(client.get(), bytes, count, fd).ok());
    });
    const absl::StatusOr<ConnectResult> connected = ConnectUnix(path, Proposal(), -1, kGenerousNs);
    answer.join();
    return connected.status();
  }

 private:
  FileDescriptor socket_;
};

TEST_F(UnixBootstrapTest, AnswersThatCannotBe) {
  const std::string path = folder_.File("raw");
  RawWorker worker(path);
  AcceptancePacket good;
  good.prefix.kind = PacketKind::kAcceptance;
  good.prefix.bytes = sizeof(good);
  good.epoch = 77;
  good.homes = 1;
  const size_t bytes = HomeRegion::Bytes(Proposal().size);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const FileDescriptor region = Memfd(bytes, kSeals);
  const auto error = [&](auto spoil, int fd) {
    AcceptancePacket packet = good;
    spoil(&packet);
    return std::string(worker.Answer(path, &packet, sizeof(packet), fd).message());
  };
  const auto nothing = [](AcceptancePacket*) {};
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(error(nothing, region.get()), "");
  has(error(nothing, -1), "no memory descriptor");
  has(error(nothing, Memfd(bytes - 1, kSeals).get()), "where the link needs");
  has(error(nothing, Memfd(bytes, 0).get()), "not a sealed");
  has(error([](AcceptancePacket* p) { p->prefix.version = 9; }, region.get()),
      "speaks protocol version 9, this engine 8");
  has(error([](AcceptancePacket* p) { p->prefix.magic = 9; }, region.get()), "is no FastDecode worker");
  has(error([](AcceptancePacket* p) { p->epoch = 78; }, region.get()), "malformed answer");
  has(error([](AcceptancePacket* p) { p->homes = 0; }, region.get()), "malformed answer");
  has(error([](AcceptancePacket* p) { p->answer_bytes = 513; }, region.get()), "malformed answer");
  has(std::string(worker.Answer(path, nullptr, 0, -1).message()), "closed the connection without an answer");
  has(std::string(worker.Answer(path, &good, 10, -1).message()), "malformed answer");

  // A refusal is understood from a worker of any version.
  TextPacket refusal = MakeTextPacket(PacketKind::kRefusal, "too old");
  refusal.prefix.version = 9;
  has(std::string(worker.Answer(path, &refusal, sizeof(refusal), -1).message()), "refused the link: too old");
}

// Whatever child of the engine's has its socket, too, the worker sees that it has turned away.
TEST_F(UnixBootstrapTest, AnEngineThatCannotUseTheAnswerHangsUp) {
  const std::string path = folder_.File("raw");
  const absl::StatusOr<SocketFile> door = SocketFile::Listen(path);
  ASSERT_TRUE(door.ok()) << door.status();
  pid_t child = -1;
  std::thread worker([&] {
    EXPECT_TRUE(WaitReadable(door->fd(), NowNs() + kGenerousNs));
    const FileDescriptor client(accept4(door->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    char packet[1024];
    ReceivedPacket received;
    EXPECT_TRUE(WaitReadable(client.get(), NowNs() + kGenerousNs));
    EXPECT_EQ(ReceivePacket(client.get(), packet, sizeof(packet), &received), ReceiveOutcome::kPacket);
    child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) pause();
    }
    EXPECT_TRUE(SendPacket(client.get(), "hello", 5, -1).ok());
    EXPECT_TRUE(WaitReadable(client.get(), NowNs() + kGenerousNs));
    EXPECT_EQ(ReceivePacket(client.get(), packet, sizeof(packet), &received), ReceiveOutcome::kClosed);
  });
  EXPECT_FALSE(ConnectUnix(path, Proposal(), -1, kGenerousNs).ok());
  worker.join();
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace fastdecode
