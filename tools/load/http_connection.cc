#include "tools/load/http_connection.h"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "numa/check.h"
#include "tools/load/run_clock.h"

namespace fastdecode::load {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::beast::error_code;

StreamEndpoint EndpointOf(const std::vector<char>& sockaddr_bytes) {
  const auto* address = reinterpret_cast<const sockaddr*>(sockaddr_bytes.data());
  return StreamEndpoint(address, sockaddr_bytes.size(), address->sa_family == AF_INET6 ? IPPROTO_TCP : 0);
}

Connection::Connection(asio::io_context* io, const StreamEndpoint& endpoint, double timeout_s, Answer answer,
                       Owner* owner)
    : io_(io),
      endpoint_(endpoint),
      timeout_(static_cast<int64_t>(timeout_s * 1e9)),
      owner_(owner),
      socket_(*io),
      timer_(*io),
      answer_(std::move(answer)) {}

void Connection::Start(std::string head, const std::string* body, RequestResult* result) {
  FD_CHECK(result_ == nullptr, "the connection has a request already");
  head_ = std::move(head);
  body_ = body;
  result_ = result;
  result_->start_ns = RunClock::Now();
  if (result_->intended_ns == 0) result_->intended_ns = result_->start_ns;
  ++attempt_;
  WatchTime();
  if (socket_.is_open()) {
    Send();
  } else {
    Connect();
  }
}

void Connection::WatchTime() {
  timer_.expires_after(timeout_);
  timer_.async_wait([this, result = result_](const error_code& error) {
    if (error || result_ != result) return;
    char limit[32];
    std::snprintf(limit, sizeof(limit), "%g", static_cast<double>(timeout_.count()) * 1e-9);
    Fail(std::string("no end within ") + limit + " s (--timeout-s): it stopped " + answer_.Progress());
  });
}

void Connection::Connect() {
  is_reused_ = false;
  answer_.Begin(result_);
  error_code error;
  socket_.open(endpoint_.protocol(), error);
  if (error) return Fail("cannot make a socket: " + error.message());
  socket_.async_connect(endpoint_, [this, attempt = attempt_](const error_code& error) {
    if (attempt != attempt_) return;
    if (error) return Fail("cannot connect: " + error.message());
    ++connections_;
    error_code ignored;  // there is nothing to switch off on a Unix socket
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    buffer_.clear();
    Send();
  });
}

void Connection::Send() {
  answer_.Begin(result_);
  has_bytes_ = is_sent_ = false;
  send_problem_.clear();
  parser_.emplace();
  parser_->eager(true);
  parser_->body_limit(UINT64_MAX);  // Boost 1.74 takes none for 0 where there is a Content-Length
  parser_->get().body().answer = &answer_;
  const std::array<asio::const_buffer, 2> parts = {asio::buffer(head_), asio::buffer(*body_)};
  // The answer is waited for at the same time: a server may refuse a request that it has not read to its end.
  asio::async_write(socket_, parts, [this, attempt = attempt_](const error_code& error, size_t) {
    if (attempt != attempt_) return;
    if (error) send_problem_ = error.message();
    is_sent_ = !error;
  });
  Receive();
}

void Connection::Receive() {
  constexpr size_t kReadBytes = 16 << 10;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [this, attempt = attempt_](const error_code& error, size_t bytes) {
                            if (attempt == attempt_) OnReceived(error, bytes);
                          });
}

void Connection::OnReceived(const error_code& error, size_t bytes) {
  const int64_t now_ns = RunClock::Now();
  buffer_.commit(bytes);
  has_bytes_ |= bytes > 0;
  if (error && error != asio::error::eof) return OnClosed(error);
  if (Parse(error, now_ns)) Receive();
}

bool Connection::Parse(const error_code& end, int64_t now_ns) {
  parser_->get().body().now_ns = now_ns;
  error_code problem;
  while (buffer_.size() > 0 && !parser_->is_done() && !problem) {
    buffer_.consume(parser_->put(buffer_.data(), problem));
  }
  if (problem == http::error::need_more) problem = {};
  if (problem) {
    Fail("the answer is no HTTP (" + problem.message() + ")");
    return false;
  }
  if (end && !parser_->is_done()) {
    if (has_bytes_) parser_->put_eof(problem);
    if (!has_bytes_ || problem) {
      OnClosed(end);
      return false;
    }
  }
  if (!parser_->is_done() && !answer_.failed()) return true;
  if (parser_->is_done()) {
    if (!answer_.has_head()) answer_.TakeHead(static_cast<int>(parser_->get().result_int()), "");  // it has no body
    answer_.End(now_ns);
  }
  EndRequest(parser_->is_done() && parser_->keep_alive() && buffer_.size() == 0 && !end && is_sent_);
  return false;
}

void Connection::OnClosed(const error_code& error) {
  // A server may close a connection that it sees idle just as the next request comes; that one has harmed nobody.
  if (is_reused_ && !has_bytes_) {
    CloseSocket();
    ++attempt_;
    return Connect();
  }
  const std::string how = error == asio::error::eof ? "the server closed the connection" : error.message();
  const std::string when = " " + answer_.Progress();
  Fail(how + when + (send_problem_.empty() ? "" : "; the request could not be sent: " + send_problem_));
}

void Connection::Fail(const std::string& reason) {
  answer_.Fail(reason);
  EndRequest(false);
}

void Connection::EndRequest(bool keep) {
  RequestResult* const result = std::exchange(result_, nullptr);
  result->end_ns = RunClock::Now();
  ++attempt_;
  timer_.cancel();
  is_reused_ = keep;
  if (!keep) CloseSocket();
  // Not from here: where requests fail at once, they would pile up on the stack.
  asio::post(*io_, [this, result] { owner_->OnIdle(this, *result); });
}

void Connection::CloseSocket() {
  error_code ignored;
  socket_.close(ignored);
  buffer_.clear();
}

void Connection::Close() {
  ++attempt_;
  result_ = nullptr;
  timer_.cancel();
  CloseSocket();
}

}  // namespace fastdecode::load
