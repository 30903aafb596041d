#ifndef FASTDECODE_RDMA_SHM_UNIX_SOCKET_H_
#define FASTDECODE_RDMA_SHM_UNIX_SOCKET_H_

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/file_descriptor.h"

namespace fastdecode {

// Unix-domain sockets of type SOCK_SEQPACKET: whole packets, so nobody ever holds half of one, and descriptors with
// them. All sockets here are non-blocking.

// Longest path of a socket, bytes.
inline constexpr size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

// InvalidArgument if the path is empty or too long for a socket.
absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path);

// ResourceExhausted if the process has no descriptors left.
absl::StatusOr<FileDescriptor> OpenSocket();

// Owns: a socket that is connected, and hung up at its end: a forked child may have it open for as long as it likes.
class ConnectedSocket {
 public:
  explicit ConnectedSocket(FileDescriptor socket) : fd_(std::move(socket)) {}
  ConnectedSocket(ConnectedSocket&&) = default;
  ~ConnectedSocket();

  int get() const { return fd_.get(); }

 private:
  FileDescriptor fd_;  // none: moved from
};

// Who is at the other end: the process that connected, or the one that listened.
struct PeerCredentials {
  pid_t pid = 0;                       // 0: the kernel does not say, or not in this process's pid namespace
  uid_t uid = static_cast<uid_t>(-1);  // -1: the kernel does not say
};
PeerCredentials ReadPeerCredentials(int socket);

// `fd_to_pass`: -1 for none. Unavailable if the peer has gone or does not read.
absl::Status SendPacket(int socket, const void* packet, size_t bytes, int fd_to_pass);

// Whether the peer has read all that was sent to it, as the kernel says.
bool PeerHasRead(int socket);

enum class ReceiveOutcome {
  kPacket,
  kNothing,  // yet
  kClosed,   // by the peer
};
struct ReceivedPacket {
  size_t bytes = 0;
  bool malformed = false;  // longer than the buffer, or more than one descriptor came with it
  FileDescriptor fd;       // that came with it, if any
};
ReceiveOutcome ReceivePacket(int socket, void* buffer, size_t buffer_bytes, ReceivedPacket* packet);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_UNIX_SOCKET_H_
