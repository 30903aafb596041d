#ifndef FASTDECODE_RDMA_ENDPOINT_H_
#define FASTDECODE_RDMA_ENDPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

// Where homes are, as the command line names it: "local" (one home a NUMA node, in this process), "local:N" (N homes in
// this process), "gpu" (the memory of the GPU that this process computes on), "unix:PATH" (all homes of the worker that
// listens there), "HOST:PORT" (likewise, on another host; an IPv6 address in brackets: "[::1]:4711").
struct Endpoint {
  enum class Kind { kLocal, kGpu, kUnix, kFabric };

  Kind kind = Kind::kLocal;
  int local_homes = 0;    // kLocal: N, or 0 for one a node
  std::string path = {};  // kUnix
  std::string host = {};  // kFabric: a name or an address without brackets; looked up when it is used
  uint16_t port = 0;      // kFabric: not 0

  bool of_this_process() const { return kind == Kind::kLocal || kind == Kind::kGpu; }  // nobody listens there

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

inline constexpr int kLocalHomesMax = 64;

// As ParseEndpoint reads it.
std::string FormatEndpoint(const Endpoint& endpoint);

// What an endpoint is for: homes are of every kind, nobody listens for those of this process, and the far end of a bare
// link is none of a GPU.
enum class EndpointUse { kHomes, kListen, kPeer };

// `option`: the command-line option, for messages ("--listen").
// Errors: InvalidArgument naming option and value, which forms there are, and which one was probably meant.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& option, const std::string& text,
                                       EndpointUse use = EndpointUse::kHomes);

// A comma-separated list, in which local, every path and every host and port occur once at most.
absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& option, const std::string& list);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_ENDPOINT_H_
