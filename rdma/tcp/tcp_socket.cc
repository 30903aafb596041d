#include "rdma/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr int kBacklog = 1024;
constexpr int kKeepAliveIdleS = 5;
constexpr int kKeepAliveIntervalS = 2;

absl::StatusOr<AddressList> Resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error == 0) return AddressList(list);
  const std::string message = absl::StrCat("host '", host, "': ", gai_strerror(error));
  return error == EAI_NONAME ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

std::string FormatAddress(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, bytes, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  constexpr char kMapped[] = "::ffff:";  // an IPv4 peer of a socket that listens at "::"
  const bool mapped = std::strncmp(host, kMapped, sizeof(kMapped) - 1) == 0 && std::strchr(host, '.') != nullptr;
  return FormatHostAndPort(mapped ? host + sizeof(kMapped) - 1 : host, static_cast<uint16_t>(std::atoi(port)));
}

void SetOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));  // without it, things are only slower
}

void SetConnectionOptions(int socket) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
}

FileDescriptor OpenTcpSocket(int family) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

absl::Status ListenError(const std::string& place, const char* what, int error) {
  const std::string message = absl::StrCat("cannot listen at ", place, ": ", what, ": ", std::strerror(error));
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(
          absl::StrCat("cannot listen at ", place, ": the port is in use by another process"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
      return absl::NotFoundError(message);
    default:
      return absl::InternalError(message);
  }
}

// A port in place of the one in `address`.
void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

absl::StatusOr<FileDescriptor> ListenAtAddress(const addrinfo& address) {
  const std::string place = FormatAddress(address.ai_addr, address.ai_addrlen);
  FileDescriptor fd = OpenTcpSocket(address.ai_family);
  if (!fd.valid()) return ListenError(place, "socket", errno);
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of a worker that was here before do not matter
  if (address.ai_family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // "::" is everything
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return ListenError(place, "bind", errno);
  if (listen(fd.get(), kBacklog) != 0) return ListenError(place, "listen", errno);
  return fd;
}

// A resolver may name one twice, such as for two lines of /etc/hosts.
std::vector<addrinfo*> DistinctAddresses(const AddressList& addresses) {
  std::vector<addrinfo*> distinct;
  for (addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const bool seen = std::any_of(distinct.begin(), distinct.end(), [address](const addrinfo* other) {
      return other->ai_addrlen == address->ai_addrlen &&
             std::memcmp(other->ai_addr, address->ai_addr, address->ai_addrlen) == 0;
    });
    if (!seen) distinct.push_back(address);
  }
  return distinct;
}

// A connection from an unused port to itself succeeds, which nobody wants.
bool IsConnectedToItself(int socket) {
  sockaddr_storage own = {};
  sockaddr_storage peer = {};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 && own_bytes == peer_bytes &&
         std::memcmp(&own, &peer, own_bytes) == 0;
}

// 0, or why not.
int ConnectToAddress(int socket, const addrinfo& address, uint64_t deadline_ns) {
  int error = connect(socket, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  while (error == EINPROGRESS || error == EINTR) {
    pollfd entry = {socket, POLLOUT, 0};
    const int timeout_ms = PollTimeoutMs(deadline_ns);
    if (poll(&entry, 1, timeout_ms) > 0) {
      socklen_t bytes = sizeof(error);
      if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
      break;
    }
    if (timeout_ms == 0) return ETIMEDOUT;
  }
  return error == 0 && IsConnectedToItself(socket) ? ECONNREFUSED : error;
}

absl::Status ConnectError(int error, const std::string& message) {
  switch (error) {
    case ECONNREFUSED:
      return absl::NotFoundError(message);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string NobodyAt(const std::string& host, uint16_t port) {
  return absl::StrCat("no worker to be reached at ", FormatHostAndPort(host, port));
}

}  // namespace

std::string FormatHostAndPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<std::vector<FileDescriptor>> ListenTcp(const std::string& host, uint16_t port) {
  const absl::StatusOr<AddressList> addresses = Resolve(host, port);
  if (!addresses.ok()) {
    return absl::Status(addresses.status().code(), absl::StrCat("cannot listen at ", FormatHostAndPort(host, port),
                                                                ": ", std::string(addresses.status().message())));
  }
  return ListenTcp(*addresses);
}

absl::StatusOr<std::vector<FileDescriptor>> ListenTcp(const AddressList& addresses) {
  std::vector<FileDescriptor> sockets;
  absl::Status not_here;  // "localhost" may name an address of a kind that this machine has not set up
  for (addrinfo* const address : DistinctAddresses(addresses)) {
    if (!sockets.empty()) SetPort(address->ai_addr, LocalPort(sockets.front().get()));
    absl::StatusOr<FileDescriptor> fd = ListenAtAddress(*address);
    if (fd.ok()) {
      sockets.push_back(*std::move(fd));
    } else if (absl::IsNotFound(fd.status())) {
      not_here = fd.status();
    } else {
      return fd.status();
    }
  }
  if (sockets.empty()) return not_here;
  return sockets;
}

void AddressListDeleter::operator()(addrinfo* list) const { freeaddrinfo(list); }

absl::StatusOr<AddressList> LookUpTcp(const std::string& host, uint16_t port) {
  absl::StatusOr<AddressList> addresses = Resolve(host, port);
  if (addresses.ok()) return addresses;
  return absl::Status(addresses.status().code(),
                      absl::StrCat(NobodyAt(host, port), ": ", std::string(addresses.status().message())));
}

absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, uint16_t port, uint64_t deadline_ns) {
  const absl::StatusOr<AddressList> addresses = LookUpTcp(host, port);
  if (!addresses.ok()) return addresses.status();
  return ConnectTcp(host, port, *addresses, deadline_ns);
}

absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, uint16_t port, const AddressList& addresses,
                                          uint64_t deadline_ns) {
  uint64_t left = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) ++left;
  int error = 0;
  std::string tried;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next, --left) {
    // One address that swallows everything must not take the time of those behind it.
    const uint64_t now_ns = NowNs();
    const uint64_t part_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / left : 0;
    FileDescriptor fd = OpenTcpSocket(address->ai_family);
    error = fd.valid() ? ConnectToAddress(fd.get(), *address, now_ns + part_ns) : errno;
    if (error == 0) {
      SetConnectionOptions(fd.get());
      return fd;
    }
    absl::StrAppend(&tried, tried.empty() ? ": " : "; ", FormatAddress(address->ai_addr, address->ai_addrlen), ": ",
                    std::strerror(error));
  }
  return ConnectError(error, NobodyAt(host, port) + tried);
}

