#include "rdma/bootstrap.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/check.h"
#include "rdma/shm/unix_bootstrap.h"
#include "rdma/tcp/secret.h"
#include "rdma/verbs/verbs_bootstrap.h"

namespace fastdecode {

namespace {

constexpr char kSecretOption[] = "--secret-file";

absl::StatusOr<std::shared_ptr<const Secret>> ReadSecret(const Endpoint& endpoint, const FabricOptions& fabric) {
  if (!fabric.secret_file.empty()) return Secret::Read(kSecretOption, fabric.secret_file);
  return absl::InvalidArgumentError(absl::StrCat(
      kSecretOption, ": needed for ", FormatEndpoint(endpoint),
      ": a file that both hosts have, made with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE"));
}

}  // namespace

absl::Status CheckSecret(const Endpoint& endpoint, const FabricOptions& fabric) {
  return endpoint.kind == Endpoint::Kind::kFabric ? ReadSecret(endpoint, fabric).status() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listener>> ListenAt(const Endpoint& endpoint, const FabricOptions& fabric) {
  FD_CHECK(!endpoint.of_this_process(), "nobody listens for homes of this process");
  if (endpoint.kind == Endpoint::Kind::kUnix) return UnixListener::Listen(endpoint.path);
  absl::StatusOr<std::shared_ptr<const Secret>> secret = ReadSecret(endpoint, fabric);
  if (!secret.ok()) return secret.status();
  VerbsOptions options;
  options.fabric = fabric;
  return VerbsListener::Listen(endpoint.host, endpoint.port, *std::move(secret), options);
}

absl::StatusOr<ConnectResult> ConnectTo(const Endpoint& endpoint, const FabricOptions& fabric,
                                        const LinkProposal& proposal, int engine_node, uint64_t timeout_ns,
                                        uint64_t hello_timeout_ns) {
  FD_CHECK(!endpoint.of_this_process(), "homes of this process are not connected to");
  hello_timeout_ns = std::min(hello_timeout_ns, timeout_ns);
  if (endpoint.kind == Endpoint::Kind::kUnix)
    return ConnectUnix(endpoint.path, proposal, engine_node, timeout_ns, hello_timeout_ns);
  absl::StatusOr<std::shared_ptr<const Secret>> secret = ReadSecret(endpoint, fabric);
  if (!secret.ok()) return secret.status();
  VerbsOptions options;
  options.fabric = fabric;
  return ConnectVerbs(endpoint.host, endpoint.port, *std::move(secret), options, proposal, engine_node, timeout_ns,
                      hello_timeout_ns);
}

}  // namespace fastdecode
