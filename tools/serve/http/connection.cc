#include "tools/serve/http/connection.h"

#include <strings.h>

#include <algorithm>
#include <cstring>

#include "tools/serve/clock.h"

namespace fastdecode::serve {

namespace {

namespace http = boost::beast::http;

constexpr size_t kReadBytes = 2048;             // asked for while nothing is known of what comes
constexpr size_t kBodyReadBytes = 64 << 10;     // ...and while a body comes
constexpr size_t kPipelinedMax = 64 << 10;      // of requests that wait for the one before them
constexpr size_t kWriteBytes = 256 << 10;       // given to the socket at once
constexpr size_t kKeptBytes = 64 << 10;         // memory that a connection keeps for its next answer
constexpr size_t kDiscardMax = 64 << 20;        // of a body that nobody wants
constexpr uint64_t kDiscardNs = 2'000'000'000;  // ...and how long it is read

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The path of a target, without its query, percent-decoded. What is no escape stays.
std::string DecodePath(std::string_view target) {
  // The absolute form, which proxies use (RFC 9112, 3.2.2).
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] == '%' && i + 2 < target.size() && HexDigit(target[i + 1]) >= 0 && HexDigit(target[i + 2]) >= 0) {
      path += static_cast<char>(HexDigit(target[i + 1]) * 16 + HexDigit(target[i + 2]));
      i += 2;
    } else {
      path += target[i];
    }
  }
  return path;
}

std::string Text(boost::beast::string_view text) { return std::string(text.data(), text.size()); }

int StatusOf(const error_code& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::bad_version) return 505;
  return 400;
}

}  // namespace

Connection::Connection(std::unique_ptr<Channel> channel, std::string peer, const HttpLimits& limits,
                       HttpHandler* handler)
    : channel_(std::move(channel)), peer_(std::move(peer)), limits_(limits), handler_(handler) {
  chunk_header_ = [this](uint64_t, boost::beast::string_view extension, error_code& error) {
    if (extension.size() > limits_.chunk_extension_bytes) error = http::error::bad_chunk_extension;
  };
}

void Connection::Start() {
  state_since_ns_ = MonotonicNs();
  channel_->Handshake([self = shared_from_this()](const error_code& error) {
    if (self->closed()) return;
    if (error) return self->Close();
    self->state_ = State::kIdle;
    self->state_since_ns_ = MonotonicNs();
    self->Read();
  });
}

void Connection::Tick(uint64_t now_ns) {
  const uint64_t since = now_ns - std::min(now_ns, state_since_ns_);
  switch (state_) {
    case State::kHandshake:
      if (since > limits_.handshake_ns) Close();
      return;
    case State::kIdle:
      if (since > limits_.idle_ns) Close();
      return;
    case State::kHead:
      if (since > limits_.header_ns) Refuse(408, "the head of the request did not come in time");
      return;
    case State::kBody:
      if (since > limits_.body_ns) Refuse(408, "the body of the request did not come in time");
      return;
    case State::kDiscard:
      if (since > kDiscardNs) Close();
      return;
    case State::kAnswer:
      // A client that has sent much more than one request is not read from meanwhile.
      if (!reading_ && exchange_ != nullptr && !exchange_->finished_ && channel_->PeerHasGone())
        return Abort(Exchange::Gone::kClient);
      if (write_pending_ && now_ns > write_since_ns_ + limits_.slow_client_ns)
        return Abort(Exchange::Gone::kSlowClient);
      if (streaming() && unsent() == 0 && now_ns > last_write_ns_ + limits_.ping_ns) {
        exchange_->out()->append(": ping\n\n");
        exchange_->Flush();
      }
      return;
    case State::kClosed:
      return;
  }
}

void Connection::CloseWhenIdle() {
  close_when_idle_ = true;
  // The first request of a new connection may be under way already.
  if (state_ == State::kIdle && asked_) Close();
}

