#include "tools/serve/http/channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <fastdecode/fastdecode.hpp>

namespace fastdecode::serve {

namespace {

bool HasGone(int fd) {
  pollfd one = {fd, POLLRDHUP, 0};
  return poll(&one, 1, 0) == 1 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

class PlainBytes : public Channel {
 public:
  explicit PlainBytes(Socket socket) : socket_(std::move(socket)) {}

  void Handshake(std::function<void(const error_code&)> handler) override {
    asio::post(socket_.get_executor(), [handler = std::move(handler)] { handler(error_code()); });
  }
  void ReadSome(asio::mutable_buffer into, Handler handler) override {
    socket_.async_read_some(asio::buffer(into), std::move(handler));
  }
  void WriteSome(asio::const_buffer from, Handler handler) override {
    socket_.async_write_some(asio::buffer(from), std::move(handler));
  }
  void EndWriting(std::function<void()> handler) override {
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    asio::post(socket_.get_executor(), std::move(handler));
  }
  bool PeerHasGone() override { return HasGone(socket_.native_handle()); }
  asio::any_io_executor executor() override { return socket_.get_executor(); }
  void Close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

class TlsBytes : public Channel {
 public:
  TlsBytes(Socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  void Handshake(std::function<void(const error_code&)> handler) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(handler));
  }
  void ReadSome(asio::mutable_buffer into, Handler handler) override {
    stream_.async_read_some(asio::buffer(into), std::move(handler));
  }
  void WriteSome(asio::const_buffer from, Handler handler) override {
    stream_.async_write_some(asio::buffer(from), std::move(handler));
  }
  void EndWriting(std::function<void()> handler) override {
    // TLS sends close_notify, then waits for the client's: the read that waits is ended, since there is one at a time.
    // Whoever calls closes the channel if that takes too long.
    error_code ignored;
    stream_.lowest_layer().cancel(ignored);
    asio::post(stream_.get_executor(), [this, handler = std::move(handler)] {
      if (!stream_.lowest_layer().is_open()) return;
      stream_.async_shutdown([handler = std::move(handler)](const error_code&) { handler(); });
    });
  }
  bool PeerHasGone() override { return HasGone(stream_.lowest_layer().native_handle()); }
  asio::any_io_executor executor() override { return stream_.get_executor(); }
  void Close() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  const std::shared_ptr<asio::ssl::context> context_;  // stays while its streams live, though another has replaced it
  asio::ssl::stream<Socket> stream_;
};

[[noreturn]] void ThrowTls(const char* option, const std::string& path, const char* what) {
  const unsigned long code = ERR_get_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  throw Error(FD_INVALID_ARGUMENT,
              std::string(option) + ": " + path + ": " + what + (reason == nullptr ? "" : std::string(": ") + reason));
}

}  // namespace

std::unique_ptr<Channel> PlainChannel(Channel::Socket socket) {
  return std::make_unique<PlainBytes>(std::move(socket));
}

std::unique_ptr<Channel> TlsChannel(Channel::Socket socket, std::shared_ptr<asio::ssl::context> context) {
  return std::make_unique<TlsBytes>(std::move(socket), std::move(context));
}

std::shared_ptr<asio::ssl::context> MakeTlsContext(const std::string& certificate, const std::string& key) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Nobody is there to type a passphrase.
  SSL_CTX_set_default_passwd_cb(native, [](char*, int, int, void*) { return 0; });
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(native, certificate.c_str()) != 1) {
    ThrowTls("--tls-cert", certificate, "is no certificate chain in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(native, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    ThrowTls("--tls-key", key, "is no private key in PEM, is encrypted, or is not that of the certificate");
  }
  if (SSL_CTX_check_private_key(native) != 1) ThrowTls("--tls-key", key, "is not the key of --tls-cert");
  return context;
}

}  // namespace fastdecode::serve
