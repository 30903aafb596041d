#ifndef FASTDECODE_TOOLS_SERVE_ROUTER_H_
#define FASTDECODE_TOOLS_SERVE_ROUTER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/access_log.h"
#include "tools/serve/api_keys.h"
#include "tools/serve/completion.h"
#include "tools/serve/health.h"
#include "tools/serve/http/exchange.h"
#include "tools/serve/http/listener.h"

namespace fastdecode::serve {

// Who answers which path, and who may ask: keys, CORS, identifiers of requests, the access log.
// Refers to: everything that its parts say. Thread: the I/O thread.
class Router : public HttpHandler {
 public:
  enum class Phase { kLoading, kServing, kEnding };

  struct Parts {
    ServingContext* context = nullptr;
    Health* health = nullptr;
    AccessLog* log = nullptr;
    asio::thread_pool* helpers = nullptr;
    std::function<Metrics::Gauges()> gauges;  // but for what health has
    std::string root;                         // the model's folder, as GET /v1/models says it
    std::vector<std::string> cors_origins;    // "*": any
  };
  explicit Router(Parts parts) : parts_(std::move(parts)) {}

  void SetPhase(Phase phase) { phase_ = phase; }
  // From now on requests need one of these. Null: none is needed.
  void SetKeys(std::shared_ptr<const ApiKeys> keys) { keys_ = std::move(keys); }

  void OnHead(const std::shared_ptr<Exchange>& exchange) override;
  void OnRequest(const std::shared_ptr<Exchange>& exchange) override;
  void OnBadRequest(const std::shared_ptr<Exchange>& exchange, int status, std::string_view why) override;
  void OnDone(const std::shared_ptr<Exchange>& exchange) override;

 private:
  using Answer = void (Router::*)(const std::shared_ptr<Exchange>&);
  struct Route {
    std::string_view method, path;  // a path that ends with / has something behind it
    bool open = false;              // needs no key
    bool needs_model = false;       // refused while the model is being read
    bool generates = false;         // refused when the server ends, and when the queue is full
    Answer answer = nullptr;
  };
  static const std::vector<Route>& Routes();
  static const Route* FindPath(std::string_view path, std::string_view method, std::string* methods);

  static std::string_view RouteName(const Route* route);

  void SetIdentifiers(Exchange* exchange) const;
  void SetCors(Exchange* exchange) const;
  // Throws ApiError.
  void CheckKey(Exchange* exchange) const;
  void CheckHeaders(const Exchange& exchange) const;
  void CheckPhase(const Route& route) const;

  std::string WhyNotReady() const;

  void AnswerHealth(const std::shared_ptr<Exchange>& exchange);
  void AnswerReady(const std::shared_ptr<Exchange>& exchange);
  void AnswerMetrics(const std::shared_ptr<Exchange>& exchange);
  void AnswerVersion(const std::shared_ptr<Exchange>& exchange);
  void AnswerModels(const std::shared_ptr<Exchange>& exchange);
  void AnswerModel(const std::shared_ptr<Exchange>& exchange);
  void AnswerTokenizerInfo(const std::shared_ptr<Exchange>& exchange);
  void AnswerTokenize(const std::shared_ptr<Exchange>& exchange);
  void AnswerDetokenize(const std::shared_ptr<Exchange>& exchange);
  void AnswerCompletions(const std::shared_ptr<Exchange>& exchange);
  void AnswerChatCompletions(const std::shared_ptr<Exchange>& exchange);
  // Answers with generated text, of that form.
  void Generate(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<CompletionForm> form);
  // Makes an answer on a helper and sends it from the I/O thread.
  void AnswerLater(const std::shared_ptr<Exchange>& exchange, std::function<std::string()> make);
  nlohmann::ordered_json ModelObject(const std::string& name) const;

  const Parts parts_;
  Phase phase_ = Phase::kLoading;
  std::shared_ptr<const ApiKeys> keys_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ROUTER_H_
