#ifndef FASTDECODE_TOOLS_LOAD_HTTP_CONNECTION_H_
#define FASTDECODE_TOOLS_LOAD_HTTP_CONNECTION_H_

// clang-format off: Asio uses std::exchange without including this.
#include <utility>
// clang-format on
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tools/load/http_answer.h"

namespace fastdecode::load {

using StreamEndpoint = boost::asio::generic::stream_protocol::endpoint;
// From the bytes of a sockaddr.
StreamEndpoint EndpointOf(const std::vector<char>& sockaddr_bytes);

// Hands the body of an answer, as it comes in, to an Answer.
struct AnswerBody {
  struct value_type {  // NOLINT(readability-identifier-naming): Beast calls it so
    Answer* answer = nullptr;
    int64_t now_ns = 0;  // when the bytes came that are being parsed
  };
  class reader {  // NOLINT(readability-identifier-naming)
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>& head, value_type& target) : target_(target) {
      if constexpr (std::is_same_v<boost::beast::http::header<is_request, Fields>, Head>) head_ = &head;
    }
    void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) {
      const auto type = (*head_)[boost::beast::http::field::content_type];
      target_.answer->TakeHead(static_cast<int>(head_->result_int()), {type.data(), type.size()});
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      size_t bytes = 0;
      for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        target_.answer->TakeBody({static_cast<const char*>(buffer.data()), buffer.size()}, target_.now_ns);
        bytes += buffer.size();
      }
      return bytes;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    // Beast asks for more kinds of heads than it makes; this is the one of answers.
    using Head = boost::beast::http::header<false, boost::beast::http::fields>;
    const Head* head_ = nullptr;
    value_type& target_;
  };
};

// One connection to a server, and the request that is on it, if any.
// Thread: the one that runs the io_context. Lifetime: it must outlive the io_context's run.
class Connection {
 public:
  // What the connection asks of who has the requests.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The connection has no request: its last one has ended, whether it succeeded or failed. Called from the event
    // loop, never from within Start().
    virtual void OnIdle(Connection* connection, const RequestResult& last) = 0;
  };

  Connection(boost::asio::io_context* io, const StreamEndpoint& endpoint, double timeout_s, Answer answer,
             Owner* owner);

  // Sends a request. `body` must stay as it is until it ends, and `result` gets what became of it; where it has no
  // intended start, that is now. REQUIRES: none is on the connection.
  void Start(std::string head, const std::string* body, RequestResult* result);
  // Gives up what is in flight, and closes; the owner is not called any more.
  void Close();
  int64_t connections() const { return connections_; }

 private:
  using Parser = boost::beast::http::response_parser<AnswerBody>;

  void Connect();
  void Send();
  void Receive();
  void OnReceived(const boost::beast::error_code& error, size_t bytes);
  // Bytes have come, or the other side has closed. Returns whether more are to be waited for.
  bool Parse(const boost::beast::error_code& end, int64_t now_ns);
  void OnClosed(const boost::beast::error_code& error);
  void Fail(const std::string& reason);
  void EndRequest(bool keep);
  void CloseSocket();
  void WatchTime();

  boost::asio::io_context* const io_;
  const StreamEndpoint endpoint_;
  const std::chrono::nanoseconds timeout_;
  Owner* const owner_;

  boost::asio::generic::stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  Answer answer_;
  std::string head_;
  const std::string* body_ = nullptr;
  RequestResult* result_ = nullptr;
  // Handlers of what was begun before are passed over: a request, or its second try, has a number of its own.
  uint64_t attempt_ = 0;
  bool is_reused_ = false;    // the socket has carried an answer before
  bool has_bytes_ = false;    // of this answer some have come
  bool is_sent_ = false;      // all of the request
  std::string send_problem_;  // why it could not be sent
  int64_t connections_ = 0;
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_HTTP_CONNECTION_H_
