#include "tools/serve/http/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fastdecode/fastdecode.hpp>
#include <vector>

#include "tools/serve/api_error.h"
#include "tools/serve/clock.h"

namespace fastdecode::serve {

namespace {

constexpr auto kTick = std::chrono::milliseconds(200);
constexpr auto kRetryAccept = std::chrono::milliseconds(100);  // where no descriptor is left
constexpr int kBacklog = 1024;
// A peer that has vanished is noticed after about half a minute, whether it was being written to or not.
constexpr int kUserTimeoutMs = 30000, kKeepIdleS = 15, kKeepIntervalS = 5, kKeepCount = 3;
// The kernel takes so much that it cannot send yet, where it would take some MB: a reader that has stopped is known by
// then, and costs no more.
constexpr int kNotSentBytes = 128 << 10;

using Endpoint = asio::generic::stream_protocol::endpoint;

bool IsUnix(const ListenOptions& options) { return !options.uds.empty(); }

// A socket that another server has left behind is removed; one where somebody answers is in use.
void RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) throw Error(FD_ALREADY_EXISTS, "--uds: " + path + " exists and is no socket");
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool answered =
      probe >= 0 && (connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
                     errno == EAGAIN);  // EAGAIN: many wait for it
  if (probe >= 0) close(probe);
  if (answered) throw Error(FD_ALREADY_EXISTS, "--uds: " + path + " is in use by another server");
  unlink(path.c_str());
}

Endpoint UnixEndpoint(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw Error(FD_INVALID_ARGUMENT,
                "--uds: " + path + " is longer than " + std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  RemoveStale(path, address);
  return Endpoint(&address, sizeof(address), SOCK_STREAM);
}

std::vector<Endpoint> TcpEndpoints(const ListenOptions& options) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (failed != 0) {
    throw Error(FD_INVALID_ARGUMENT,
                "--host: '" + options.host + "' is no address of this host: " + gai_strerror(failed));
  }
  std::vector<Endpoint> endpoints;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    endpoints.emplace_back(each->ai_addr, each->ai_addrlen, IPPROTO_TCP);
  }
  freeaddrinfo(found);
  return endpoints;
}

std::string AddressText(const Endpoint& endpoint) {
  if (endpoint.data()->sa_family == AF_UNIX) return "unix";
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(endpoint.data(), static_cast<socklen_t>(endpoint.size()), host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  const bool v6 = endpoint.data()->sa_family == AF_INET6;
  return (v6 ? "[" + std::string(host) + "]:" : std::string(host) + ":") + port;
}

void SetTcpOptions(int fd) {
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, kNotSentBytes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
}

// Writes what a socket's buffer takes without waiting.
void RefuseConnection(Channel::Socket* socket) {
  const std::string body = ErrorJson({.status = 503,
                                      .message = "this server has as many connections as it takes (--max-connections)",
                                      .type = "overloaded_error",
                                      .code = "too_many_connections"});
  const std::string answer =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  error_code ignored;
  socket->non_blocking(true, ignored);
  socket->send(asio::buffer(answer), 0, ignored);
  socket->shutdown(asio::socket_base::shutdown_both, ignored);
}

}  // namespace

