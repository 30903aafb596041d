// Chats with a server that speaks OpenAI's API.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/chat/chat_backend.h"
#include "tools/load/event_stream.h"
#include "tools/load/http_client.h"

namespace fastdecode::chat {

namespace {

namespace http = boost::beast::http;
using Json = nlohmann::ordered_json;

constexpr int kLookMs = 50;        // how long a Ctrl-C may wait
constexpr double kTimeoutS = 600;  // without a byte

std::string Reason() { return std::strerror(errno); }

// A connection for one request. Thread: one.
class Socket {
 public:
  // Throws Error if the server does not take the connection, or `is_stopped` says so before.
  Socket(const std::vector<char>& address, const Backend::IsStopped& is_stopped) {
    const auto* const where = reinterpret_cast<const sockaddr*>(address.data());
    fd_ = socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) Refuse(Reason());
    if (connect(fd_, where, static_cast<socklen_t>(address.size())) == 0) return;
    if (errno != EINPROGRESS) Refuse(Reason());
    const Clock::time_point begin = Clock::now();
    while (!IsReady(POLLOUT)) {
      if (is_stopped()) Refuse("interrupted");
      if (SecondsSince(begin) > load::kConnectTimeoutS) Refuse("it does not answer");
    }
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) Refuse(std::strerror(error));
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // False: it was stopped before all was sent.
  bool Send(std::string_view bytes, const Backend::IsStopped& is_stopped) {
    const Clock::time_point begin = Clock::now();
    while (!bytes.empty()) {
      if (is_stopped()) return false;
      if (SecondsSince(begin) > kTimeoutS) throw Error(FD_UNAVAILABLE, "the server has taken nothing for 10 minutes");
      const ssize_t sent = IsReady(POLLOUT) ? send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) : 0;
      if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (sent < 0) throw Error(FD_UNAVAILABLE, "the connection broke: " + Reason());
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // False: nothing came for a moment. *bytes is empty at the end of the connection.
  bool Receive(std::string* bytes) {
    if (!IsReady(POLLIN)) return false;
    char part[1 << 14];
    const ssize_t got = recv(fd_, part, sizeof(part), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    if (got < 0) throw Error(FD_UNAVAILABLE, "the connection broke: " + Reason());
    bytes->assign(part, static_cast<size_t>(got));
    return true;
  }

 private:
  // Waits for a moment. A broken connection is ready, and says so when it is used.
  bool IsReady(short what) const {
    pollfd look = {fd_, what, 0};
    return poll(&look, 1, kLookMs) > 0;
  }

  [[noreturn]] void Refuse(const std::string& reason) {
    if (fd_ >= 0) close(fd_);
    throw Error(FD_UNAVAILABLE, "cannot connect: " + reason + "; is the server running?");
  }

  int fd_ = -1;
};

std::string TextOf(const Json& object, const char* name) {
  const auto field = object.find(name);
  return field != object.end() && field->is_string() ? field->get<std::string>() : "";
}

// -1: there is none.
int64_t CountOf(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_integer()) return -1;
  return std::max<int64_t>(field->get<int64_t>(), -1);
}

std::string ErrorText(const Json& body) {
  const auto error = body.is_object() ? body.find("error") : body.end();
  if (!body.is_object() || error == body.end()) return "";
  if (error->is_string()) return error->get<std::string>();
  return error->is_object() ? TextOf(*error, "message") : "";
}

class WithServer final : public Backend {
 public:
  WithServer(const ServerFlags& server, const RequestFlags& flags, bool max_tokens_given)
      : server_(Find(server)), flags_(flags), max_tokens_given_(max_tokens_given), model_(server.model) {
    Json models;
    try {
      models = Json::parse(load::Get(server_, "/v1/models"), nullptr, /*allow_exceptions=*/false);
    } catch (const Error&) {
      if (model_.empty()) throw;  // else a question will show what is wrong, if anything is
    }
    const bool listed = models.is_object() && models.contains("data") && models["data"].is_array();
    const Json data = listed ? models["data"] : Json::array();
    if (model_.empty() && !data.empty()) model_ = TextOf(data[0], "id");
    if (model_.empty())
      throw Error(FD_UNAVAILABLE, server_.url.Text() + "/v1/models names no model; give --model NAME");
    for (const Json& each : data) {
      if (TextOf(each, "id") == model_) context_tokens_ = CountOf(each, "max_model_len");
    }
  }

