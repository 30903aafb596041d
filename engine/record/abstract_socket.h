#ifndef FASTDECODE_ENGINE_RECORD_ABSTRACT_SOCKET_H_
#define FASTDECODE_ENGINE_RECORD_ABSTRACT_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>

#include "absl/status/statusor.h"
#include "rdma/file_descriptor.h"

namespace fastdecode {

// Abstract unix sockets: those that have a name instead of a file, in each network namespace its own. A process of
// FastDecode can be found by its id at them.

// What the names begin with: of an engine that lets others read its recording, of one that loads its model, and of a
// worker.
inline constexpr char kRecordName[] = "fastdecode-record-";
inline constexpr char kLoadingName[] = "fastdecode-loading-";
inline constexpr char kWorkerName[] = "fastdecode-worker-";

struct UnixAddress {
  sockaddr_un address = {};
  socklen_t bytes = 0;  // of an abstract one the name's alone
};
UnixAddress AbstractAddress(const char* name, pid_t pid);

// Errors: AlreadyExists if somebody listens there, Internal with the call that the kernel refuses.
absl::StatusOr<FileDescriptor> ListenAtName(const UnixAddress& address, size_t backlog);
// Errors: NotFound if nobody listens there, PermissionDenied, Unavailable.
absl::StatusOr<FileDescriptor> ConnectToName(const UnixAddress& address);

// Says by a name of this process, while it lives, what it is: who asks looks whether somebody listens there. Silent
// where the kernel refuses sockets. Owns: the socket.
class ProcessSign {
 public:
  explicit ProcessSign(const char* name);
  // Whether that process has put it up.
  static bool IsUp(const char* name, pid_t pid);

 private:
  FileDescriptor socket_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_ABSTRACT_SOCKET_H_
