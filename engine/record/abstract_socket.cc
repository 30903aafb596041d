#include "engine/record/abstract_socket.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

constexpr size_t kAskersMax = 64;  // who looked for a sign stays in its backlog

}  // namespace

UnixAddress AbstractAddress(const char* name, pid_t pid) {
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  const std::string whole = absl::StrCat(name, pid);
  std::memcpy(result.address.sun_path + 1, whole.data(), whole.size());  // behind a 0: abstract
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + whole.size());
  return result;
}

absl::StatusOr<FileDescriptor> ListenAtName(const UnixAddress& address, size_t backlog) {
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) return socket;
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) return absl::AlreadyExistsError(std::strerror(error));
    return absl::InternalError(absl::StrCat("bind: ", std::strerror(error)));
  }
  if (listen(socket->get(), static_cast<int>(backlog)) != 0) {
    return absl::InternalError(absl::StrCat("listen: ", std::strerror(errno)));
  }
  return socket;
}

absl::StatusOr<FileDescriptor> ConnectToName(const UnixAddress& address) {
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) return socket;
  if (connect(socket->get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0) return socket;
  switch (errno) {
    case ECONNREFUSED:
    case ENOENT:
      return absl::NotFoundError(std::strerror(errno));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(std::strerror(errno));
    default:
      return absl::UnavailableError(std::strerror(errno));
  }
}

ProcessSign::ProcessSign(const char* name) {
  absl::StatusOr<FileDescriptor> socket = ListenAtName(AbstractAddress(name, getpid()), kAskersMax);
  if (socket.ok()) socket_ = *std::move(socket);
}

bool ProcessSign::IsUp(const char* name, pid_t pid) {
  const absl::StatusOr<FileDescriptor> socket = ConnectToName(AbstractAddress(name, pid));
  if (!socket.ok()) return absl::IsUnavailable(socket.status());  // its backlog is full
  return ReadPeerCredentials(socket->get()).pid == pid;
}

}  // namespace fastdecode
