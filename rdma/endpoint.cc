#include "rdma/endpoint.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rdma/shm/unix_socket.h"
#include "rdma/tcp/tcp_socket.h"

namespace fastdecode {

namespace {

constexpr char kLocalPrefix[] = "local:";
constexpr char kUnixPrefix[] = "unix:";
constexpr uint32_t kPortMax = 65535;

bool StartsWith(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
std::string After(const std::string& text, const char* prefix) { return text.substr(std::string(prefix).size()); }

absl::Status BadEndpoint(const std::string& option, const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", text, "': ", why));
}

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}
// With the zone of a link-local one: "fe80::1%eth0".
bool IsAddressCharacter(char c) { return IsHostCharacter(c) || c == ':' || c == '%'; }

absl::StatusOr<Endpoint> ParseHostAndPort(const std::string& option, const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!bracketed && host.find(':') != std::string::npos) {
    return BadEndpoint(option, text, "an IPv6 address goes in brackets: [::1]:4711");
  }
  if (host.empty() || !std::all_of(host.begin(), host.end(), bracketed ? IsAddressCharacter : IsHostCharacter)) {
    return BadEndpoint(option, text, "HOST:PORT takes a host name, an IPv4 address or an IPv6 address in brackets");
  }
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > kPortMax) {
    return BadEndpoint(option, text, absl::StrCat("HOST:PORT takes a port from 1 to ", kPortMax));
  }
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kFabric;
  endpoint.host = host;
  endpoint.port = static_cast<uint16_t>(port);
  return endpoint;
}

}  // namespace

std::string FormatEndpoint(const Endpoint& endpoint) {
  switch (endpoint.kind) {
    case Endpoint::Kind::kLocal:
      return endpoint.local_homes == 0 ? "local" : absl::StrCat(kLocalPrefix, endpoint.local_homes);
    case Endpoint::Kind::kGpu:
      return "gpu";
    case Endpoint::Kind::kUnix:
      return absl::StrCat(kUnixPrefix, endpoint.path);
    case Endpoint::Kind::kFabric:
      break;
  }
  return FormatHostAndPort(endpoint.host, endpoint.port);
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& option, const std::string& text) {
  Endpoint endpoint;
  if (text == "local") return endpoint;
  if (text == "gpu") {
    endpoint.kind = Endpoint::Kind::kGpu;
    return endpoint;
  }
  if (StartsWith(text, kLocalPrefix)) {
    if (!absl::SimpleAtoi(After(text, kLocalPrefix), &endpoint.local_homes) || endpoint.local_homes < 1 ||
        endpoint.local_homes > kLocalHomesMax) {
      return BadEndpoint(option, text, absl::StrCat("local:N takes a number of homes from 1 to ", kLocalHomesMax));
    }
    return endpoint;
  }
  if (StartsWith(text, kUnixPrefix)) {
    endpoint.kind = Endpoint::Kind::kUnix;
    endpoint.path = After(text, kUnixPrefix);
    if (const auto address = SocketAddress(endpoint.path); !address.ok()) {
      return BadEndpoint(option, text, std::string(address.status().message()));
    }
    return endpoint;
  }
  if (text.find(':') != std::string::npos) return ParseHostAndPort(option, text);
  return BadEndpoint(option, text, "is none of gpu, local, local:N, unix:PATH and HOST:PORT");
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& option, const std::string& list) {
  std::vector<Endpoint> endpoints;
  const std::vector<std::string> parts = absl::StrSplit(list, ',');
  for (const std::string& part : parts) {
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(option, part);
    if (!endpoint.ok()) return endpoint.status();
    const bool again = std::any_of(endpoints.begin(), endpoints.end(), [&](const Endpoint& other) {
      return other.kind == endpoint->kind && other.path == endpoint->path && other.host == endpoint->host &&
             other.port == endpoint->port;
    });
    if (again) return BadEndpoint(option, part, absl::StrCat("names the same homes twice (in '", list, "')"));
    endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

}  // namespace fastdecode
