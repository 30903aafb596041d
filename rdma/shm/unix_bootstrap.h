#ifndef FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_
#define FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/bootstrap.h"
#include "rdma/file_descriptor.h"
#include "rdma/link.h"
#include "rdma/shm/handshake.h"
#include "rdma/shm/socket_file.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

// How shm links are made between two processes of a host: over a unix socket, which stays open as long as the link, so
// that each end learns of the other's death, however it died; from the process itself where a child that it forked
// keeps the socket open.

// A worker's door at a path.
// Owns: the socket and its file, which the destructor removes.
// Thread: one. Bounded: kHalfOpenMax clients that have not sent their proposal, each for kProposalTimeoutNs.
class UnixListener final : public Listener {
 public:
  static constexpr size_t kHalfOpenMax = 16;
  static constexpr uint64_t kProposalTimeoutNs = 2'000'000'000;

  // Errors: those of SocketFile::Listen.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(const std::string& path);

  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  absl::StatusOr<std::unique_ptr<PendingLink>> AcceptProposal(uint64_t timeout_ns) override;

  const std::string& path() const { return socket_.path(); }

 private:
  struct HalfOpen {
    FileDescriptor socket;
    uint64_t deadline_ns;
  };

  explicit UnixListener(SocketFile socket) : socket_(std::move(socket)) {}

  void AcceptClients();

  const SocketFile socket_;
  std::vector<HalfOpen> half_open_;  // oldest first
};

// Asks the worker at `path` for a link; the engine region is allocated on `engine_node` (-1: anywhere). The worker has
// timeout_ns for its answer, of which hello_timeout_ns, if that is less, to take up the proposal.
// Errors: NotFound (nobody listens there), PermissionDenied, FailedPrecondition (refused; the worker's text is in the
// message), DeadlineExceeded, InvalidArgument (an answer that cannot be; or the proposal itself), those of
// Arena::Create.
absl::StatusOr<ConnectResult> ConnectUnix(const std::string& path, const LinkProposal& proposal, int engine_node,
                                          uint64_t timeout_ns, uint64_t hello_timeout_ns = UINT64_MAX);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_
