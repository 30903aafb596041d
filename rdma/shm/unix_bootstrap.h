#ifndef FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_
#define FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/link.h"
#include "rdma/shm/handshake.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

// How shm links are made between two processes of a host: over a unix socket, which stays open as long as the link, so
// that each end learns of the other's death, however it died.

// Who asks for a link.
struct PeerId {
  uint64_t engine_id = 0;
  uint32_t role = 0;  // 0: decode
};

// What an engine asks a worker for.
struct LinkProposal {
  LinkSize size;
  uint64_t epoch = 0;
  PeerId peer;
  uint32_t home_index = 0;  // which of the worker's homes
  std::string shape;        // opaque to rdma, at most kHandshakeBlobBytesMax bytes
};

// What a worker answers.
struct LinkAcceptance {
  uint32_t homes = 1;  // that the worker has
  std::string answer;  // opaque to rdma, at most kHandshakeBlobBytesMax bytes
};

inline constexpr uint32_t kHomesPerWorkerMax = 1024;

// A proposal that waits for a decision. Its size is within CheckLinkSize, its engine region mapped; whether this much
// memory is wanted, and whether the shape fits, is for the caller to say.
// Owns: the socket and the engine's region, until one of Accept and Refuse.
// Thread: one.
class PendingLink {
 public:
  // Refuses, if nobody decided.
  virtual ~PendingLink() = default;

  virtual const LinkProposal& proposal() const = 0;
  virtual PeerCredentials peer() const = 0;

  // Allocates the home region on `home_node` (-1: anywhere) and answers. On an error the engine has been refused.
  // Errors: those of Arena::Create; Unavailable if the engine has gone. REQUIRES: not decided yet.
  virtual absl::StatusOr<std::unique_ptr<HomeLink>> Accept(const LinkAcceptance& acceptance, int home_node) = 0;
  // `text` becomes part of the engine's error message. REQUIRES: not decided yet.
  virtual void Refuse(const std::string& text) = 0;
};

// A worker's door at a path.
// Owns: the socket and its file, which the destructor removes.
// Thread: one. Bounded: kHalfOpenMax clients that have not sent their proposal, each for kProposalTimeoutNs.
class UnixListener {
 public:
  static constexpr size_t kHalfOpenMax = 16;
  static constexpr uint64_t kProposalTimeoutNs = 2'000'000'000;

  // Makes the socket file with mode 0600. A file left by a process that died is removed.
  // Errors: AlreadyExists naming the process that listens there, or if the file is no socket; InvalidArgument for the
  // path; PermissionDenied, NotFound for the folder.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Listen(const std::string& path);

  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // Waits for the next engine with a well-formed proposal.
  // Errors: DeadlineExceeded after timeout_ns; any other is about one client that was turned away (for the log): call
  // again.
  absl::StatusOr<std::unique_ptr<PendingLink>> AcceptProposal(uint64_t timeout_ns);

  const std::string& path() const { return path_; }

 private:
  struct HalfOpen {
    FileDescriptor socket;
    uint64_t deadline_ns;
  };

  UnixListener(std::string path, FileDescriptor socket, uint64_t device, uint64_t inode);

  void AcceptClients();
  absl::Status DropOverdue();

  const std::string path_;
  const FileDescriptor socket_;
  const uint64_t device_;  // of our socket file: someone else's at the same path is not removed
  const uint64_t inode_;
  std::vector<HalfOpen> half_open_;  // oldest first
};

struct ConnectResult {
  std::unique_ptr<EngineLink> link;
  std::string answer;
  uint32_t homes = 0;
};

// Asks the worker at `path` for a link; the engine region is allocated on `engine_node` (-1: anywhere).
// Errors: NotFound (nobody listens there), PermissionDenied, FailedPrecondition (refused; the worker's text is in the
// message), DeadlineExceeded, InvalidArgument (an answer that cannot be; or the proposal itself), those of
// Arena::Create.
absl::StatusOr<ConnectResult> ConnectUnix(const std::string& path, const LinkProposal& proposal, int engine_node,
                                          uint64_t timeout_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_UNIX_BOOTSTRAP_H_