void Connection::Read() {
  if (reading_ || closed()) return;
  if (state_ == State::kAnswer && in_.size() >= kPipelinedMax) return;  // Tick sees its end
  reading_ = true;
  const size_t bytes = state_ == State::kBody || state_ == State::kDiscard ? kBodyReadBytes : kReadBytes;
  channel_->ReadSome(in_.prepare(bytes), [self = shared_from_this()](const error_code& error, size_t count) {
    self->reading_ = false;
    self->Guarded([&] { self->OnRead(error, count); });
  });
}

void Connection::OnRead(const error_code& error, size_t bytes) {
  if (closed()) return;
  if (error == asio::error::operation_aborted && state_ == State::kDiscard) return;
  if (error) {
    // A client that has sent its last byte still gets an answer that is there already.
    const bool answer_is_there = exchange_ != nullptr && exchange_->finished_;
    if (error == asio::error::eof && answer_is_there && state_ == State::kAnswer) {
      close_when_idle_ = true;
      return;
    }
    return Abort(Exchange::Gone::kClient);
  }
  in_.commit(bytes);
  if (state_ == State::kDiscard) {
    discarded_ += in_.size();
    in_.consume(in_.size());
    if (discarded_ > kDiscardMax) return Close();
    return Read();
  }
  if (state_ == State::kAnswer) return Read();
  Parse();
}

void Connection::StartRequest() {
  asked_ = true;
  state_ = State::kHead;
  state_since_ns_ = MonotonicNs();
  bytes_in_ = bytes_out_ = 0;
  parser_.emplace();
  parser_->eager(false);
  parser_->header_limit(limits_.header_bytes);
  parser_->body_limit(limits_.body_bytes);
  parser_->on_chunk_header(chunk_header_);
}

void Connection::Parse() {
  if (state_ == State::kIdle) {
    // Empty lines before a request are skipped (RFC 9112, 2.2).
    constexpr std::string_view kLineEnds = "\r\n";
    while (in_.size() > 0 && kLineEnds.find(*static_cast<const char*>(in_.data().data())) != std::string_view::npos) {
      in_.consume(1);
    }
    if (in_.size() > 0) StartRequest();
  }
  while ((state_ == State::kHead || state_ == State::kBody) && in_.size() > 0 && ParseSome()) {
  }
  Read();
}

bool Connection::ParseSome() {
  error_code error;
  const size_t used = parser_->put(in_.data(), error);
  in_.consume(used);
  bytes_in_ += used;
  const bool more = error == http::error::need_more;
  if (error && !more) {
    Refuse(StatusOf(error), error.message());
    return false;
  }
  // The parser's own limit is one of what it is given at a time.
  if (state_ == State::kHead && (bytes_in_ > limits_.header_bytes || CountFields() > limits_.headers)) {
    Refuse(431, "its head is too large");
    return false;
  }
  if (state_ == State::kBody && !HoldBody(used)) return false;
  if (state_ == State::kHead && parser_->is_header_done()) OnHeadRead();
  if (state_ == State::kBody && parser_->is_done()) OnBodyRead();
  if (more && state_ == State::kBody && in_.size() > kPipelinedMax) {
    Refuse(400, "a chunk's head has no end");
    return false;
  }
  return !more && used > 0;
}

std::shared_ptr<Exchange> Connection::MakeExchange() {
  auto exchange = std::make_shared<Exchange>(weak_from_this(), limits_.bodies);
  HttpRequest& request = exchange->request;
  request.peer = peer_;
  request.received_ns = MonotonicNs();
  if (parser_.has_value()) {  // what there is of a head that is refused, too
    const auto& head = parser_->get();
    request.method = Text(head.method_string());
    request.target = Text(head.target());
    request.path = DecodePath(request.target);
    request.version = static_cast<int>(head.version());
    exchange->keep_alive_ = head.keep_alive() && !close_when_idle_;
    for (const auto& field : head) request.headers.push_back({Text(field.name_string()), Text(field.value())});
  }
  AccessRecord& record = exchange->record;
  record.time_ns = WallNs();
  record.peer = peer_;
  record.method = request.method;
  record.target = request.path.substr(0, 200);
  return exchange;
}

