#include "rdma/endpoint.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

constexpr char kLocalPrefix[] = "local:";
constexpr char kUnixPrefix[] = "unix:";

bool StartsWith(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
std::string After(const std::string& text, const char* prefix) { return text.substr(std::string(prefix).size()); }

absl::Status Bad(const std::string& option, const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", text, "': ", why));
}

bool LooksLikeHostAndPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port;
  return colon != std::string::npos && colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &port);
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& option, const std::string& text) {
  Endpoint endpoint;
  if (text == "local") return endpoint;
  if (StartsWith(text, kLocalPrefix)) {
    if (!absl::SimpleAtoi(After(text, kLocalPrefix), &endpoint.local_homes) || endpoint.local_homes < 1 ||
        endpoint.local_homes > kLocalHomesMax) {
      return Bad(option, text, absl::StrCat("local:N takes a number of homes from 1 to ", kLocalHomesMax));
    }
    return endpoint;
  }
  if (StartsWith(text, kUnixPrefix)) {
    endpoint.kind = Endpoint::Kind::kUnix;
    endpoint.path = After(text, kUnixPrefix);
    if (const auto address = SocketAddress(endpoint.path); !address.ok()) {
      return Bad(option, text, std::string(address.status().message()));
    }
    return endpoint;
  }
  if (LooksLikeHostAndPort(text)) {
    return absl::UnimplementedError(absl::StrCat(
        option, ": '", text, "': workers on other hosts (HOST:PORT) are not built yet; use unix:PATH or local"));
  }
  return Bad(option, text, "is none of local, local:N and unix:PATH");
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& option, const std::string& list) {
  std::vector<Endpoint> endpoints;
  const std::vector<std::string> parts = absl::StrSplit(list, ',');
  for (const std::string& part : parts) {
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(option, part);
    if (!endpoint.ok()) return endpoint.status();
    const bool again = std::any_of(endpoints.begin(), endpoints.end(), [&](const Endpoint& other) {
      return other.kind == endpoint->kind && other.path == endpoint->path;
    });
    if (again) return Bad(option, part, absl::StrCat("names the same homes twice (in '", list, "')"));
    endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

}  // namespace fastdecode
