#ifndef FASTDECODE_RDMA_VERBS_VERBS_BOOTSTRAP_H_
#define FASTDECODE_RDMA_VERBS_VERBS_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rdma/bootstrap.h"
#include "rdma/tcp/secret.h"
#include "rdma/tcp/tcp_door.h"
#include "rdma/verbs/verbs_end.h"

namespace fastdecode {

// How links over a fabric are made: through the TCP door, which carries what the two ends' queue pairs must know of
// each other. The worker's end can receive before it accepts; the engine's before it says that it is ready.

// A worker's door for engines on other hosts.
// Owns: the door. Thread: one.
class VerbsListener final : public Listener {
 public:
  // Errors: those of OpenVerbsDevice and TcpDoor::Listen.
  static absl::StatusOr<std::unique_ptr<VerbsListener>> Listen(const std::string& host, uint16_t port,
                                                               std::shared_ptr<const Secret> secret,
                                                               const VerbsOptions& options);

  absl::StatusOr<std::unique_ptr<PendingLink>> AcceptProposal(uint64_t timeout_ns) override;

  uint16_t port() const { return door_->port(); }

 private:
  VerbsListener(std::unique_ptr<TcpDoor> door, const VerbsOptions& options)
      : door_(std::move(door)), options_(options) {}

  const std::unique_ptr<TcpDoor> door_;
  const VerbsOptions options_;
};

// Asks the worker that listens at host and port for a link; this end's memory is allocated on `engine_node` (-1:
// anywhere).
// Errors: those of ConnectTcpDoor and VerbsEnd; DeadlineExceeded.
absl::StatusOr<ConnectResult> ConnectVerbs(const std::string& host, uint16_t port, std::shared_ptr<const Secret> secret,
                                           const VerbsOptions& options, const LinkProposal& proposal, int engine_node,
                                           uint64_t timeout_ns, uint64_t hello_timeout_ns);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_BOOTSTRAP_H_
