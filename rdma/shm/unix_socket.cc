#include "rdma/shm/unix_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

constexpr int kPassedFdsMax = 4;  // more than we ever send; the kernel closes what does not fit

void TakeDescriptors(msghdr* message, ReceivedPacket* packet) {
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr; control = CMSG_NXTHDR(message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      FileDescriptor owned(fd);
      if (packet->fd.valid()) {
        packet->malformed = true;
      } else {
        packet->fd = std::move(owned);
      }
    }
  }
}

}  // namespace

absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path) {
  if (path.empty() || path.size() > kSocketPathBytesMax || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("unix:%s: the path of a socket has 1 to %d bytes, this one has %d", path.c_str(),
                        kSocketPathBytesMax, path.size()));
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<FileDescriptor> OpenSocket() {
  FileDescriptor socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd.valid()) return absl::ResourceExhaustedError(absl::StrCat("socket: ", std::strerror(errno)));
  return socket_fd;
}

ConnectedSocket::~ConnectedSocket() {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

PeerCredentials ReadPeerCredentials(int socket) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return {};
  return {credentials.pid, credentials.uid};
}

absl::Status SendPacket(int socket, const void* packet, size_t bytes, int fd_to_pass) {
  iovec part = {const_cast<void*>(packet), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd_to_pass >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd_to_pass, sizeof(fd_to_pass));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return absl::UnavailableError(absl::StrCat("sendmsg: ", std::strerror(errno)));
  return absl::OkStatus();
}

bool PeerHasRead(int socket) {
  int unread = 0;
  return ioctl(socket, SIOCOUTQ, &unread) == 0 && unread == 0;
}

ReceiveOutcome ReceivePacket(int socket, void* buffer, size_t buffer_bytes, ReceivedPacket* packet) {
  iovec part = {buffer, buffer_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedFdsMax * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? ReceiveOutcome::kNothing : ReceiveOutcome::kClosed;
  }
  *packet = ReceivedPacket();
  TakeDescriptors(&message, packet);
  if (received == 0) return ReceiveOutcome::kClosed;  // an empty packet reads the same, and nobody honest sends one
  packet->bytes = static_cast<size_t>(received);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) packet->malformed = true;
  return ReceiveOutcome::kPacket;
}

}  // namespace fastdecode