  int64_t context_tokens() const override { return context_tokens_; }

  Reply Ask(const std::vector<Message>& messages, const Show& show, const IsStopped& is_stopped) override {
    const Clock::time_point begin = Clock::now();
    Clock::time_point last_byte = begin;
    const std::string body = Body(messages, asked_++);
    Socket socket(server_.address, is_stopped);
    Reply reply;
    reply.stopped =
        !socket.Send(load::RequestHead(server_, "POST", "/v1/chat/completions", body.size()) + body, is_stopped);
    Answer answer(&reply, show, begin);
    for (std::string bytes; !reply.stopped && !answer.over();) {
      if (is_stopped()) {
        reply.stopped = true;
        break;
      }
      if (!socket.Receive(&bytes)) {
        if (SecondsSince(last_byte) > kTimeoutS)
          throw Error(FD_UNAVAILABLE, "the server has said nothing for 10 minutes");
        continue;
      }
      last_byte = Clock::now();
      answer.Take(bytes);
    }
    reply.seconds = SecondsSince(begin);
    return reply;
  }

 private:
  // Reads an answer as it comes.
  class Answer {
   public:
    Answer(Reply* reply, const Show& show, Clock::time_point begin) : reply_(reply), show_(show), begin_(begin) {
      parser_.eager(true);
      parser_.body_limit(UINT64_MAX);  // Boost 1.74 takes none for 0 where there is a Content-Length
    }

    bool over() const { return over_; }

    // Throws Error if the server refuses the question.
    void Take(std::string_view bytes) {
      if (bytes.empty()) return AtEnd();
      unread_ += bytes;
      while (!unread_.empty() && !over_) {
        boost::system::error_code error;
        const size_t used = parser_.put(boost::asio::buffer(unread_), error);
        unread_.erase(0, used);
        const bool more = error == http::error::need_more;
        if (error && !more) throw Error(FD_UNAVAILABLE, "what came is no HTTP answer: " + error.message());
        if (parser_.is_header_done()) TakeBody();
        if (parser_.is_done()) AtEnd();
        if (more || used == 0) break;
      }
    }

   private:
    void TakeBody() {
      std::string body = std::exchange(parser_.get().body(), {});
      if (parser_.get().result() != http::status::ok) {
        refusal_ += body;
        return;
      }
      const bool fits = events_.Feed(body, [&](std::string_view data) { TakeEvent(data); });
      if (!fits) throw Error(FD_UNAVAILABLE, "an event of the stream is longer than 16 MiB");
    }

    void TakeEvent(std::string_view data) {
      if (data == "[DONE]") {
        over_ = true;
        return;
      }
      const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
      if (!chunk.is_object()) throw Error(FD_UNAVAILABLE, "an event of the stream is no JSON object");
      if (const std::string error = ErrorText(chunk); !error.empty()) {
        reply_->error = error;
        over_ = true;
        return;
      }
      if (chunk.contains("usage") && chunk["usage"].is_object()) {
        reply_->prompt_tokens = CountOf(chunk["usage"], "prompt_tokens");
        reply_->tokens = CountOf(chunk["usage"], "completion_tokens");
      }
      if (!chunk.contains("choices") || !chunk["choices"].is_array() || chunk["choices"].empty()) return;
      if (reply_->first_token_s < 0) reply_->first_token_s = SecondsSince(begin_);
      const Json& choice = chunk["choices"][0];
      reply_->cut_off = reply_->cut_off || TextOf(choice, "finish_reason") == "length";
      has_finish_ = has_finish_ || !TextOf(choice, "finish_reason").empty();
      if (!choice.contains("delta") || !choice["delta"].is_object()) return;
      std::string reasoning = TextOf(choice["delta"], "reasoning_content");
      if (reasoning.empty()) reasoning = TextOf(choice["delta"], "reasoning");
      const std::string content = TextOf(choice["delta"], "content");
      reply_->reasoning += reasoning;
      reply_->content += content;
      show_(reasoning, content);
    }

