#ifndef FASTDECODE_TESTS_RDMA_UNIX_BOOTSTRAP_FIXTURE_H_
#define FASTDECODE_TESTS_RDMA_UNIX_BOOTSTRAP_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "numa/arena.h"
#include "numa/clock.h"
#include "rdma/shm/shm_layout.h"
#include "rdma/shm/unix_bootstrap.h"
#include "tests/rdma/socket_folder.h"

namespace fastdecode {

inline constexpr uint64_t kGenerousNs = 60'000'000'000;

inline LinkProposal Proposal() {
  LinkProposal proposal;
  proposal.size = {.slots = 2,
                   .hop_payload_bytes_max = 100,
                   .reply_payload_bytes_max = 100,
                   .control_ring_bytes = 4096,
                   .bulk_segments = 4,
                   .bulk_segment_bytes_max = 300};
  proposal.epoch = 77;
  proposal.peer = {.engine_id = 0x1234567890, .role = 0};
  proposal.home_index = 1;
  proposal.shape = std::string("shape\0with a zero", 17);
  return proposal;
}

// A proposal as ConnectUnix sends it, to be spoilt.
inline ProposalPacket Packet() {
  ProposalPacket packet;
  packet.prefix.bytes = sizeof(packet);
  packet.epoch = 77;
  packet.hop_payload_bytes_max = 100;
  packet.reply_payload_bytes_max = 100;
  packet.control_ring_bytes = 4096;
  packet.slots = 2;
  packet.bulk_segments = 4;
  packet.bulk_segment_bytes_max = 300;
  return packet;
}

inline Arena Region() {
  ArenaOptions options;
  options.bytes = EngineRegion::Bytes(Proposal().size);
  options.shared = true;
  absl::StatusOr<Arena> arena = Arena::Create(options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

// A client that does as it likes.
class RawClient {
 public:
  explicit RawClient(const std::string& path) : socket_(*OpenSocket()) {
    const sockaddr_un address = *SocketAddress(path);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
        << strerror(errno);
  }

  void Send(const void* bytes, size_t count, int fd = -1) {
    const absl::Status status = SendPacket(socket_.get(), bytes, count, fd);
    EXPECT_TRUE(status.ok()) << status;
  }
  // The text of the refusal; "closed" without one.
  std::string Refusal() {
    char buffer[2048];
    ReceivedPacket packet;
    if (!WaitReadable(socket_.get(), NowNs() + kGenerousNs)) return "nothing";
    if (ReceivePacket(socket_.get(), buffer, sizeof(buffer), &packet) != ReceiveOutcome::kPacket) return "closed";
    return ReadTextPacket(buffer, packet.bytes, PacketKind::kRefusal);
  }
  int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

class UnixBootstrapTest : public testing::Test {
 protected:
  void SetUp() override { Listen(); }

  void Listen() {
    absl::StatusOr<std::unique_ptr<UnixListener>> listener = UnixListener::Listen(path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  // The next one at the door must be turned away for this.
  void ExpectTurnedAway(const std::string& why) {
    const auto pending = listener_->AcceptProposal(kGenerousNs);
    ASSERT_FALSE(pending.ok());
    EXPECT_NE(pending.status().message().find(why), std::string::npos) << pending.status();
  }

  // Connects while `decide` has the proposal at the worker's side.
  absl::StatusOr<ConnectResult> Connect(const LinkProposal& proposal, const std::function<void(PendingLink*)>& decide) {
    std::thread worker([&] {
      absl::StatusOr<std::unique_ptr<PendingLink>> pending = absl::UnavailableError("");
      const uint64_t deadline_ns = NowNs() + kGenerousNs;
      while (!pending.ok() && NowNs() < deadline_ns) pending = listener_->AcceptProposal(kGenerousNs);
      ASSERT_TRUE(pending.ok()) << pending.status();
      decide(pending->get());
    });
    absl::StatusOr<ConnectResult> result = ConnectUnix(path_, proposal, -1, kGenerousNs);
    worker.join();
    return result;
  }
  absl::StatusOr<ConnectResult> Connect() {
    return Connect(Proposal(), [this](PendingLink* pending) { Accept(pending); });
  }
  void Accept(PendingLink* pending) {
    absl::StatusOr<std::unique_ptr<HomeLink>> home = pending->Accept({.homes = 3, .answer = "described"}, -1);
    ASSERT_TRUE(home.ok()) << home.status();
    home_ = *std::move(home);
  }

  const SocketFolder folder_;
  const std::string path_ = folder_.File("worker");
  std::unique_ptr<UnixListener> listener_;
  std::unique_ptr<HomeLink> home_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_UNIX_BOOTSTRAP_FIXTURE_H_