FileDescriptor AcceptTcp(int listening_socket, std::string* peer_address) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  FileDescriptor fd(
      accept4(listening_socket, reinterpret_cast<sockaddr*>(&address), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return fd;
  SetConnectionOptions(fd.get());
  *peer_address = FormatAddress(reinterpret_cast<const sockaddr*>(&address), bytes);
  return fd;
}

uint16_t LocalPort(int socket) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

FrameNews ReadFrame(int socket, FrameReader* reader) {
  while (true) {
    const ssize_t got = recv(socket, reader->space(), reader->space_bytes(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (got < 0) return {FrameNews::Kind::kClosed, absl::StrCat("lost the connection: ", std::strerror(errno))};
    if (got == 0) {
      const char* const where = reader->in_frame() ? "closed the connection within a frame" : "closed the connection";
      return {FrameNews::Kind::kClosed, where};
    }
    switch (reader->Take(static_cast<size_t>(got))) {
      case FrameReader::State::kIncomplete:
        break;
      case FrameReader::State::kComplete:
        return {FrameNews::Kind::kFrame, reader->TakeFrame()};
      case FrameReader::State::kMalformed:
        return {FrameNews::Kind::kMalformed, reader->Defect()};
    }
  }
}

size_t SendSome(int socket, const char* bytes, size_t count) {
  ssize_t sent;
  do {
    sent = send(socket, bytes, count, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

// With bytes unread, close(2) would reset the connection, and the peer's kernel might drop what it has not handed out.
void CloseTcp(FileDescriptor socket) {
  constexpr int kReadsMax = 16;
  if (!socket.valid()) return;
  shutdown(socket.get(), SHUT_WR);
  char sink[4096];
  for (int i = 0; i < kReadsMax && recv(socket.get(), sink, sizeof(sink), 0) > 0; ++i) {
  }
}

}  // namespace fastdecode