Listener::Listener(asio::io_context& io, const ListenOptions& options, const HttpLimits& limits, HttpHandler* handler)
    : io_(io), options_(options), limits_(limits), handler_(handler), acceptor_(io), tick_(io), retry_(io) {
  const std::string where = IsUnix(options) ? "--uds: " + options.uds
                                            : "--host, --port: " + options.host + ":" + std::to_string(options.port);
  const std::vector<Endpoint> endpoints =
      IsUnix(options) ? std::vector<Endpoint>{UnixEndpoint(options.uds)} : TcpEndpoints(options);
  error_code error;
  for (const Endpoint& endpoint : endpoints) {
    error_code ignored;
    acceptor_.close(ignored);
    acceptor_.open(endpoint.protocol(), error);
    if (!error && !IsUnix(options)) acceptor_.set_option(asio::socket_base::reuse_address(true), ignored);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    if (!error) break;
  }
  if (error == asio::error::address_in_use) {
    throw Error(FD_ALREADY_EXISTS, where + " is in use by another process: choose another --port, or 0 for any");
  }
  if (error == asio::error::access_denied && !IsUnix(options)) {
    throw Error(FD_PERMISSION_DENIED, where + ": this user may not listen there: choose a --port of 1024 or more");
  }
  if (error) throw Error(FD_INVALID_ARGUMENT, where + ": cannot listen there: " + error.message());
  const Endpoint bound = acceptor_.local_endpoint(error);
  if (IsUnix(options)) {
    chmod(options.uds.c_str(), 0660);
  } else if (bound.data()->sa_family == AF_INET6) {
    port_ = ntohs(reinterpret_cast<const sockaddr_in6*>(bound.data())->sin6_port);
  } else {
    port_ = ntohs(reinterpret_cast<const sockaddr_in*>(bound.data())->sin_port);
  }
}

Listener::~Listener() {
  if (IsUnix(options_)) unlink(options_.uds.c_str());
}

std::string Listener::url() const {
  if (IsUnix(options_)) return "unix:" + options_.uds;
  const bool v6 = options_.host.find(':') != std::string::npos;
  return std::string(tls_ != nullptr ? "https://" : "http://") + (v6 ? "[" + options_.host + "]" : options_.host) +
         ":" + std::to_string(port_);
}

size_t Listener::streams() const {
  size_t count = 0;
  for (const auto& connection : connections_) count += connection->streaming();
  return count;
}

size_t Listener::busy() const {
  size_t count = 0;
  for (const auto& connection : connections_) count += connection->answering();
  return count;
}

void Listener::Start() {
  Accept();
  Tick();
}

void Listener::Accept() {
  acceptor_.async_accept([this](const error_code& error, Channel::Socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    OnAccept(error, std::move(socket));
  });
}

void Listener::OnAccept(const error_code& error, Channel::Socket socket) {
  if (error) {
    // No descriptor is left, say: those that wait are taken when there is one.
    retry_.expires_after(kRetryAccept);
    retry_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  error_code ignored;
  const Endpoint peer = socket.remote_endpoint(ignored);
  if (!IsUnix(options_)) SetTcpOptions(socket.native_handle());
  if (connections_.size() >= options_.connections) {
    std::erase_if(connections_, [](const auto& connection) { return connection->closed(); });
  }
  if (connections_.size() >= options_.connections) {
    ++refused_;
    if (tls_ == nullptr) RefuseConnection(&socket);
    return Accept();
  }
  std::unique_ptr<Channel> channel =
      tls_ == nullptr ? PlainChannel(std::move(socket)) : TlsChannel(std::move(socket), tls_);
  auto connection = std::make_shared<Connection>(std::move(channel), AddressText(peer), limits_, handler_);
  connections_.insert(connection);
  if (close_when_idle_) connection->CloseWhenIdle();
  connection->Start();
  Accept();
}

void Listener::Tick() {
  const uint64_t now = MonotonicNs();
  for (auto each = connections_.begin(); each != connections_.end();) {
    (*each)->Tick(now);
    each = (*each)->closed() ? connections_.erase(each) : std::next(each);
  }
  tick_.expires_after(kTick);
  tick_.async_wait([this](const error_code& error) {
    if (!error) Tick();
  });
}

void Listener::CloseWhenIdle() {
  close_when_idle_ = true;
  for (const auto& connection : connections_) connection->CloseWhenIdle();
}

void Listener::Stop() {
  error_code ignored;
  acceptor_.close(ignored);
  tick_.cancel();
  retry_.cancel();
  for (const auto& connection : connections_) connection->Abort(Exchange::Gone::kServer);
  connections_.clear();
}

}  // namespace fastdecode::serve