void Connection::OnHeadRead() {
  exchange_ = MakeExchange();
  state_ = State::kBody;
  state_since_ns_ = MonotonicNs();
  fields_at_head_ = exchange_->request.headers.size();
  const bool has_body = !parser_->is_done();
  const bool keep_alive = exchange_->keep_alive_;
  if (has_body) {
    exchange_->expects_continue_ = exchange_->request.version >= 11 && !exchange_->request.Header("expect").empty();
    exchange_->keep_alive_ = false;  // an answer before the body is read is the last one
  }
  if (!CheckHead()) return;
  handler_->OnHead(exchange_);
  if (exchange_ == nullptr || closed()) return;
  if (exchange_->answered_) {
    state_ = State::kAnswer;  // FinishAnswer discards the body
    return;
  }
  exchange_->keep_alive_ = keep_alive;
  if (exchange_->expects_continue_) Send("HTTP/1.1 100 Continue\r\n\r\n");
}

bool Connection::CheckHead() {
  const HttpRequest& request = exchange_->request;
  const auto count = [&](std::string_view name) {
    return std::count_if(request.headers.begin(), request.headers.end(),
                         [&](const HttpHeader& h) { return EqualIgnoringCase(h.name, name); });
  };
  const std::string_view encoding = request.Header("transfer-encoding");
  if (request.version != 10 && request.version != 11) {
    Refuse(505, "HTTP/1.1 and HTTP/1.0 are spoken here");
  } else if (request.headers.size() > limits_.headers) {
    Refuse(431, "there are more than " + std::to_string(limits_.headers) + " headers");
  } else if (count("host") > 1 || (request.version == 11 && count("host") == 0)) {
    Refuse(400, "there must be one header Host");
  } else if (count("transfer-encoding") > 0 && (request.version == 10 || count("content-length") > 0)) {
    Refuse(400, "Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0");
  } else if (count("transfer-encoding") > 1 ||
             (count("transfer-encoding") == 1 && !EqualIgnoringCase(encoding, "chunked"))) {
    Refuse(501, "of transfer encodings only 'chunked' is known here");
  } else if (count("content-length") > 1) {
    Refuse(400, "there is more than one Content-Length");
  } else {
    return true;
  }
  return false;
}

size_t Connection::CountFields() {
  const auto& head = parser_->get();
  return static_cast<size_t>(std::distance(head.begin(), head.end()));
}

// Counts bytes of the body that have come. False: with those of all other requests they are too many, and this one is
// refused.
bool Connection::HoldBody(size_t bytes) {
  exchange_->held_ += bytes;
  if (limits_.bodies->fetch_add(bytes, std::memory_order_relaxed) + bytes <= limits_.bodies_bytes) return true;
  Refuse(503, "the bodies of all requests together take too much memory; try again later");
  return false;
}

void Connection::OnBodyRead() {
  if (CountFields() != fields_at_head_) return Refuse(400, "headers behind the body (trailers) are not taken");
  exchange_->request.body = std::move(parser_->get().body());
  exchange_->record.bytes_in = bytes_in_;
  parser_.reset();
  state_ = State::kAnswer;
  state_since_ns_ = MonotonicNs();
  const std::shared_ptr<Exchange> exchange = exchange_;
  handler_->OnRequest(exchange);
}

void Connection::Refuse(int status, std::string_view why) {
  if (exchange_ == nullptr) exchange_ = MakeExchange();
  exchange_->record.bytes_in = bytes_in_;
  exchange_->keep_alive_ = false;
  state_ = State::kAnswer;
  const std::shared_ptr<Exchange> exchange = exchange_;
  handler_->OnBadRequest(exchange, status, why);
}

