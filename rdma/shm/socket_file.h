#ifndef FASTDECODE_RDMA_SHM_SOCKET_FILE_H_
#define FASTDECODE_RDMA_SHM_SOCKET_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "rdma/file_descriptor.h"

namespace fastdecode {

// A unix socket of type SOCK_SEQPACKET that listens at a path, non-blocking, for processes of the same user alone.
// Owns: the socket, and its file, which goes with it.
class SocketFile {
 public:
  // Makes the file with mode 0600. One left by a process that died is removed.
  // Errors: AlreadyExists naming the process that listens there, or if the file is no socket; InvalidArgument for the
  // path; PermissionDenied, NotFound for the folder.
  static absl::StatusOr<SocketFile> Listen(const std::string& path);

  SocketFile(SocketFile&&) = default;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  SocketFile(std::string path, FileDescriptor socket, uint64_t device, uint64_t inode);

  std::string path_;
  FileDescriptor socket_;  // none: moved from
  uint64_t device_;        // of our file: someone else's at the same path is not removed
  uint64_t inode_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_SOCKET_FILE_H_
