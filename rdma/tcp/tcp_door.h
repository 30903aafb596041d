#ifndef FASTDECODE_RDMA_TCP_TCP_DOOR_H_
#define FASTDECODE_RDMA_TCP_TCP_DOOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/bootstrap.h"
#include "rdma/file_descriptor.h"
#include "rdma/tcp/control_channel.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/secret.h"
#include "rdma/tcp/transcript.h"

namespace fastdecode {

// A proposal of an engine that knows the secret; it waits for a decision.
// Owns: the connection, until one of Accept and Refuse.
// Thread: one.
class PendingConnection {
 public:
  // `ready_timeout_ns`: from the acceptance until the engine's end can receive.
  PendingConnection(std::string peer_name, FileDescriptor socket, Transcript transcript, LinkOffer offer,
                    uint64_t ready_timeout_ns);
  // Refuses, if nobody decided.
  ~PendingConnection();
  PendingConnection(const PendingConnection&) = delete;
  PendingConnection& operator=(const PendingConnection&) = delete;

  // Its size is within CheckLinkSize.
  const LinkProposal& proposal() const { return offer_.proposal; }
  // The provider's, at most kHandshakeBlobBytesMax bytes of which nothing was checked.
  const std::string& parameters() const { return offer_.parameters; }
  // "10.0.0.1:4711".
  const std::string& peer_name() const { return peer_name_; }

  // Answers. The channel's Poll tells when the engine's end is ready, or that it has gone.
  // Unavailable if the engine has gone already. REQUIRES: not decided yet; blobs of at most kHandshakeBlobBytesMax.
  absl::StatusOr<std::unique_ptr<ControlChannel>> Accept(const LinkAcceptance& acceptance,
                                                         const std::string& parameters);
  // `text` becomes part of the engine's error message. REQUIRES: not decided yet.
  void Refuse(const std::string& text);

 private:
  const std::string peer_name_;
  const LinkOffer offer_;
  const uint64_t ready_timeout_ns_;
  FileDescriptor socket_;  // closed once decided
  Transcript transcript_;
};

struct TcpDoorOptions {
  std::string host;   // "::": every address of this machine
  uint16_t port = 0;  // 0: one that is free
  std::shared_ptr<const Secret> secret;
  // From the connection to the proposal's last byte; meanwhile the engine registers its memory.
  uint64_t handshake_timeout_ns = 10'000'000'000;
  uint64_t ready_timeout_ns = 2'000'000'000;  // from the acceptance to the engine's ready
};

// Where a worker takes links over a fabric. Turns away whoever does not know the secret, says something else than the
// handshake, or takes too long over it; nobody can keep it waiting for bytes.
// Owns: the listening sockets, and the connections of those who have not made their proposal.
// Thread: one. Bounded: kHalfOpenMax such connections, each for handshake_timeout_ns. When one more comes, one
// of the address that has most of them has to go: who has said nothing for longest; if all have said hello, the oldest.
class TcpDoor {
 public:
  static constexpr size_t kHalfOpenMax = 256;

  // Errors: those of ListenTcp. REQUIRES: a secret.
  static absl::StatusOr<std::unique_ptr<TcpDoor>> Listen(TcpDoorOptions options);

  // Waits for the next engine that has proved itself and made a proposal.
  // Errors: DeadlineExceeded after timeout_ns; any other is one line about one client that was turned away (for the
  // log): call again.
  absl::StatusOr<std::unique_ptr<PendingConnection>> AcceptConnection(uint64_t timeout_ns);

  uint16_t port() const { return port_; }
  // Clients that AcceptConnection has told of.
  uint64_t turned_away() const { return turned_away_; }

 private:
  using Result = absl::StatusOr<std::unique_ptr<PendingConnection>>;
  struct Client {
    std::string name;
    FileDescriptor socket;
    uint64_t deadline_ns;
    FrameReader reader;
    Transcript transcript;
    std::optional<Nonce> nonce;  // once it has said hello
  };

  TcpDoor(TcpDoorOptions options, std::vector<FileDescriptor> sockets);

  // What there is to tell about a client, if it is one more than they were. Both take it out of half_open_.
  std::optional<Result> ServeClients(uint64_t deadline_ns);
  std::optional<Result> MakeRoom();

  void TakeInClients(int socket);
  // What there is to tell about the client, if that is the end of its handshake here.
  std::optional<Result> Serve(Client* client);
  std::optional<Result> Greet(Client* client, const std::string& hello);
  Result Judge(Client* client, const std::string& proposal);
  absl::Status TurnAway(Client* client, const std::string& why);

  const TcpDoorOptions options_;
  const std::vector<FileDescriptor> sockets_;
  const uint16_t port_;
  std::vector<std::unique_ptr<Client>> half_open_;  // oldest first
  std::deque<Nonce> proven_nonces_;                 // of the last engines that proved themselves
  uint64_t turned_away_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_TCP_DOOR_H_
