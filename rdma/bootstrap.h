#ifndef FASTDECODE_RDMA_BOOTSTRAP_H_
#define FASTDECODE_RDMA_BOOTSTRAP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/endpoint.h"
#include "rdma/fabric_options.h"
#include "rdma/link.h"

namespace fastdecode {

// How an engine and a worker make a link, whatever the provider: the engine proposes, the worker accepts or refuses.
// Over shared memory the words go through a unix socket (rdma/shm), over a fabric through TCP (rdma/tcp, rdma/verbs).

inline constexpr size_t kHandshakeBlobBytesMax = 512;

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

// A proposal that waits for a decision. Its size is within CheckLinkSize; whether this much memory is wanted, and
// whether the shape fits, is for the caller to say.
// Owns: the connection and what came with it, until one of Accept and Refuse.
// Thread: one.
class PendingLink {
 public:
  // Refuses, if nobody decided.
  virtual ~PendingLink() = default;

  virtual const LinkProposal& proposal() const = 0;
  // "pid 17, uid 0" or "10.0.0.1:4711", for messages.
  virtual std::string peer_name() const = 0;

  // Allocates the home's memory of the link on `home_node` (-1: anywhere) and answers. On an error the engine has been
  // refused.
  // Errors: those of Arena::Create; Unavailable if the engine has gone; the provider's own. REQUIRES: not decided yet.
  virtual absl::StatusOr<std::unique_ptr<HomeLink>> Accept(const LinkAcceptance& acceptance, int home_node) = 0;
  // `text` becomes part of the engine's error message. REQUIRES: not decided yet.
  virtual void Refuse(const std::string& text) = 0;
};

struct ConnectResult {
  std::unique_ptr<EngineLink> link;
  std::string answer;
  uint32_t homes = 0;
};

// A worker's door.
// Thread: one.
class Listener {
 public:
  virtual ~Listener() = default;

  // Waits for the next engine with a well-formed proposal.
  // Errors: DeadlineExceeded after timeout_ns; any other is about one client that was turned away (for the log): call
  // again.
  virtual absl::StatusOr<std::unique_ptr<PendingLink>> AcceptProposal(uint64_t timeout_ns) = 0;
};

// Whether the secret that links to `endpoint` need, if they need one, is there and may be used: for whoever would find
// out late otherwise. Errors: InvalidArgument if no file is named, and those of Secret::Read.
absl::Status CheckSecret(const Endpoint& endpoint, const FabricOptions& fabric);

// The door at `endpoint`, by its kind: a unix socket, or TCP for links over a fabric (`fabric` is about those alone).
// Errors: those of UnixListener::Listen, VerbsListener::Listen and Secret::Read. REQUIRES: not of_this_process().
absl::StatusOr<std::unique_ptr<Listener>> ListenAt(const Endpoint& endpoint, const FabricOptions& fabric);

// Asks the worker at `endpoint` for a link; this end's memory is allocated on `engine_node` (-1: anywhere).
// `hello_timeout_ns`: for the worker's first word, if that is less than timeout_ns. Over a fabric that is a hello, over
// a unix socket that it takes up the proposal: either shows that it is there, and what follows may take much longer.
// Errors: those of ConnectUnix, ConnectVerbs and Secret::Read. REQUIRES: not of_this_process().
absl::StatusOr<ConnectResult> ConnectTo(const Endpoint& endpoint, const FabricOptions& fabric,
                                        const LinkProposal& proposal, int engine_node, uint64_t timeout_ns,
                                        uint64_t hello_timeout_ns = UINT64_MAX);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_BOOTSTRAP_H_
