#ifndef FASTDECODE_RDMA_ENDPOINT_H_
#define FASTDECODE_RDMA_ENDPOINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

// Where homes are, as the command line names it: "local" (one home a NUMA node, in this process), "local:N" (N homes in
// this process), "unix:PATH" (all homes of the worker that listens there).
struct Endpoint {
  enum class Kind { kLocal, kUnix };

  Kind kind = Kind::kLocal;
  int local_homes = 0;  // kLocal: N, or 0 for one a node
  std::string path;     // kUnix

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

inline constexpr int kLocalHomesMax = 64;

// `option`: the command-line option, for messages ("--listen").
// Errors: InvalidArgument naming option and value; Unimplemented for HOST:PORT, which needs the verbs provider.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& option, const std::string& text);

// A comma-separated list, in which local and every path occur once at most.
absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& option, const std::string& list);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_ENDPOINT_H_
