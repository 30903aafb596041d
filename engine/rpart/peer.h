#ifndef FASTDECODE_ENGINE_RPART_PEER_H_
#define FASTDECODE_ENGINE_RPART_PEER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/rpart/messages.h"
#include "rdma/bootstrap.h"

namespace fastdecode {

// Peers that one home can serve at once, at most (--peers).
inline constexpr uint32_t kPeersMax = 16;

// Who asks a home for its service, and for how much of it.
struct PeerRequest {
  PeerId id;
  std::string process;        // for messages: "pid 17, uid 0"
  uint64_t pages_wanted = 0;  // to be reserved; 0: an equal share

  // "engine 4711 at pid 17, uid 0".
  std::string Describe() const;
};

// What an engine's proposal carries to a home (LinkProposal::shape), and what a worker makes of it. An RPartShape
// alone asks for an equal share of the home's pages.
std::string EncodeProposal(const RPartShape& shape, const PeerDemand& demand);
// Errors: InvalidArgument naming size or version.
absl::Status DecodeProposal(const std::string& blob, RPartShape* shape, PeerDemand* demand);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PEER_H_
