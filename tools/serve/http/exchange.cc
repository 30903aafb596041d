#include "tools/serve/http/exchange.h"

#include <strings.h>

#include <boost/beast/http/status.hpp>
#include <charconv>
#include <ctime>

#include "tools/serve/http/connection.h"

namespace fastdecode::serve {

namespace {

void AppendDate(std::string* out) {
  const time_t now = time(nullptr);
  tm parts;
  gmtime_r(&now, &parts);
  char text[64];
  const size_t length = strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  out->append(text, length);
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name.size() == name.size() && strncasecmp(header.name.data(), name.data(), name.size()) == 0) {
      return header.value;
    }
  }
  return {};
}

// A negative length: the body's end is told in another way.
std::string Exchange::Head(int status, std::string_view content_type, int64_t length) const {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " ";
  head += boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status)).to_string();
  head += "\r\nDate: ";
  AppendDate(&head);
  head += "\r\nServer: fastdecode\r\n";
  if (!content_type.empty()) head.append("Content-Type: ").append(content_type).append("\r\n");
  if (length >= 0) {
    if (status != 204) head.append("Content-Length: ").append(std::to_string(length)).append("\r\n");
  } else if (request.version >= 11) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const HttpHeader& header : headers) head.append(header.name).append(": ").append(header.value).append("\r\n");
  head += "\r\n";
  return head;
}

void Exchange::Reply(int status, std::string_view content_type, std::string_view body) {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || finished_ || answered_ || gone()) return;
  answered_ = finished_ = true;
  record.status = status;
  const std::string head = Head(status, content_type, static_cast<int64_t>(body.size()));
  on_gone = nullptr;
  on_drained = nullptr;
  connection->Send(head, request.method == "HEAD" ? std::string_view() : body);
}

void Exchange::StartStream(std::string_view content_type) {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || answered_ || gone()) return;
  answered_ = streaming_ = true;
  record.status = 200;
  if (request.version < 11) keep_alive_ = false;
  connection->Send(Head(200, content_type, -1));
}

void Exchange::Flush() {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || !streaming_ || finished_ || gone()) out_.clear();
  if (out_.empty()) return;
  if (request.version < 11) {
    connection->Send(out_);
  } else {
    char size[24];
    const auto end = std::to_chars(size, size + sizeof(size), out_.size(), 16).ptr;
    out_.insert(0, std::string(size, end) + "\r\n");
    out_ += "\r\n";
    connection->Send(out_);
  }
  out_.clear();
}

void Exchange::End() {
  Flush();
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || !streaming_ || finished_ || gone()) return;
  finished_ = true;
  streaming_ = false;
  on_gone = nullptr;
  on_drained = nullptr;
  connection->Send(request.version < 11 ? "" : "0\r\n\r\n");
}

void Exchange::Cut() {
  Flush();
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || !streaming_ || finished_ || gone()) return;
  finished_ = true;
  streaming_ = false;
  keep_alive_ = false;
  on_gone = nullptr;
  on_drained = nullptr;
  connection->Send("");
}

void Exchange::DropBody() {
  std::string().swap(request.body);
  bodies_->fetch_sub(std::exchange(held_, 0), std::memory_order_relaxed);
}

void Exchange::Abort() {
  if (const std::shared_ptr<Connection> connection = connection_.lock()) connection->Abort(Gone::kServer);
}

size_t Exchange::unsent() const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  return connection == nullptr ? 0 : connection->unsent();
}

}  // namespace fastdecode::serve
