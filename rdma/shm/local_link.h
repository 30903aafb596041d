#ifndef FASTDECODE_RDMA_SHM_LOCAL_LINK_H_
#define FASTDECODE_RDMA_SHM_LOCAL_LINK_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "rdma/link.h"

namespace fastdecode {

// Both ends of a link within this process. They share the memory, which lives as long as one of them. Marking one end
// lost, or destroying it, loses the other.
struct LocalLink {
  std::unique_ptr<EngineLink> engine;
  std::unique_ptr<HomeLink> home;
};

// `home_node`, `engine_node`: the NUMA nodes that get what that end reads; -1: anywhere.
// Errors: those of CheckLinkSize and of Arena::Create.
absl::StatusOr<LocalLink> MakeLocalLink(const LinkSize& size, int home_node, int engine_node, uint64_t epoch);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_LOCAL_LINK_H_
