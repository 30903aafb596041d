#ifndef FASTDECODE_TOOLS_SERVE_HTTP_CHANNEL_H_
#define FASTDECODE_TOOLS_SERVE_HTTP_CHANNEL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tools/serve/http/asio.h"

namespace fastdecode::serve {

// The bytes to and from one client, over TCP or a unix socket, with TLS or without. At most one read and one write are
// under way at a time. A handler is called later, never from within the call that took it.
// Thread: the I/O thread.
class Channel {
 public:
  using Socket = asio::generic::stream_protocol::socket;
  using Handler = std::function<void(const error_code&, size_t)>;

  virtual ~Channel() = default;
  // Before anything is read: TLS agrees with the client; otherwise nothing happens.
  virtual void Handshake(std::function<void(const error_code&)> handler) = 0;
  virtual void ReadSome(asio::mutable_buffer into, Handler handler) = 0;
  virtual void WriteSome(asio::const_buffer from, Handler handler) = 0;
  // No more will be written; the client sees the end of the stream. What it sends can still be read.
  virtual void EndWriting(std::function<void()> handler) = 0;
  // Whether the client has closed its side, which is seen even while bytes that it sent before are unread.
  virtual bool PeerHasGone() = 0;
  virtual asio::any_io_executor executor() = 0;
  // Handlers that wait are called with an error.
  virtual void Close() = 0;
};

std::unique_ptr<Channel> PlainChannel(Channel::Socket socket);
std::unique_ptr<Channel> TlsChannel(Channel::Socket socket, std::shared_ptr<asio::ssl::context> context);

// TLS 1.2 and newer with the certificate chain and the private key of these PEM files. Throws Error naming option and
// file.
std::shared_ptr<asio::ssl::context> MakeTlsContext(const std::string& certificate, const std::string& key);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HTTP_CHANNEL_H_
