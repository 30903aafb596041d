#include "rdma/shm/socket_file.h"

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
#include "rdma/shm/peer_process.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

constexpr int kBacklog = 64;
constexpr mode_t kSocketMode = 0600;

absl::Status PathError(const std::string& path, const char* what, int error) {
  const std::string message = absl::StrCat("cannot listen at unix:", path, ": ", what, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(message);
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  return absl::InternalError(message);
}

// Two workers that start at once could each take the other's new socket for a stale one: the folder is locked from the
// probe to the bind. Whoever holds the lock for longer than that is no worker of ours, so a busy lock is not waited
// for.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path) {
    constexpr int kAttempts = 100;
    constexpr int kPauseMs = 5;
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    fd_ = FileDescriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int attempt = 0; fd_.valid() && attempt < kAttempts; ++attempt) {
      if (flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) break;
      poll(nullptr, 0, kPauseMs);
    }
  }
  // Unlocked rather than closed alone: a forked child may have it open for as long as it likes.
  ~FolderLock() { flock(fd_.get(), LOCK_UN); }

 private:
  FileDescriptor fd_;
};

// Removes the file of a listener that is dead, if only a child that it forked keeps the socket open; an error if it
// lives, or if the file is something else.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT ? absl::OkStatus() : PathError(path, "lstat", errno);
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen at unix:", path, ": a file that is no socket is in the way"));
  }
  absl::StatusOr<FileDescriptor> probe = OpenSocket();
  if (!probe.ok()) return probe.status();
  const bool connected = connect(probe->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (connected && !PeerProcess(probe->get()).Ended()) {
    return absl::AlreadyExistsError(absl::StrFormat("cannot listen at unix:%s: in use by the process with pid %d",
                                                    path.c_str(), ReadPeerCredentials(probe->get()).pid));
  }
  // EAGAIN: its backlog is full; EPROTOTYPE: it is a socket of another type. Both are alive.
  if (!connected && (errno == EAGAIN || errno == EPROTOTYPE)) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen at unix:", path, ": in use by another process"));
  }
  if (!connected && errno != ECONNREFUSED) return PathError(path, "connect", errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return PathError(path, "removing the stale socket", errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SocketFile> SocketFile::Listen(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = SocketAddress(path);
  if (!address.ok()) return address.status();
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) {
    return absl::Status(socket.status().code(),
                        absl::StrCat("cannot listen at unix:", path, ": ", socket.status().message()));
  }

  const FolderLock folder_lock(path);
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
  return SocketFile(path, *std::move(socket), info.st_dev, info.st_ino);
}

SocketFile::SocketFile(std::string path, FileDescriptor socket, uint64_t device, uint64_t inode)
    : path_(std::move(path)), socket_(std::move(socket)), device_(device), inode_(inode) {}

SocketFile::~SocketFile() {
  if (!socket_.valid()) return;
  struct stat info = {};
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

}  // namespace fastdecode
