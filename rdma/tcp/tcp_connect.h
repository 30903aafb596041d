#ifndef FASTDECODE_RDMA_TCP_TCP_CONNECT_H_
#define FASTDECODE_RDMA_TCP_TCP_CONNECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rdma/tcp/control_channel.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/secret.h"

namespace fastdecode {

struct TcpConnection {
  LinkAnswer answer;
  // Not ready yet: once this end can receive, SendReady and AwaitReady.
  std::unique_ptr<ControlChannel> channel;
};

// Asks the worker that listens at host and port for a link. The offer is made once the worker has said hello: what it
// costs to make is spent on workers that are there and of this version alone, and counts towards their handshake
// timeout. `hello_timeout_ns`: from when its name is looked up to its hello, if that is before deadline_ns.
// Errors: those of ConnectTcp and make_offer; FailedPrecondition (refused; the worker's text is in the message),
// Unauthenticated (it does not know the secret), DeadlineExceeded, Unavailable (it closed the connection),
// InvalidArgument (an answer that cannot be; or the offer itself).
absl::StatusOr<TcpConnection> ConnectTcpDoor(const std::string& host, uint16_t port,
                                             std::shared_ptr<const Secret> secret,
                                             const std::function<absl::StatusOr<LinkOffer>()>& make_offer,
                                             uint64_t deadline_ns, uint64_t hello_timeout_ns = UINT64_MAX);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_TCP_CONNECT_H_
