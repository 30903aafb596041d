#ifndef FASTDECODE_TOOLS_SERVE_HTTP_LISTENER_H_
#define FASTDECODE_TOOLS_SERVE_HTTP_LISTENER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "tools/serve/http/connection.h"

namespace fastdecode::serve {

// Where clients come to: an address and a port, or a unix socket.
struct ListenOptions {
  std::string host = "127.0.0.1";
  int port = 8000;            // 0: any
  std::string uds;            // used instead of both, if not empty
  size_t connections = 4096;  // at once; those above are told so, and closed
};

// Accepts connections and keeps them. Thread: the I/O thread, but for its constructor.
class Listener {
 public:
  // Binds, so that a port in use is known before anything else is done. Throws Error naming the option.
  Listener(asio::io_context& io, const ListenOptions& options, const HttpLimits& limits, HttpHandler* handler);
  ~Listener();

  // From now on connections use TLS with this; those that are there keep theirs. Null: none.
  void SetTls(std::shared_ptr<asio::ssl::context> context) { tls_ = std::move(context); }
  void Start();
  // The server ends: idle connections are closed, and others after their answer. New ones are still taken.
  void CloseWhenIdle();
  // Closes everything.
  void Stop();

  std::string url() const;  // "http://127.0.0.1:8000", "unix:/run/fd.sock"
  size_t connections() const { return connections_.size(); }
  size_t streams() const;
  size_t busy() const;  // connections whose request is being read or answered
  uint64_t refused() const { return refused_; }

 private:
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;
  void Accept();
  void OnAccept(const error_code& error, Channel::Socket socket);
  void Tick();

  asio::io_context& io_;
  const ListenOptions options_;
  const HttpLimits limits_;
  HttpHandler* const handler_;
  Acceptor acceptor_;
  asio::steady_timer tick_, retry_;
  std::shared_ptr<asio::ssl::context> tls_;
  int port_ = 0;
  bool close_when_idle_ = false;
  uint64_t refused_ = 0;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HTTP_LISTENER_H_
