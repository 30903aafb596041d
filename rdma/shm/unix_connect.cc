#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/clock.h"
#include "rdma/shm/process_backing.h"
#include "rdma/shm/shm_link.h"
#include "rdma/shm/unix_bootstrap.h"

namespace fastdecode {

namespace {

constexpr int kRetryPauseMs = 5;

absl::Status ConnectError(const std::string& path, int error) {
  const std::string message = absl::StrCat("no worker to be reached at unix:", path, ": ", std::strerror(error));
  switch (error) {
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOENT:
    case ECONNREFUSED:
      return absl::NotFoundError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// A full backlog (EAGAIN) is worth waiting for; nothing else is.
absl::StatusOr<ConnectedSocket> ConnectSocket(const std::string& path, uint64_t deadline_ns) {
  const absl::StatusOr<sockaddr_un> address = SocketAddress(path);
  if (!address.ok()) return address.status();
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) {
    return absl::Status(socket.status().code(),
                        absl::StrCat("no worker to be reached at unix:", path, ": ", socket.status().message()));
  }
  while (connect(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return ConnectError(path, errno);
    if (NowNs() >= deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat("worker at unix:", path, " does not take connections"));
    }
    poll(nullptr, 0, kRetryPauseMs);
  }
  return ConnectedSocket(*std::move(socket));
}

absl::StatusOr<ProposalPacket> MakeProposalPacket(const LinkProposal& proposal) {
  if (proposal.shape.size() > kHandshakeBlobBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("link shape: %d bytes are more than %d", proposal.shape.size(), kHandshakeBlobBytesMax));
  }
  ProposalPacket packet;
  packet.prefix.kind = PacketKind::kProposal;
  packet.prefix.bytes = sizeof(packet);
  packet.epoch = proposal.epoch;
  packet.engine_id = proposal.peer.engine_id;
  packet.role = proposal.peer.role;
  packet.home_index = proposal.home_index;
  packet.hop_payload_bytes_max = proposal.size.hop_payload_bytes_max;
  packet.reply_payload_bytes_max = proposal.size.reply_payload_bytes_max;
  packet.control_ring_bytes = proposal.size.control_ring_bytes;
  packet.slots = static_cast<uint32_t>(proposal.size.slots);
  packet.bulk_segments = static_cast<uint32_t>(proposal.size.bulk_segments);
  packet.bulk_segment_bytes_max = static_cast<uint32_t>(proposal.size.bulk_segment_bytes_max);
  packet.shape_bytes = static_cast<uint32_t>(proposal.shape.size());
  std::memcpy(packet.shape, proposal.shape.data(), proposal.shape.size());
  return packet;
}

absl::Status CheckAcceptance(const AcceptancePacket& packet, const ReceivedPacket& received, uint64_t epoch) {
  if (packet.prefix.magic != kHandshakeMagic) return absl::InvalidArgumentError("is no FastDecode worker");
  if (packet.prefix.version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("speaks protocol version %d, this engine %d", packet.prefix.version, kProtocolVersion));
  }
  if (received.malformed || received.bytes != sizeof(packet) || packet.prefix.bytes != sizeof(packet) ||
      packet.prefix.kind != PacketKind::kAcceptance || packet.epoch != epoch ||
      packet.answer_bytes > kHandshakeBlobBytesMax || packet.homes == 0 || packet.homes > kHomesPerWorkerMax) {
    return absl::InvalidArgumentError("sent a malformed answer");
  }
  return absl::OkStatus();
}

absl::Status About(const std::string& worker, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(worker, " ", std::string(status.message())));
}

struct ReceivedAcceptance {
  AcceptancePacket packet;
  FileDescriptor home_region;
};

// A worker reads a proposal when it is its turn, and does nothing else until it has decided: that it was read is its
// hello.
bool AwaitAnswer(int socket, uint64_t deadline_ns, uint64_t hello_deadline_ns) {
  return WaitReadable(socket, hello_deadline_ns) || (PeerHasRead(socket) && WaitReadable(socket, deadline_ns));
}

