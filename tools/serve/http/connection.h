#ifndef FASTDECODE_TOOLS_SERVE_HTTP_CONNECTION_H_
#define FASTDECODE_TOOLS_SERVE_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/serve/http/channel.h"
#include "tools/serve/http/exchange.h"

namespace fastdecode::serve {

// What a client may do, and how long it may take.
struct HttpLimits {
  size_t body_bytes = 8 << 20;
  size_t bodies_bytes = 512 << 20;  // of all requests together, from their first byte until they have been read
  std::shared_ptr<std::atomic<size_t>> bodies = std::make_shared<std::atomic<size_t>>(0);  // ...so many now
  uint32_t header_bytes = 16 << 10;
  size_t headers = 64;
  size_t chunk_extension_bytes = 256;
  uint64_t handshake_ns = 10'000'000'000;    // TLS
  uint64_t header_ns = 10'000'000'000;       // from a request's first byte until its head is there
  uint64_t body_ns = 30'000'000'000;         // ...and then its body
  uint64_t idle_ns = 75'000'000'000;         // between requests
  uint64_t slow_client_ns = 30'000'000'000;  // until the socket has taken what one write gave
  uint64_t ping_ns = 15'000'000'000;         // silence of a stream until a comment is sent
};

// One client: reads its requests, one after another, and writes their answers. It reads on while a request is being
// answered, and so it learns at once that a client has gone. Owned by: its own handlers that wait, and the listener's
// set until it has closed. Thread: the I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Channel> channel, std::string peer, const HttpLimits& limits, HttpHandler* handler);

  void Start();
  // Looks at what has been waited for too long. Called every now and then.
  void Tick(uint64_t now_ns);
  // The server ends: a connection closes after its answer, or now if it is between requests. A new one is answered once.
  void CloseWhenIdle();
  // Closes now; a request that is being answered is gone.
  void Abort(Exchange::Gone why);
  bool closed() const { return state_ == State::kClosed; }
  bool answering() const { return exchange_ != nullptr; }
  bool streaming() const { return exchange_ != nullptr && exchange_->streaming_; }

 private:
  friend class Exchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State {
    kHandshake,
    kIdle,     // no byte of a request yet
    kHead,     // some of it
    kBody,     // its head is there
    kAnswer,   // all is, and is being answered
    kDiscard,  // the answer is written, and the client may still be sending what nobody wants
    kClosed
  };

  void Read();
  void OnRead(const error_code& error, size_t bytes);
  void Parse();
  bool ParseSome();  // false: more must be read, or the request is complete
  void OnHeadRead();
  bool CheckHead();  // false: it was refused
  size_t CountFields();
  bool HoldBody(size_t bytes);
  void OnBodyRead();
  void Refuse(int status, std::string_view why);
  void StartRequest();
  std::shared_ptr<Exchange> MakeExchange();

  void Send(std::string_view bytes, std::string_view more = {});
  void Write();
  void OnWritten(const error_code& error, size_t bytes);
  void AnswerWritten();  // all of it is with the socket
  void FinishAnswer(bool keep_alive);
  void Discard();
  void Guarded(const std::function<void()>& step);
  void Close();
  size_t unsent() const { return out_.size() + writing_.size() - written_; }

  const std::unique_ptr<Channel> channel_;
  const std::string peer_;
  const HttpLimits& limits_;
  HttpHandler* const handler_;

  State state_ = State::kHandshake;
  bool reading_ = false;
  bool close_when_idle_ = false;
  bool asked_ = false;  // bytes of a request have come
  uint64_t state_since_ns_ = 0;
  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;
  std::function<void(uint64_t, boost::beast::string_view, error_code&)>
      chunk_header_;  // of the parser, which refers to it
  size_t fields_at_head_ = 0;
  size_t discarded_ = 0;
  uint64_t bytes_in_ = 0, bytes_out_ = 0;  // of the current exchange
  std::shared_ptr<Exchange> exchange_;     // from its head until its answer is written

  std::string out_;       // given, and not yet being written
  std::string writing_;   // ...and being written, from...
  size_t written_ = 0;    // ...here on...
  size_t piece_end_ = 0;  // ...to here, with the deadline of a slow client
  bool write_pending_ = false;
  uint64_t write_since_ns_ = 0, last_write_ns_ = 0;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HTTP_CONNECTION_H_
