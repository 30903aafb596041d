#include "rdma/endpoint.h"

#include <algorithm>
#include <cctype>

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
constexpr char kPathHint[] = "; a socket's path stands behind unix:, as in unix:";
constexpr uint32_t kPortMax = 65535;
constexpr uint32_t kUsualPort = 7471;  // in examples

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

const char* Forms(EndpointUse use) {
  switch (use) {
    case EndpointUse::kHomes:
      return "is none of gpu, local, local:N, unix:PATH and HOST:PORT";
    case EndpointUse::kListen:
      return "is neither unix:PATH nor HOST:PORT";
    case EndpointUse::kPeer:
      break;
  }
  return "is none of local, unix:PATH and HOST:PORT";
}

// A URL is none of the forms. What it would be without its scheme.
std::string SchemeHint(const std::string& text, size_t scheme_end) {
  const std::string scheme = text.substr(0, scheme_end);
  const std::string rest = text.substr(scheme_end + 3);
  if (scheme == "unix" || scheme == "ipc" || scheme == "file") return kPathHint + rest;
  const std::string address = rest.substr(0, rest.find('/'));
  const bool has_port = address.find(':') != std::string::npos;
  return absl::StrCat("; there is no ", scheme, ":// before a host: ", address,
                      has_port ? "" : absl::StrCat(":", kUsualPort));
}

bool IsPath(const std::string& text) {
  const auto ends = [&text](const std::string& end) {
    return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  };
  return text.find('/') == 0 || text.find("./") == 0 || text.find("../") == 0 || text.find("~/") == 0 ||
         (text.find(':') == std::string::npos &&
          (text.find('/') != std::string::npos || ends(".sock") || ends(".socket")));
}

// What a text without a colon was probably meant to be.
std::string WordHint(const std::string& text, EndpointUse use) {
  std::string small = text;
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool of_process = small == "gpu" || small == "cuda" || small == "local";
  if (of_process && use == EndpointUse::kListen) return "; engines in other processes connect there";
  if (of_process && !(small == "gpu" && use == EndpointUse::kPeer)) {
    return absl::StrCat("; give ", small == "local" ? "local" : "gpu");
  }
  if (text.empty() || !std::all_of(text.begin(), text.end(), IsHostCharacter)) return "";
  const bool is_port = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (is_port)
    return absl::StrCat("; a port stands behind a host: ", use == EndpointUse::kListen ? "0.0.0.0:" : "HOST:", text);
  return absl::StrCat("; a host has a port behind it: ", text, ":", kUsualPort);
}

absl::StatusOr<Endpoint> ParseHostAndPort(const std::string& option, const std::string& text) {
  const size_t colon = text.rfind(':');
  if (text.front() == '[' && text.back() == ']' && text.size() > 2) {
    return BadEndpoint(option, text, absl::StrCat("an address has a port behind it: ", text, ":", kUsualPort));
  }
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

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& option, const std::string& text, EndpointUse use) {
  Endpoint endpoint;
  const bool of_process = use != EndpointUse::kListen;
  if (text == "local" && of_process) return endpoint;
  if (text == "gpu" && of_process) {
    endpoint.kind = Endpoint::Kind::kGpu;
    return endpoint;
  }
  const size_t scheme_end = text.find("://");
  const bool is_url = scheme_end != std::string::npos && text.compare(scheme_end, 4, ":///") != 0;
  if (is_url || (scheme_end != std::string::npos && !StartsWith(text, kUnixPrefix))) {
    return BadEndpoint(option, text, Forms(use) + SchemeHint(text, scheme_end));
  }
  if (IsPath(text)) return BadEndpoint(option, text, absl::StrCat(Forms(use), kPathHint, text));
  if (StartsWith(text, kLocalPrefix) && !of_process)
    return BadEndpoint(option, text, Forms(use) + WordHint("local", use));
  if (StartsWith(text, "gpu:") || StartsWith(text, "cuda:")) {
    return BadEndpoint(option, text,
                       Forms(use) + WordHint("gpu", use) + (of_process ? ", and --gpu N for which one" : ""));
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
  return BadEndpoint(option, text, Forms(use) + WordHint(text, use));
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
