#include "tools/bench/serve_target.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"

namespace fastdecode::serve_bench {

namespace {

std::string MakeBody(const PreparedRequest& request, const PromptOptions& options, bool forced,
                     const std::string& model) {
  nlohmann::ordered_json body = {{"model", model}};
  if (request.ids.empty()) {
    body["prompt"] = request.text;
  } else {
    body["prompt"] = request.ids;
  }
  body["max_tokens"] = request.output_tokens;
  if (forced) body["min_tokens"] = request.output_tokens;
  if (options.temperature.has_value()) body["temperature"] = *options.temperature;
  if (options.logprobs.has_value()) body["logprobs"] = *options.logprobs;
  if (forced || options.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = options.stream;
  if (options.stream) body["stream_options"] = {{"include_usage", true}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GenerateRequest MakeGenerateRequest(const InferenceEngine& engine, const PreparedRequest& request,
                                    const PromptOptions& options, bool forced) {
  GenerateRequest out;
  engine.SetDefaultSampling(&out);
  out.prompt = request.text;
  out.prompt_ids = request.ids;
  out.fields.max_tokens = static_cast<uint32_t>(request.output_tokens);
  if (forced) out.fields.min_tokens = out.fields.max_tokens;
  out.fields.ignore_eos = forced || options.ignore_eos ? 1 : 0;
  if (options.temperature.has_value()) out.fields.temperature = static_cast<float>(*options.temperature);
  if (options.logprobs.has_value()) out.fields.logprobs = *options.logprobs;
  return out;
}

// The prepared requests, one after the other.
class PreparedSource : public load::RequestSource {
 public:
  PreparedSource(const std::vector<GenerateRequest>& requests, const load::Pace& pace)
      : requests_(requests),
        pace_(pace),
        count_(pace.is_open() ? std::min(pace.arrivals_s.size(), requests.size()) : requests.size()) {}

  bool Next(double* arrival_s) override {
    if (next_ == count_) return false;
    *arrival_s = pace_.is_open() ? pace_.arrivals_s[next_] : 0;
    ++next_;
    return true;
  }

  void Make(GenerateRequest* request) override { *request = requests_[next_ - 1]; }

 private:
  const std::vector<GenerateRequest>& requests_;
  const load::Pace& pace_;
  const size_t count_;
  size_t next_ = 0;
};

}  // namespace

ServerTarget::ServerTarget(load::Server server, std::string model, bool keep_text)
    : server_(std::move(server)), model_(std::move(model)) {
  options_.keep_text = keep_text;
  if (!model_.empty()) return;
  const nlohmann::json models = nlohmann::json::parse(load::Get(server_, "/v1/models"), nullptr, false);
  const nlohmann::json::json_pointer first("/data/0");
  if (models.is_discarded() || !models.contains(first) || !models[first].contains("id") ||
      !models[first]["id"].is_string()) {
    throw Error(FD_UNAVAILABLE, server_.url.Text() + "/v1/models names no model; give --model");
  }
  model_ = models[first]["id"];
  const auto length = models[first].find("max_model_len");
  if (length != models[first].end() && length->is_number_unsigned()) max_context_ = length->get<int64_t>();
}

IdRange ServerTarget::FindIds() const {
  std::string why;
  try {
    const nlohmann::json info = nlohmann::json::parse(load::Get(server_, "/tokenizer_info"), nullptr, false);
    const int64_t size = info.is_object() && info.contains("vocab_size") && info["vocab_size"].is_number_integer()
                             ? info["vocab_size"].get<int64_t>()
                             : 0;
    if (size > 0) return {0, size - 1};
    why = server_.url.Text() + "/tokenizer_info does not say vocab_size";
  } catch (const Error& error) {
    why = error.what();
  }
  throw Error(FD_INVALID_ARGUMENT,
              "--vocab: the server does not say which token ids there are (" + why +
                  "); give --vocab LOW-HIGH, or --random-text for prompts of words, or --prompt or --prompts-file");
}

void ServerTarget::Prepare(const RequestList& list, const PromptOptions& options) {
  options_.stream = options.stream;
  requests_.clear();
  for (const PreparedRequest& request : list.requests) {
    requests_.push_back(
        {MakeBody(request, options, list.forced, model_), request.prompt_tokens, request.output_tokens});
  }
}

load::LoadRun ServerTarget::Run(const load::Pace& pace, const load::RunHooks& hooks) {
  return load::RunHttpLoad(server_, requests_, options_, pace, hooks);
}

EngineTarget::EngineTarget(std::unique_ptr<InferenceEngine> engine, std::string model, bool keep_text)
    : engine_(std::move(engine)), model_(std::move(model)) {
  options_.keep_text = keep_text;
}

void EngineTarget::Prepare(const RequestList& list, const PromptOptions& options) {
  requests_.clear();
  for (const PreparedRequest& request : list.requests) {
    requests_.push_back(MakeGenerateRequest(*engine_, request, options, list.forced));
  }
}

load::LoadRun EngineTarget::Run(const load::Pace& pace, const load::RunHooks& hooks) {
  options_.open = pace.is_open();
  options_.concurrency = pace.concurrency;
  PreparedSource source(requests_, pace);
  return load::EngineLoad(*engine_, source, options_, hooks).Run();
}

}  // namespace fastdecode::serve_bench
