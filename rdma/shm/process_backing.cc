#include "rdma/shm/process_backing.h"

#include <poll.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rdma/shm/handshake.h"

namespace fastdecode {

void ProcessBacking::TellPeer(const char* cause) {
  const TextPacket packet = MakeTextPacket(PacketKind::kFarewell, cause);
  // A peer that has gone, or reads nothing, cannot be told: it sees the socket close.
  SendPacket(socket_.get(), &packet, sizeof(packet), -1).IgnoreError();
}

bool ProcessBacking::PeerGone(std::string* cause) {
  const bool ended = peer_process_.Ended();  // first: what it said before is there then
  TextPacket packet;
  ReceivedPacket received;
  switch (ReceivePacket(socket_.get(), &packet, sizeof(packet), &received)) {
    case ReceiveOutcome::kNothing:
      if (!ended) return false;
      [[fallthrough]];
    case ReceiveOutcome::kClosed:
      *cause = absl::StrCat(peer_name_, " went away");
      return true;
    case ReceiveOutcome::kPacket:
      break;
  }
  const std::string text = received.malformed ? "" : ReadTextPacket(&packet, received.bytes, PacketKind::kFarewell);
  *cause = text.empty() ? absl::StrCat(peer_name_, " sent a packet that is none of the protocol")
                        : absl::StrCat(peer_name_, " gave the link up: ", text);
  return true;
}

bool ProcessBacking::PeerMayStillWrite() const {
  constexpr short kClosedEvents = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;
  if (peer_process_.Ended()) return false;
  pollfd entry = {socket_.get(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) <= 0 || (entry.revents & kClosedEvents) == 0;
}

absl::StatusOr<Arena> CreateRegion(size_t bytes, int node) {
  ArenaOptions options;
  options.bytes = bytes;
  options.node = node;
  options.shared = true;
  return Arena::Create(options);
}

absl::StatusOr<Arena> AttachRegion(const FileDescriptor& fd, size_t bytes) {
  if (!fd.valid()) return absl::InvalidArgumentError("no memory descriptor came with the packet");
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return absl::InvalidArgumentError("the memory descriptor cannot be read");
  // An arena is rounded up to whole pages, of 2 MiB or an eighth of it at most.
  const size_t bytes_max = bytes + bytes / 8 + (2 << 20);
  const size_t actual = static_cast<size_t>(info.st_size);
  if (info.st_size < 0 || actual < bytes || actual > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("shared memory of %d bytes, where the link needs %d", int64_t{info.st_size}, bytes));
  }
  absl::StatusOr<Arena> arena = Arena::Attach(fd.get());
  // Sealed by now, so that this size holds; it may have changed since fstat.
  if (arena.ok() && arena->bytes() < bytes)
    return absl::InvalidArgumentError("shared memory shrank while it was mapped");
  return arena;
}

}  // namespace fastdecode
