#include "rdma/shm/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "rdma/shm/unix_socket.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // since Linux 6.5, and in its headers since
#endif

namespace fastdecode {

PeerProcess::PeerProcess(int socket) {
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) {
    pidfd_ = FileDescriptor(fd);
    return;
  }
  // By its number, 0 if it is of another namespace. One that is another process's by now belonged to a peer that has
  // ended: watching the wrong one then is no worse than watching none.
  const pid_t pid = ReadPeerCredentials(socket).pid;
  if (pid <= 0) return;
  pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  ended_before_ = !pidfd_.valid() && errno == ESRCH;
}

bool PeerProcess::Ended() const {
  if (!pidfd_.valid()) return ended_before_;
  pollfd entry = {pidfd_.get(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace fastdecode
