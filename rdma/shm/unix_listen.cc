#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "rdma/shm/peer_process.h"
#include "rdma/shm/process_backing.h"
#include "rdma/shm/shm_link.h"
#include "rdma/shm/unix_bootstrap.h"

namespace fastdecode {

namespace {

using ProposalResult = absl::StatusOr<std::unique_ptr<PendingLink>>;

// ---- Reading a proposal ----

// What is wrong with a proposal, for the engine's error message and our log; empty if nothing.
std::string ProposalDefect(const ProposalPacket& packet, const ReceivedPacket& received) {
  if (received.bytes < sizeof(PacketPrefix) || packet.prefix.magic != kHandshakeMagic) {
    return "what was sent is no proposal of a FastDecode engine";
  }
  if (packet.prefix.version != kProtocolVersion) {
    return absl::StrFormat("this worker speaks protocol version %d, the engine version %d", kProtocolVersion,
                           packet.prefix.version);
  }
  if (received.malformed || received.bytes != sizeof(packet) || packet.prefix.bytes != sizeof(packet) ||
      packet.prefix.kind != PacketKind::kProposal || packet.shape_bytes > kHandshakeBlobBytesMax) {
    return "malformed proposal";
  }
  if (packet.hop_header_bytes != sizeof(HopHeader) || packet.reply_header_bytes != sizeof(ReplyHeader)) {
    return absl::StrFormat("header sizes differ: worker %d and %d bytes, engine %d and %d", sizeof(HopHeader),
                           sizeof(ReplyHeader), packet.hop_header_bytes, packet.reply_header_bytes);
  }
  return "";
}

LinkProposal ReadProposal(const ProposalPacket& packet) {
  LinkProposal proposal;
  proposal.size.slots = packet.slots <= kMaxSlots ? static_cast<int>(packet.slots) : -1;
  proposal.size.hop_payload_bytes_max = packet.hop_payload_bytes_max;
  proposal.size.reply_payload_bytes_max = packet.reply_payload_bytes_max;
  proposal.size.control_ring_bytes = packet.control_ring_bytes;
  proposal.size.bulk_segments = packet.bulk_segments <= kBulkSegmentsMax ? static_cast<int>(packet.bulk_segments) : -1;
  proposal.size.bulk_segment_bytes_max = packet.bulk_segment_bytes_max;
  proposal.epoch = packet.epoch;
  proposal.peer = {packet.engine_id, packet.role};
  proposal.home_index = packet.home_index;
  proposal.shape.assign(packet.shape, packet.shape_bytes);
  return proposal;
}

void SendRefusal(int socket, const std::string& text) {
  const TextPacket packet = MakeTextPacket(PacketKind::kRefusal, text);
  SendPacket(socket, &packet, sizeof(packet), -1).IgnoreError();  // it may have gone
}

absl::Status TurnAway(int socket, const std::string& text) {
  const PeerCredentials peer = ReadPeerCredentials(socket);
  SendRefusal(socket, text);
  return absl::InvalidArgumentError(
      absl::StrFormat("refused the process with pid %d, uid %d: %s", peer.pid, peer.uid, text));
}

bool HasGone(int socket) {
  pollfd entry = {socket, 0, 0};
  const bool hung_up = poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0;
  return hung_up || PeerProcess(socket).Ended();
}

class UnixPendingLink final : public PendingLink {
 public:
  UnixPendingLink(LinkProposal proposal, FileDescriptor socket, Arena engine_region)
      : proposal_(std::move(proposal)),
        peer_(ReadPeerCredentials(socket.get())),
        socket_(std::move(socket)),
        engine_region_(std::move(engine_region)) {}
  ~UnixPendingLink() override {
    if (socket_.valid()) SendRefusal(socket_.get(), "the worker did not decide");
  }

  const LinkProposal& proposal() const override { return proposal_; }
  std::string peer_name() const override { return absl::StrFormat("pid %d, uid %d", peer_.pid, peer_.uid); }

  absl::StatusOr<std::unique_ptr<HomeLink>> Accept(const LinkAcceptance& acceptance, int home_node) override {
    FD_CHECK(socket_.valid(), "the proposal was decided already");
    FD_CHECK(acceptance.answer.size() <= kHandshakeBlobBytesMax, "answer too long");
    FD_CHECK(acceptance.homes > 0 && acceptance.homes <= kHomesPerWorkerMax, "number of homes");
    const LinkSize& size = proposal_.size;
    absl::StatusOr<Arena> home_region = CreateRegion(HomeRegion::Bytes(size), home_node);
    if (!home_region.ok()) {
      Refuse(std::string(home_region.status().message()));
      return home_region.status();
    }
    const AcceptancePacket packet = MakeAcceptancePacket(acceptance);
    if (absl::Status status = SendPacket(socket_.get(), &packet, sizeof(packet), home_region->fd()); !status.ok()) {
      socket_.Close();
      return status;
    }
    const ShmRegions regions = {HomeRegion(reinterpret_cast<std::byte*>(home_region->data()), size),
                                EngineRegion(reinterpret_cast<std::byte*>(engine_region_.data()), size)};
    auto backing = std::make_unique<ProcessBacking>(absl::StrFormat("engine process (pid %d)", peer_.pid),
                                                    ConnectedSocket(std::move(socket_)), *std::move(home_region),
                                                    std::move(engine_region_));
    return std::make_unique<ShmHomeLink>(size, proposal_.epoch, regions, std::move(backing));
  }

