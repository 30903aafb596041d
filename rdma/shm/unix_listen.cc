#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "rdma/shm/process_backing.h"
#include "rdma/shm/shm_link.h"
#include "rdma/shm/unix_bootstrap.h"

namespace fastdecode {

namespace {

constexpr int kBacklog = 64;
constexpr int kExhaustedPauseMs = 20;
constexpr mode_t kSocketMode = 0600;

// ---- Making the socket file ----

absl::Status PathError(const std::string& path, const char* what, int error) {
  const std::string message = absl::StrCat("cannot listen at unix:", path, ": ", what, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(message);
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  return absl::InternalError(message);
}

// Two workers that start at once could each take the other's new socket for a stale one: the folder is locked from the
// probe to the bind. Whoever holds the lock for longer than that is no worker of ours, so a busy lock is not waited
// for.
FileDescriptor LockFolder(const std::string& path) {
  constexpr int kAttempts = 100;
  constexpr int kPauseMs = 5;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int attempt = 0; fd.valid() && attempt < kAttempts; ++attempt) {
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) break;
    poll(nullptr, 0, kPauseMs);
  }
  return fd;
}

// Removes the file of a listener that is dead; an error if it lives, or if the file is something else.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT ? absl::OkStatus() : PathError(path, "lstat", errno);
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen at unix:", path, ": a file that is no socket is in the way"));
  }
  absl::StatusOr<FileDescriptor> probe = OpenSocket();
  if (!probe.ok()) return probe.status();
  if (connect(probe->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::AlreadyExistsError(absl::StrFormat("cannot listen at unix:%s: in use by the process with pid %d",
                                                    path.c_str(), ReadPeerCredentials(probe->get()).pid));
  }
  // EAGAIN: its backlog is full; EPROTOTYPE: it is a socket of another type. Both are alive.
  if (errno == EAGAIN || errno == EPROTOTYPE) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen at unix:", path, ": in use by another process"));
  }
  if (errno != ECONNREFUSED) return PathError(path, "connect", errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return PathError(path, "removing the stale socket", errno);
  return absl::OkStatus();
}

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
    auto backing =
        std::make_unique<ProcessBacking>(absl::StrFormat("engine process (pid %d)", peer_.pid), std::move(socket_),
                                         *std::move(home_region), std::move(engine_region_));
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

// The socket has something to read, or was closed. `nothing`: neither after all.
absl::StatusOr<std::unique_ptr<PendingLink>> ReceiveProposal(FileDescriptor* socket, bool* nothing) {
  ProposalPacket packet;
  ReceivedPacket received;
  *nothing = false;
  switch (ReceivePacket(socket->get(), &packet, sizeof(packet), &received)) {
    case ReceiveOutcome::kNothing:
      *nothing = true;
      return std::unique_ptr<PendingLink>();
    case ReceiveOutcome::kClosed:
      return absl::UnavailableError("a client closed its connection without a proposal");
    case ReceiveOutcome::kPacket:
      break;
  }
  if (const std::string defect = ProposalDefect(packet, received); !defect.empty())
    return TurnAway(socket->get(), defect);
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
  const absl::StatusOr<sockaddr_un> address = SocketAddress(path);
  if (!address.ok()) return address.status();
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) return socket.status();

  const FileDescriptor folder_lock = LockFolder(path);
  if (absl::Status status = RemoveStaleSocket(path, *address); !status.ok()) return status;
  // On Linux the file inherits the socket's own mode, so that at no moment others may connect.
  if (fchmod(socket->get(), kSocketMode) != 0) return PathError(path, "fchmod", errno);
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return PathError(path, "bind", errno);
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return PathError(path, "lstat", errno);
  if (chmod(path.c_str(), kSocketMode) != 0) return PathError(path, "chmod", errno);  // whatever the umask made of it
  if (listen(socket->get(), kBacklog) != 0) return PathError(path, "listen", errno);
  return std::unique_ptr<UnixListener>(new UnixListener(path, *std::move(socket), info.st_dev, info.st_ino));
}

UnixListener::UnixListener(std::string path, FileDescriptor socket, uint64_t device, uint64_t inode)
    : path_(std::move(path)), socket_(std::move(socket)), device_(device), inode_(inode) {}

UnixListener::~UnixListener() {
  struct stat info = {};
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

absl::StatusOr<std::unique_ptr<PendingLink>> UnixListener::AcceptProposal(uint64_t timeout_ns) {
  const uint64_t deadline_ns = NowNs() + timeout_ns;
  while (true) {
    if (absl::Status status = DropOverdue(); !status.ok()) return status;
    // The door, then the clients that have yet to say what they want.
    std::vector<pollfd> entries = {{socket_.get(), POLLIN, 0}};
    for (const HalfOpen& client : half_open_) entries.push_back({client.socket.get(), POLLIN, 0});
    const uint64_t wake_ns = half_open_.empty() ? deadline_ns : std::min(deadline_ns, half_open_.front().deadline_ns);
    poll(entries.data(), entries.size(), PollTimeoutMs(wake_ns));

    for (size_t i = 0; i < half_open_.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      bool nothing;
      auto result = ReceiveProposal(&half_open_[i].socket, &nothing);
      if (nothing) continue;
      half_open_.erase(half_open_.begin() + i);
      return result;
    }
    if (entries[0].revents != 0) AcceptClients();
    if (NowNs() >= deadline_ns) return absl::DeadlineExceededError(absl::StrCat("no engine came to unix:", path_));
  }
}

// Takes in who has connected. When there are too many, the one that has been silent for longest has to go.
void UnixListener::AcceptClients() {
  for (size_t i = 0; i < kHalfOpenMax; ++i) {
    FileDescriptor client(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      // Out of descriptors or memory: the door stays readable meanwhile, so that poll(2) alone would spin.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) poll(nullptr, 0, kExhaustedPauseMs);
      return;
    }
    if (half_open_.size() == kHalfOpenMax) half_open_.erase(half_open_.begin());
    half_open_.push_back({std::move(client), NowNs() + kProposalTimeoutNs});
  }
}

absl::Status UnixListener::DropOverdue() {
  if (half_open_.empty() || NowNs() < half_open_.front().deadline_ns) return absl::OkStatus();
  const FileDescriptor client = std::move(half_open_.front().socket);
  half_open_.erase(half_open_.begin());
  return TurnAway(client.get(), "no proposal came in time");
}

}  // namespace fastdecode
