#ifndef FASTDECODE_RDMA_SHM_PEER_PROCESS_H_
#define FASTDECODE_RDMA_SHM_PEER_PROCESS_H_

#include "rdma/file_descriptor.h"

namespace fastdecode {

// The process at the other end of a unix socket: the one that connected, or that listened. Its socket tells of its
// death too, but stays open with the children that it forked. Owns: a pidfd. Thread: any.
class PeerProcess {
 public:
  // Where the kernel does not say which process it is, nothing is ever known of its end.
  explicit PeerProcess(int socket);

  // Readable once the process has ended; -1: ask nobody, Ended() says all that is known.
  int fd() const { return pidfd_.get(); }
  bool Ended() const;

 private:
  FileDescriptor pidfd_;
  bool ended_before_ = false;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_PEER_PROCESS_H_
