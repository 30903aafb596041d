#ifndef FASTDECODE_RDMA_SHM_PROCESS_BACKING_H_
#define FASTDECODE_RDMA_SHM_PROCESS_BACKING_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "numa/arena.h"
#include "rdma/shm/peer_process.h"
#include "rdma/shm/shm_link.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

// A link end whose peer is another process.
// Owns: its own region, its mapping of the peer's, the socket. The socket closes last: when the peer sees it closed,
// nothing here writes to the regions any more.
class ProcessBacking final : public ShmBacking {
 public:
  ProcessBacking(std::string peer_name, ConnectedSocket socket, Arena own_region, Arena peer_region)
      : peer_name_(std::move(peer_name)),
        socket_(std::move(socket)),
        peer_process_(socket_.get()),
        own_region_(std::move(own_region)),
        peer_region_(std::move(peer_region)) {}

  LossRecord* loss() override { return &loss_; }
  void TellPeer(const char* cause) override;
  std::string peer_name() const override { return peer_name_; }
  int liveness_fd() const override { return socket_.get(); }
  int peer_process_fd() const override { return peer_process_.fd(); }
  bool PeerGone(std::string* cause) override;
  // Until it has closed its socket, which it does after its last write, or its process has ended.
  bool PeerMayStillWrite() const override;

 private:
  const std::string peer_name_;
  const ConnectedSocket socket_;  // before the regions: destroyed after them
  const PeerProcess peer_process_;
  const Arena own_region_;
  const Arena peer_region_;
  LossRecord loss_;
};

// A new region for this end, sealed, to be sent to the peer.
absl::StatusOr<Arena> CreateRegion(size_t bytes, int node);

// Maps the region that the peer sent. InvalidArgument if there is none, it is not sealed, or its size is not what
// `bytes` makes it: checked before anything is mapped.
absl::StatusOr<Arena> AttachRegion(const FileDescriptor& fd, size_t bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_PROCESS_BACKING_H_