void Connection::Send(std::string_view bytes, std::string_view more) {
  out_.append(bytes).append(more);
  Write();
  // An answer that ends with nothing more to send.
  if (!write_pending_ && exchange_ != nullptr && exchange_->finished_) {
    asio::post(channel_->executor(), [self = shared_from_this()] { self->AnswerWritten(); });
  }
}

void Connection::Write() {
  if (write_pending_ || closed()) return;
  const uint64_t now = MonotonicNs();
  if (written_ == writing_.size()) {
    if (out_.empty()) return;
    writing_.clear();
    written_ = 0;
    writing_.swap(out_);
    piece_end_ = 0;
  }
  if (written_ >= piece_end_) {
    piece_end_ = std::min(writing_.size(), written_ + kWriteBytes);
    write_since_ns_ = now;
  }
  write_pending_ = true;
  channel_->WriteSome(asio::buffer(writing_.data() + written_, piece_end_ - written_),
                      [self = shared_from_this()](const error_code& error, size_t bytes) {
                        self->write_pending_ = false;
                        self->Guarded([&] { self->OnWritten(error, bytes); });
                      });
}

void Connection::OnWritten(const error_code& error, size_t bytes) {
  if (closed()) return;
  if (error) return Abort(Exchange::Gone::kClient);
  written_ += bytes;
  bytes_out_ += bytes;
  last_write_ns_ = MonotonicNs();
  if (unsent() > 0) return Write();
  writing_.clear();
  written_ = 0;
  if (writing_.capacity() > kKeptBytes) std::string().swap(writing_);
  if (out_.capacity() > kKeptBytes) std::string().swap(out_);
  if (exchange_ == nullptr) return;
  if (exchange_->finished_) return AnswerWritten();
  const std::shared_ptr<Exchange> exchange = exchange_;
  if (exchange->on_drained) exchange->on_drained();
}

void Connection::AnswerWritten() {
  if (closed() || exchange_ == nullptr || !exchange_->finished_ || unsent() > 0 || write_pending_) return;
  const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  exchange->record.bytes_in = bytes_in_;
  exchange->record.bytes_out = bytes_out_;
  const bool body_is_unread = parser_.has_value() && !parser_->is_done();
  parser_.reset();
  handler_->OnDone(exchange);
  if (!exchange->keep_alive_ || close_when_idle_ || body_is_unread) return Discard();
  state_ = State::kIdle;
  state_since_ns_ = MonotonicNs();
  if (!reading_ && in_.size() == 0) in_.shrink_to_fit();
  if (in_.size() > 0) return Parse();
  Read();
}

void Connection::Discard() {
  state_ = State::kDiscard;
  state_since_ns_ = MonotonicNs();
  in_.consume(in_.size());
  // What is closed while bytes of the client are unread is reset, and the answer may be lost.
  channel_->EndWriting([self = shared_from_this()] { self->Read(); });
}

void Connection::Abort(Exchange::Gone why) {
  if (closed()) return;
  const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  Close();
  if (exchange == nullptr) return;
  exchange->record.bytes_out = bytes_out_;
  const bool cut_short = !exchange->finished_;
  exchange->gone_.store(true, std::memory_order_relaxed);
  if (exchange->record.ended_by.empty() && (cut_short || why == Exchange::Gone::kSlowClient)) {
    exchange->record.ended_by = why == Exchange::Gone::kClient       ? "client"
                                : why == Exchange::Gone::kSlowClient ? "slow_client"
                                                                     : "shutdown";
  }
  if (cut_short && exchange->on_gone) std::exchange(exchange->on_gone, nullptr)(why);
  exchange->on_drained = nullptr;
  handler_->OnDone(exchange);
}

// Where there is no memory for a request or its answer, its client alone loses the connection.
void Connection::Guarded(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception&) {
    Abort(Exchange::Gone::kServer);
  }
}

void Connection::Close() {
  if (closed()) return;
  state_ = State::kClosed;
  parser_.reset();
  channel_->Close();
}

}  // namespace fastdecode::serve