    void AtEnd() {
      if (over_) return;
      over_ = true;
      if (parser_.is_header_done() && parser_.get().result() != http::status::ok) {
        const Json body = Json::parse(refusal_, nullptr, /*allow_exceptions=*/false);
        const std::string error = ErrorText(body);
        const int status = static_cast<int>(parser_.get().result_int());
        throw Error(FD_UNAVAILABLE, "the server answers " + std::to_string(status) + ": " +
                                        (error.empty() ? refusal_.substr(0, 200) : error) + load::StatusHint(status));
      }
      if (!has_finish_) reply_->error = "the connection ended before the answer did";
    }

    Reply* const reply_;
    const Show& show_;
    const Clock::time_point begin_;
    http::response_parser<http::string_body> parser_;
    load::EventReader events_;
    std::string unread_;   // what the parser needs more for
    std::string refusal_;  // the body of an answer that is not 200
    bool over_ = false, has_finish_ = false;
  };

  static load::Server Find(const ServerFlags& flags) {
    load::Server server =
        load::FindServer(load::ParseServerUrl(flags.url), load::ReadApiKey(flags.api_key_file), kTimeoutS);
    server.user_agent = "fastdecode-chat";
    return server;
  }

  std::string Body(const std::vector<Message>& messages, uint64_t question) const {
    Json body = {{"model", model_}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
    body["messages"] = Json::parse(MessagesJson(messages));
    const fd_request& fields = flags_.fields;
    fd_request defaults;
    fd_request_init(&defaults, sizeof(defaults));
    const auto add = [&](const char* name, const auto& value, bool given) {
      if (given) body[name] = value;
    };
    const auto given = [](const CLI::Option* option) { return option != nullptr && option->count() > 0; };
    add("max_completion_tokens", fields.max_tokens, max_tokens_given_);
    add("temperature", fields.temperature, given(flags_.temperature));
    add("top_p", fields.top_p, given(flags_.top_p));
    add("top_k", fields.top_k, given(flags_.top_k));
    add("min_p", fields.min_p, given(flags_.min_p));
    add("repetition_penalty", fields.repetition_penalty, given(flags_.repetition_penalty));
    add("presence_penalty", fields.presence_penalty, fields.presence_penalty != defaults.presence_penalty);
    add("frequency_penalty", fields.frequency_penalty, fields.frequency_penalty != defaults.frequency_penalty);
    add("seed", fields.seed + question, given(flags_.seed));
    add("min_tokens", fields.min_tokens, fields.min_tokens != defaults.min_tokens);
    add("ignore_eos", true, fields.ignore_eos != 0);
    add("stop", flags_.stop, !flags_.stop.empty());
    add("stop_token_ids", flags_.stop_token_ids, !flags_.stop_token_ids.empty());
    add("include_stop_str_in_output", true, fields.include_stop != 0);
    add("skip_special_tokens", false, fields.show_special != 0);
    for (const fd_logit_bias& bias : ParseLogitBias(flags_)) {
      body["logit_bias"][std::to_string(bias.token)] = bias.bias;
    }
    // What a terminal sends may be no UTF-8.
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const load::Server server_;
  const RequestFlags& flags_;
  const bool max_tokens_given_;
  std::string model_;
  int64_t context_tokens_ = -1;
  uint64_t asked_ = 0;
};

}  // namespace

std::unique_ptr<Backend> ServerBackend(const ServerFlags& server, const RequestFlags& flags, bool max_tokens_given) {
  return std::make_unique<WithServer>(server, flags, max_tokens_given);
}

}  // namespace fastdecode::chat