  void Refuse(const std::string& text) override {
    FD_CHECK(socket_.valid(), "the proposal was decided already");
    SendRefusal(socket_.get(), text);
    socket_.Close();
  }

 private:
  AcceptancePacket MakeAcceptancePacket(const LinkAcceptance& acceptance) const {
    AcceptancePacket packet;
    packet.prefix.kind = PacketKind::kAcceptance;
    packet.prefix.bytes = sizeof(packet);
    packet.epoch = proposal_.epoch;
    packet.homes = acceptance.homes;
    packet.answer_bytes = static_cast<uint32_t>(acceptance.answer.size());
    std::memcpy(packet.answer, acceptance.answer.data(), acceptance.answer.size());
    return packet;
  }

  const LinkProposal proposal_;
  const PeerCredentials peer_;
  FileDescriptor socket_;  // closed once decided
  Arena engine_region_;
};

// What there is to tell about a client, if that is the end of its stay at the door.
std::optional<ProposalResult> ReceiveProposal(FileDescriptor* socket) {
  ProposalPacket packet;
  ReceivedPacket received;
  switch (ReceivePacket(socket->get(), &packet, sizeof(packet), &received)) {
    case ReceiveOutcome::kNothing:
      return std::nullopt;
    case ReceiveOutcome::kClosed:
      return absl::UnavailableError("a client closed its connection without a proposal");
    case ReceiveOutcome::kPacket:
      break;
  }
  if (const std::string defect = ProposalDefect(packet, received); !defect.empty())
    return TurnAway(socket->get(), defect);
  // Its time ran out while nobody listened here, say: a home would make way and memory for it in vain.
  if (HasGone(socket->get())) {
    return absl::UnavailableError(absl::StrFormat("the engine process with pid %d had gone before its turn came",
                                                  ReadPeerCredentials(socket->get()).pid));
  }
  LinkProposal proposal = ReadProposal(packet);
  if (absl::Status status = CheckLinkSize(proposal.size); !status.ok()) {
    return TurnAway(socket->get(), std::string(status.message()));
  }
  absl::StatusOr<Arena> engine_region = AttachRegion(received.fd, EngineRegion::Bytes(proposal.size));
  if (!engine_region.ok()) return TurnAway(socket->get(), std::string(engine_region.status().message()));
  return std::make_unique<UnixPendingLink>(std::move(proposal), std::move(*socket), *std::move(engine_region));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Listen(const std::string& path) {
  absl::StatusOr<SocketFile> socket = SocketFile::Listen(path);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<UnixListener>(new UnixListener(*std::move(socket)));
}

absl::StatusOr<std::unique_ptr<PendingLink>> UnixListener::AcceptProposal(uint64_t timeout_ns) {
  const uint64_t deadline_ns = NowNs() + timeout_ns;
  while (true) {
    // The door, then the clients that have yet to say what they want.
    std::vector<pollfd> entries = {{socket_.fd(), POLLIN, 0}};
    for (const HalfOpen& client : half_open_) entries.push_back({client.socket.get(), POLLIN, 0});
    const uint64_t wake_ns = half_open_.empty() ? deadline_ns : std::min(deadline_ns, half_open_.front().deadline_ns);
    poll(entries.data(), entries.size(), PollTimeoutMs(wake_ns));

    for (size_t i = 0; i < half_open_.size(); ++i) {
      std::optional<ProposalResult> result;
      if (entries[i + 1].revents != 0) result = ReceiveProposal(&half_open_[i].socket);
      // Judged after it was heard: what came in time while nobody listened here is in time.
      if (!result.has_value() && NowNs() >= half_open_[i].deadline_ns) {
        result = TurnAway(half_open_[i].socket.get(), "no proposal came in time");
      }
      if (!result.has_value()) continue;
      half_open_.erase(half_open_.begin() + i);
      return *std::move(result);
    }
    if (entries[0].revents != 0) AcceptClients();
    if (NowNs() >= deadline_ns) return absl::DeadlineExceededError(absl::StrCat("no engine came to unix:", path()));
  }
}

// Takes in who has connected. When there are too many, the one that has been silent for longest has to go.
void UnixListener::AcceptClients() {
  for (size_t i = 0; i < kHalfOpenMax; ++i) {
    FileDescriptor client(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      PauseIfExhausted(errno);
      return;
    }
    if (half_open_.size() == kHalfOpenMax) half_open_.erase(half_open_.begin());
    half_open_.push_back({std::move(client), NowNs() + kProposalTimeoutNs});
  }
}

}  // namespace fastdecode