absl::StatusOr<ReceivedAcceptance> ReceiveAcceptance(int socket, const std::string& worker, uint64_t epoch,
                                                     uint64_t deadline_ns, uint64_t hello_deadline_ns) {
  ReceivedAcceptance result;
  ReceivedPacket received;
  ReceiveOutcome outcome = ReceiveOutcome::kNothing;
  while (outcome == ReceiveOutcome::kNothing) {
    if (!AwaitAnswer(socket, deadline_ns, hello_deadline_ns)) {
      return absl::DeadlineExceededError(absl::StrCat(worker, " did not answer in time"));
    }
    outcome = ReceivePacket(socket, &result.packet, sizeof(result.packet), &received);
  }
  if (outcome == ReceiveOutcome::kClosed) {
    return absl::UnavailableError(absl::StrCat(worker, " closed the connection without an answer"));
  }
  // A refusal is understood from every protocol version.
  const std::string refusal = ReadTextPacket(&result.packet, received.bytes, PacketKind::kRefusal);
  if (!refusal.empty()) return absl::FailedPreconditionError(absl::StrCat(worker, " refused the link: ", refusal));
  if (absl::Status status = CheckAcceptance(result.packet, received, epoch); !status.ok()) return About(worker, status);
  result.home_region = std::move(received.fd);
  return result;
}

}  // namespace

absl::StatusOr<ConnectResult> ConnectUnix(const std::string& path, const LinkProposal& proposal, int engine_node,
                                          uint64_t timeout_ns, uint64_t hello_timeout_ns) {
  // What is asked for.
  const LinkSize& size = proposal.size;
  if (absl::Status status = CheckLinkSize(size); !status.ok()) return status;
  const absl::StatusOr<ProposalPacket> proposal_packet = MakeProposalPacket(proposal);
  if (!proposal_packet.ok()) return proposal_packet.status();

  // Before the worker is kept waiting: placing memory takes its time.
  absl::StatusOr<Arena> engine_region = CreateRegion(EngineRegion::Bytes(size), engine_node);
  if (!engine_region.ok()) return engine_region.status();

  // Whom.
  const uint64_t now_ns = NowNs(), deadline_ns = now_ns + timeout_ns;
  const uint64_t hello_deadline_ns = now_ns + std::min(hello_timeout_ns, timeout_ns);
  absl::StatusOr<ConnectedSocket> socket = ConnectSocket(path, hello_deadline_ns);
  if (!socket.ok()) return socket.status();
  const std::string worker =
      absl::StrFormat("worker process at unix:%s (pid %d)", path.c_str(), ReadPeerCredentials(socket->get()).pid);

  // The engine's region goes, the home's comes.
  if (absl::Status status = SendPacket(socket->get(), &*proposal_packet, sizeof(*proposal_packet), engine_region->fd());
      !status.ok()) {
    return About(worker + ":", status);
  }
  absl::StatusOr<ReceivedAcceptance> acceptance =
      ReceiveAcceptance(socket->get(), worker, proposal.epoch, deadline_ns, hello_deadline_ns);
  if (!acceptance.ok()) return acceptance.status();
  absl::StatusOr<Arena> home_region = AttachRegion(acceptance->home_region, HomeRegion::Bytes(size));
  if (!home_region.ok()) return About(worker + ":", home_region.status());

  const ShmRegions regions = {HomeRegion(reinterpret_cast<std::byte*>(home_region->data()), size),
                              EngineRegion(reinterpret_cast<std::byte*>(engine_region->data()), size)};
  auto backing =
      std::make_unique<ProcessBacking>(worker, *std::move(socket), *std::move(engine_region), *std::move(home_region));
  ConnectResult result;
  result.link = std::make_unique<ShmEngineLink>(size, proposal.epoch, regions, std::move(backing));
  result.answer.assign(acceptance->packet.answer, acceptance->packet.answer_bytes);
  result.homes = acceptance->packet.homes;
  return result;
}

}  // namespace fastdecode
