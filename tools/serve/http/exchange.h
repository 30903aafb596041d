#ifndef FASTDECODE_TOOLS_SERVE_HTTP_EXCHANGE_H_
#define FASTDECODE_TOOLS_SERVE_HTTP_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/serve/access_log.h"

namespace fastdecode::serve {

class Connection;

struct HttpHeader {
  std::string name, value;
};

// What a client asked. Names of headers are compared without regard to case.
struct HttpRequest {
  std::string method, target;  // as it came
  std::string path;            // the target without its query, percent-decoded
  int version = 11;            // 10 or 11
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;          // "127.0.0.1:43210", "unix"
  uint64_t received_ns = 0;  // CLOCK_MONOTONIC: when its head had been read

  // The first header of that name; empty: there is none.
  std::string_view Header(std::string_view name) const;
};

// One request and its answer, between a connection and whoever answers. It outlives the connection if it must; what is
// answered then goes nowhere.
// Thread: the I/O thread, but for `request`, which is immutable from OnRequest on, and gone().
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  enum class Gone { kClient, kSlowClient, kServer };

  Exchange(std::weak_ptr<Connection> connection, std::shared_ptr<std::atomic<size_t>> bodies)
      : connection_(std::move(connection)), bodies_(std::move(bodies)) {}
  ~Exchange() { DropBody(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  HttpRequest request;
  AccessRecord record;              // filled in by whoever knows
  std::vector<HttpHeader> headers;  // of the answer, beside its own

  // The whole answer.
  void Reply(int status, std::string_view content_type, std::string_view body);
  // An answer that comes in parts: its head; then what is appended to out(), after each Flush; then End, or Cut, after
  // which the client can tell that something is missing.
  void StartStream(std::string_view content_type);
  std::string* out() { return &out_; }
  void Flush();
  void End();
  void Cut();

  bool answered() const { return answered_; }  // the head is written
  bool finished() const { return finished_; }  // nothing more will be written
  // Bytes that were given and that the client's socket has not taken. Who keeps it below some limit needs little memory
  // for a slow client.
  size_t unsent() const;
  // Frees the request's body, once it has been read. The thread that reads it.
  void DropBody();
  // The answer cannot be made: the client loses the connection.
  void Abort();
  // The client will get no answer any more. Any thread.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }

  // Called at most once, before the exchange is over, if it ends without End, Cut or Reply.
  std::function<void(Gone)> on_gone;
  // Called whenever everything that was given has been taken by the socket.
  std::function<void()> on_drained;

 private:
  friend class Connection;
  std::string Head(int status, std::string_view content_type, int64_t length) const;

  std::weak_ptr<Connection> connection_;
  const std::shared_ptr<std::atomic<size_t>> bodies_;  // bytes of all requests' bodies...
  size_t held_ = 0;                                    // ...and this one's share
  std::string out_;
  bool answered_ = false, finished_ = false, streaming_ = false;
  bool keep_alive_ = true, expects_continue_ = false;
  std::atomic<bool> gone_ = false;
};

// Answers requests. Thread: the I/O thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head has been read, the body has not: an answer that is given here spares it.
  virtual void OnHead(const std::shared_ptr<Exchange>& exchange) = 0;
  // All has been read. It is answered now or later.
  virtual void OnRequest(const std::shared_ptr<Exchange>& exchange) = 0;
  // What came is no HTTP, or too much of it: answers with that status.
  virtual void OnBadRequest(const std::shared_ptr<Exchange>& exchange, int status, std::string_view why) = 0;
  // Called once for each of these, when the last byte of its answer is with the socket, or when that will not happen.
  virtual void OnDone(const std::shared_ptr<Exchange>& exchange) = 0;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HTTP_EXCHANGE_H_
