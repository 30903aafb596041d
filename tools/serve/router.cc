#include "tools/serve/router.h"

#include <strings.h>

#include <algorithm>
#include <random>

#include "tools/serve/answers.h"
#include "tools/serve/chat_form.h"
#include "tools/serve/clock.h"
#include "tools/serve/engine_chat.h"
#include "tools/serve/engine_text.h"
#include "tools/serve/openai/json_reader.h"
#include "tools/serve/openai/json_text.h"
#include "tools/serve/openai/piece.h"
#include "tools/serve/openai/tokenize_request.h"
#include "tools/serve/text_form.h"

namespace fastdecode::serve {

namespace {

constexpr size_t kIdentifierMax = 128;
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

bool IsIdentifier(std::string_view text) {
  return !text.empty() && text.size() <= kIdentifierMax &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::string NewIdentifier() {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device()()) << 32) | std::random_device()()};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint64_t part : {random(), random()}) {
    for (int i = 0; i < 16; ++i, part >>= 4) text += kDigits[part & 15];
  }
  return text;
}

bool EqualFold(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Names of headers as a client asked for them, if that is what they are.
bool IsHeaderList(std::string_view text) {
  return text.size() <= 1024 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

nlohmann::ordered_json ModelJson(const fd_engine* engine) {
  char* const text = fd_model_describe(engine);
  const std::string copy = text == nullptr ? "{}" : text;
  fd_string_free(text);
  return nlohmann::ordered_json::parse(copy, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

const std::vector<Router::Route>& Router::Routes() {
  static const std::vector<Route> kRoutes = {
      {.method = "GET", .path = "/health", .open = true, .answer = &Router::AnswerHealth},
      {.method = "GET", .path = "/ready", .open = true, .answer = &Router::AnswerReady},
      {.method = "GET", .path = "/metrics", .needs_model = true, .answer = &Router::AnswerMetrics},
      {.method = "GET", .path = "/version", .answer = &Router::AnswerVersion},
      {.method = "GET", .path = "/v1/models", .needs_model = true, .answer = &Router::AnswerModels},
      {.method = "GET", .path = "/v1/models/", .needs_model = true, .answer = &Router::AnswerModel},
      {.method = "GET", .path = "/tokenizer_info", .needs_model = true, .answer = &Router::AnswerTokenizerInfo},
      {.method = "POST", .path = "/tokenize", .needs_model = true, .answer = &Router::AnswerTokenize},
      {.method = "POST", .path = "/detokenize", .needs_model = true, .answer = &Router::AnswerDetokenize},
      {.method = "POST",
       .path = "/v1/completions",
       .needs_model = true,
       .generates = true,
       .answer = &Router::AnswerCompletions},
      {.method = "POST",
       .path = "/v1/chat/completions",
       .needs_model = true,
       .generates = true,
       .answer = &Router::AnswerChatCompletions},
  };
  return kRoutes;
}

// The route for a path and a method; null: there is none, and *methods are those that there are, none for an unknown
// path.
const Router::Route* Router::FindPath(std::string_view path, std::string_view method, std::string* methods) {
  const Route* found = nullptr;
  for (const Route& route : Routes()) {
    const bool whole = route.path.back() != '/';
    const bool same = whole ? path == route.path : path.size() > route.path.size() && path.starts_with(route.path);
    if (!same) continue;
    *methods += (methods->empty() ? "" : ", ") + std::string(route.method) + (route.method == "GET" ? ", HEAD" : "");
    if (method == route.method || (method == "HEAD" && route.method == "GET")) found = &route;
  }
  return found;
}

void Router::OnHead(const std::shared_ptr<Exchange>& exchange) {
  SetIdentifiers(exchange.get());
  SetCors(exchange.get());
  const HttpRequest& request = exchange->request;
  try {
    std::string methods;
    const Route* const route = FindPath(request.path, request.method, &methods);
    if (request.method == "OPTIONS") {
      exchange->headers.push_back({"Allow", methods.empty() ? "OPTIONS" : methods + ", OPTIONS"});
      return exchange->Reply(204, "", "");
    }
    // Who has no key learns nothing, not even which paths there are.
    if (route == nullptr || !route->open) CheckKey(exchange.get());
    if (methods.empty()) {
      throw ApiError{
          .status = 404,
          .message = "there is nothing at " + request.path.substr(0, 200) + "; see docs/SERVING.md for what there is",
          .type = "not_found_error",
          .code = "unknown_path"};
    }
    if (route == nullptr) {
      exchange->headers.push_back({"Allow", methods + ", OPTIONS"});
      throw ApiError{
          .status = 405,
          .message = request.path + " does not take " + request.method.substr(0, 20) + "; it takes " + methods,
          .code = "method_not_allowed"};
    }
    CheckHeaders(*exchange);
    CheckPhase(*route);
  } catch (const ApiError& error) {
    SendError(exchange.get(), error);
  }
}

void Router::SetIdentifiers(Exchange* exchange) const {
  const std::string_view given = exchange->request.Header("x-request-id");
  exchange->record.id = IsIdentifier(given) ? std::string(given) : NewIdentifier();
  const std::string_view trace = exchange->request.Header("traceparent");
  if (IsIdentifier(trace)) exchange->record.traceparent = trace;
  exchange->headers.push_back({"X-Request-Id", exchange->record.id});
}

void Router::SetCors(Exchange* exchange) const {
  const HttpRequest& request = exchange->request;
  const std::string_view origin = request.Header("origin");
  if (parts_.cors_origins.empty() || origin.empty()) return;
  const bool allowed = std::any_of(parts_.cors_origins.begin(), parts_.cors_origins.end(),
                                   [&](const std::string& each) { return each == "*" || each == origin; });
  exchange->headers.push_back({"Vary", "Origin"});
  if (!allowed) return;
  exchange->headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
  exchange->headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  if (request.method != "OPTIONS") return;
  exchange->headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"});
  const std::string_view asked = request.Header("access-control-request-headers");
  const bool named = !asked.empty() && IsHeaderList(asked);
  exchange->headers.push_back(
      {"Access-Control-Allow-Headers", named ? std::string(asked) : "Authorization, Content-Type, X-Request-Id"});
  exchange->headers.push_back({"Access-Control-Max-Age", "600"});
}

void Router::CheckKey(Exchange* exchange) const {
  if (keys_ == nullptr) return;
  const std::string_view given = exchange->request.Header("authorization");
  if (const std::optional<std::string> name = keys_->Name(given)) {
    exchange->record.key = *name;
    return;
  }
  exchange->headers.push_back({"WWW-Authenticate", "Bearer"});
  throw ApiError{.status = 401,
                 .message = given.empty() ? "a key is needed: give it as the header 'Authorization: Bearer KEY'"
                                          : "the key in the header Authorization is none of this server's",
                 .type = "authentication_error",
                 .code = "invalid_api_key"};
}

void Router::CheckHeaders(const Exchange& exchange) const {
  const HttpRequest& request = exchange.request;
  const std::string_view coding = request.Header("content-encoding");
  if (!coding.empty() && !EqualFold(coding, "identity")) {
    throw ApiError{.status = 415,
                   .message = "Content-Encoding: '" + std::string(coding.substr(0, 40)) +
                              "' is not read here; send the body as it is",
                   .code = "unsupported_content_encoding"};
  }
  const std::string_view expectation = request.Header("expect");
  if (!expectation.empty() && !EqualFold(expectation, "100-continue")) {
    throw ApiError{.status = 417, .message = "Expect: only 100-continue is known here"};
  }
}

void Router::CheckPhase(const Route& route) const {
  if (route.needs_model && phase_ == Phase::kLoading) {
    throw ApiError{.status = 503,
                   .message = "the model is being loaded; try again when /ready says so",
                   .type = "overloaded_error",
                   .code = "model_loading",
                   .retry_after_s = 5};
  }
  if (!route.generates) return;
  if (phase_ == Phase::kEnding) {
    throw ApiError{.status = 503,
                   .message = "the server is shutting down and takes no requests any more",
                   .type = "overloaded_error",
                   .code = "shutting_down",
                   .retry_after_s = 5};
  }
  if (std::optional<ApiError> full = parts_.context->admission->CheckRequests()) throw *full;
}

void Router::OnRequest(const std::shared_ptr<Exchange>& exchange) {
  std::string methods;
  const Route* const route = FindPath(exchange->request.path, exchange->request.method, &methods);
  try {
    (this->*route->answer)(exchange);
  } catch (const ApiError& error) {
    SendError(exchange.get(), error);
  }
}

void Router::OnBadRequest(const std::shared_ptr<Exchange>& exchange, int status, std::string_view why) {
  if (exchange->record.id.empty()) {
    SetIdentifiers(exchange.get());
    SetCors(exchange.get());
  }
  ApiError error{.status = status, .message = "this is no request that is understood here: " + std::string(why)};
  if (status == 413) {
    error.message = "the body is larger than the limit (--max-body-mb)";
    error.code = "body_too_large";
  } else if (status == 431) {
    error.message = "the headers are larger than the limits of 16 KiB and 64 headers";
    error.code = "headers_too_large";
  } else if (status == 503) {
    error.message = std::string(why);
    error.type = "overloaded_error";
    error.code = "out_of_memory";
    error.retry_after_s = 5;
  } else if (status == 408) {
    error.message = std::string(why);
    error.code = "request_timeout";
  }
  SendError(exchange.get(), error);
}

// What the metrics call it.
std::string_view Router::RouteName(const Route* route) {
  if (route == nullptr) return "other";
  return route->path.back() == '/' ? "/v1/models/{id}" : route->path;
}

void Router::OnDone(const std::shared_ptr<Exchange>& exchange) {
  AccessRecord& record = exchange->record;
  const double seconds = static_cast<double>(MonotonicNs() - exchange->request.received_ns) * 1e-9;
  record.total_ms = seconds * 1e3;
  std::string methods;
  const Route* const route = FindPath(exchange->request.path, exchange->request.method, &methods);
  parts_.context->metrics->OnResponse(RouteName(route), record.status, seconds);
  // Also one whose answer was complete but for what its client did not take.
  if (record.ended_by == "slow_client") parts_.context->metrics->OnSlowClient();
  parts_.log->Write(record);
}

void Router::AnswerHealth(const std::shared_ptr<Exchange>& exchange) {
  if (phase_ == Phase::kLoading) return SendJson(exchange.get(), 503, {{"status", "loading"}});
  parts_.health->Look(parts_.context->engine);
  SendJson(exchange.get(), parts_.health->stalled() ? 503 : 200, parts_.health->Report());
}

// Empty: a request would be taken. REQUIRES: the engine has been looked at, if there is one.
std::string Router::WhyNotReady() const {
  if (phase_ == Phase::kLoading) return "the model is being loaded";
  if (phase_ == Phase::kEnding) return "the server is shutting down";
  if (parts_.health->stalled()) return "the engine makes no progress; see /health";
  if (parts_.health->stats().homes_up == 0) return "no home is connected";
  if (parts_.context->admission->full()) return "as many requests wait as --max-queued-requests allows";
  return "";
}

void Router::AnswerReady(const std::shared_ptr<Exchange>& exchange) {
  if (phase_ != Phase::kLoading) parts_.health->Look(parts_.context->engine);
  const std::string reason = WhyNotReady();
  if (reason.empty()) return SendJson(exchange.get(), 200, {{"status", "ready"}});
  SendJson(exchange.get(), 503, {{"status", "not ready"}, {"reason", reason}});
}

void Router::AnswerMetrics(const std::shared_ptr<Exchange>& exchange) {
  parts_.health->Look(parts_.context->engine);
  Metrics::Gauges gauges = parts_.gauges();
  gauges.stats = parts_.health->stats();
  gauges.homes = parts_.health->homes();
  gauges.recovery = ReadDurations(parts_.context->engine, FD_DURATION_RECOVERY);
  gauges.recovery_queue = ReadDurations(parts_.context->engine, FD_DURATION_RECOVERY_QUEUE);
  gauges.loss_detection = ReadDurations(parts_.context->engine, FD_DURATION_LOSS_DETECTION);
  gauges.admission = parts_.context->admission->counts();
  gauges.ready = WhyNotReady().empty();
  exchange->Reply(200, kMetricsType, parts_.context->metrics->Text(gauges));
}

void Router::AnswerVersion(const std::shared_ptr<Exchange>& exchange) {
  SendJson(exchange.get(), 200, {{"version", fd_version()}});
}

nlohmann::ordered_json Router::ModelObject(const std::string& name) const {
  const ServingContext& context = *parts_.context;
  return {{"id", name},
          {"object", "model"},
          {"created", context.created_s},
          {"owned_by", "fastdecode"},
          {"root", parts_.root},
          {"parent", nullptr},
          {"max_model_len", fd_max_context(context.engine)}};
}

void Router::AnswerModels(const std::shared_ptr<Exchange>& exchange) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::string& name : parts_.context->names) list.push_back(ModelObject(name));
  SendJson(exchange.get(), 200, {{"object", "list"}, {"data", std::move(list)}});
}

void Router::AnswerModel(const std::shared_ptr<Exchange>& exchange) {
  const std::string name = exchange->request.path.substr(std::string_view("/v1/models/").size());
  SendJson(exchange.get(), 200, ModelObject(CheckModelName(*parts_.context, name)));
}

void Router::AnswerTokenizerInfo(const std::shared_ptr<Exchange>& exchange) {
  SendJson(exchange.get(), 200, ModelJson(parts_.context->engine));
}

void Router::AnswerLater(const std::shared_ptr<Exchange>& exchange, std::function<std::string()> make) {
  asio::post(*parts_.helpers, [exchange, make = std::move(make), io = parts_.context->io] {
    std::function<void()> send;
    try {
      if (!exchange->gone()) {
        send = [exchange, body = make()] { exchange->Reply(200, "application/json", body); };
      }
    } catch (const ApiError& error) {
      send = [exchange, error] { SendError(exchange.get(), error); };
    } catch (const std::exception& error) {
      send = [exchange, failure = HelperError(error)] { SendError(exchange.get(), failure); };
    }
    exchange->DropBody();
    if (send) asio::post(*io, std::move(send));
  });
}

void Router::AnswerTokenize(const std::shared_ptr<Exchange>& exchange) {
  AnswerLater(exchange, [context = parts_.context, exchange] {
    const TokenizeRequest request = ReadTokenizeRequest(ReadJsonBody(exchange->request.body));
    CheckModelName(*context, request.model);
    const std::vector<int32_t> ids =
        request.chat ? RenderedChat(context->engine, *request.chat).Tokenize(request.add_special_tokens)
                     : Tokenize(context->engine, request.prompt, request.add_special_tokens);
    std::string body = R"({"count":)";
    AppendJsonInteger(static_cast<int64_t>(ids.size()), &body);
    body += R"(,"max_model_len":)";
    AppendJsonInteger(fd_max_context(context->engine), &body);
    body += R"(,"tokens":[)";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) body += ',';
      AppendJsonInteger(ids[i], &body);
    }
    body += R"(],"token_strs":)";
    if (!request.return_token_strs) return body + "null}";
    for (size_t i = 0; i < ids.size(); ++i) {
      body += i > 0 ? ',' : '[';
      AppendJsonString(TokenName(TokenBytes(context->engine, ids[i])), &body);
    }
    return body + (ids.empty() ? "[]}" : "]}");
  });
}

void Router::AnswerDetokenize(const std::shared_ptr<Exchange>& exchange) {
  AnswerLater(exchange, [context = parts_.context, exchange] {
    const DetokenizeRequest request = ReadDetokenizeRequest(ReadJsonObject(exchange->request.body));
    CheckModelName(*context, request.model);
    CheckTokenIds(context->engine, "tokens", request.tokens);
    std::string body = R"({"prompt":)";
    AppendJsonString(Detokenize(context->engine, request.tokens, /*special=*/true, "tokens"), &body);
    return body + "}";
  });
}

void Router::AnswerCompletions(const std::shared_ptr<Exchange>& exchange) {
  Generate(exchange, std::make_unique<TextForm>(parts_.context));
}

void Router::AnswerChatCompletions(const std::shared_ptr<Exchange>& exchange) {
  Generate(exchange, std::make_unique<ChatForm>(parts_.context));
}

void Router::Generate(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<CompletionForm> form) {
  auto completion = std::make_shared<Completion>(parts_.context, exchange, std::move(form));
  completion->Begin();
  asio::post(*parts_.helpers, [completion] { completion->Work(); });
}

}  // namespace fastdecode::serve
