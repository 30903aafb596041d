#include "tools/serve/openai/completion_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/body_fields.h"
#include "tools/serve/openai/refused_fields.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

constexpr int64_t kUint32Max = std::numeric_limits<uint32_t>::max();
constexpr int64_t kLogprobsMax = 20;
constexpr size_t kRequestIdBytesMax = 128;
constexpr size_t kUserBytesMax = 512;

std::string Numbered(const std::string& name, size_t index) { return name + "[" + std::to_string(index) + "]"; }

// --- The prompt
// ---------------------------------------------------------------------------------------------------------

constexpr char kPromptForms[] = "give a string, a list of token ids, or a list of these";

Prompt IdsPrompt(const json& list, const std::string& what) {
  if (list.empty()) throw BadField("prompt", what + ": the list of token ids is empty; the model needs at least one");
  Prompt prompt;
  prompt.is_ids = true;
  prompt.ids = ReadTokenIds(list, "prompt", what);
  return prompt;
}

Prompt TextPrompt(const json& text) {
  Prompt prompt;
  prompt.text = text.get_ref<const std::string&>();
  return prompt;
}

// One of several prompts, all of the same form.
Prompt ListedPrompt(const json& value, bool texts, const std::string& what) {
  if (texts ? value.is_string() : value.is_array()) return texts ? TextPrompt(value) : IdsPrompt(value, what);
  throw BadField("prompt", what + ": " + ShowValue(value) + " is not " + (texts ? "a string" : "a list of token ids") +
                               " as prompt[0] is");
}

std::vector<Prompt> ReadPrompts(const BodyFields& fields, size_t count_max) {
  const json* const value = fields.Find("prompt");
  if (value == nullptr) throw BadField("prompt", std::string("prompt: it is missing; ") + kPromptForms);
  if (value->is_string()) return {TextPrompt(*value)};
  if (!value->is_array()) throw BadField("prompt", "prompt: " + ShowValue(*value) + " is no prompt; " + kPromptForms);
  if (value->empty()) throw BadField("prompt", std::string("prompt: the list is empty; ") + kPromptForms);
  const json& first = value->front();
  if (first.is_number()) return {IdsPrompt(*value, "prompt")};
  if (!first.is_string() && !first.is_array()) {
    throw BadField("prompt", "prompt[0]: " + ShowValue(first) + " is no prompt; " + kPromptForms);
  }
  if (value->size() > count_max) {
    throw BadField("prompt", "prompt: there are " + std::to_string(value->size()) + " prompts, more than " +
                                 std::to_string(count_max) + "; send them in several requests");
  }
  std::vector<Prompt> prompts;
  prompts.reserve(value->size());
  for (const json& element : *value) {
    prompts.push_back(ListedPrompt(element, first.is_string(), Numbered("prompt", prompts.size())));
  }
  return prompts;
}

// --- What the server makes of the answers
// -------------------------------------------------------------------------------

uint32_t ReadN(const BodyFields& fields, const RequestLimits& limits, size_t prompts) {
  const auto n = static_cast<uint32_t>(fields.Integer("n", 1, limits.choices).value_or(1));
  if (prompts * n > limits.sequences) {
    throw BadField("n", "n: " + std::to_string(n) + " for each of " + std::to_string(prompts) +
                            " prompts is more than " + std::to_string(limits.sequences) +
                            " answers; send several requests");
  }
  const std::optional<int64_t> best_of = fields.Integer("best_of", 1, kUint32Max);
  if (best_of && *best_of != n) {
    throw BadField("best_of", "best_of: " + std::to_string(*best_of) + " is not n, " + std::to_string(n) +
                                  "; answers are not ranked, leave this field out");
  }
  return n;
}

void ReadStreamOptions(const BodyFields& fields, CompletionRequest* request) {
  request->stream = fields.Bool("stream", false);
  const json* const value = fields.Find("stream_options");
  if (value == nullptr) return;
  if (!value->is_object()) {
    throw BadField("stream_options", "stream_options: " + ShowValue(*value) + " is not an object");
  }
  if (!request->stream) {
    throw BadField("stream_options", "stream_options: they go with \"stream\": true alone; leave this field out");
  }
  const auto read = [&](const char* name) {
    const auto found = value->find(name);
    if (found == value->end() || found->is_null()) return false;
    if (found->is_boolean()) return found->get<bool>();
    throw BadField("stream_options",
                   std::string("stream_options.") + name + ": " + ShowValue(*found) + " is not true or false");
  };
  request->include_usage = read("include_usage");
  request->continuous_usage = read("continuous_usage_stats") && request->include_usage;
}

// Becomes a header of the answer, and part of the log.
std::string ReadRequestId(const BodyFields& fields) {
  const std::string id = fields.String("request_id").value_or("");
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (printable && id.size() <= kRequestIdBytesMax) return id;
  throw BadField("request_id", "request_id: " + ShowValue(id) + " is not at most " +
                                   std::to_string(kRequestIdBytesMax) + " printable ASCII characters without spaces");
}

std::string ReadUser(const BodyFields& fields) {
  std::string user = fields.String("user").value_or("");
  if (user.size() <= kUserBytesMax) return user;
  throw BadField("user",
                 "user: it has " + std::to_string(user.size()) + " bytes, more than " + std::to_string(kUserBytesMax));
}

// --- Lengths and stops
// ----------------------------------------------------------------------------------------------------

void ReadLengths(const BodyFields& fields, bool echo, fd_request* request) {
  request->max_tokens =
      static_cast<uint32_t>(fields.Integer("max_tokens", 0, kUint32Max).value_or(request->max_tokens));
  if (request->max_tokens == 0 && !echo) {
    throw BadField("max_tokens", "max_tokens: 0 is not at least 1, as it may be with \"echo\": true alone");
  }
  request->min_tokens =
      static_cast<uint32_t>(fields.Integer("min_tokens", 0, kUint32Max).value_or(request->min_tokens));
  if (request->min_tokens > request->max_tokens) {
    throw BadField("min_tokens", "min_tokens: " + std::to_string(request->min_tokens) + " is more than max_tokens, " +
                                     std::to_string(request->max_tokens));
  }
}

std::string ReadStop(const json& value, const std::string& what, size_t bytes_max) {
  if (!value.is_string()) throw BadField("stop", what + ": " + ShowValue(value) + " is not a string");
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty()) throw BadField("stop", what + ": it is empty, and would end every answer; leave it out");
  if (text.size() > bytes_max) {
    throw BadField("stop",
                   what + ": it has " + std::to_string(text.size()) + " bytes, more than " + std::to_string(bytes_max));
  }
  if (text.find('\0') != std::string::npos) throw BadField("stop", what + ": there is a 0 byte in it");
  return text;
}

std::vector<std::string> ReadStops(const BodyFields& fields, const RequestLimits& limits) {
  const json* const value = fields.Find("stop");
  if (value == nullptr) return {};
  if (!value->is_array()) return {ReadStop(*value, "stop", limits.stop_bytes)};
  if (value->size() > limits.stop_strings) {
    throw BadField("stop", "stop: there are " + std::to_string(value->size()) + " strings, more than " +
                               std::to_string(limits.stop_strings));
  }
  std::vector<std::string> stops;
  for (const json& element : *value) {
    stops.push_back(ReadStop(element, Numbered("stop", stops.size()), limits.stop_bytes));
  }
  return stops;
}

// --- Sampling
// -------------------------------------------------------------------------------------------------------------

void ReadSampling(const BodyFields& fields, fd_request* request) {
  // These are the engine's ranges. It takes no top_p below 1e-6, which could leave no token.
  const struct {
    const char* name;
    float low, high;
    float* field;
  } floats[] = {{"temperature", 0, 100, &request->temperature},
                {"top_p", 1e-6f, 1, &request->top_p},
                {"min_p", 0, 1, &request->min_p},
                {"repetition_penalty", 0.01f, 100, &request->repetition_penalty},
                {"presence_penalty", -2, 2, &request->presence_penalty},
                {"frequency_penalty", -2, 2, &request->frequency_penalty}};
  for (const auto& [name, low, high, field] : floats) *field = fields.Float(name, low, high).value_or(*field);
  const std::optional<int64_t> top_k = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max());
  if (top_k) request->top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));  // -1 is vLLM's "off"
}

// Negative ones become what they are modulo 2^64.
uint64_t ReadSeed(const BodyFields& fields, uint64_t random_seed) {
  const json* const value = fields.Find("seed");
  if (value == nullptr) return random_seed;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const std::optional<int64_t> seed = AsInteger(*value);
  if (seed) return static_cast<uint64_t>(*seed);
  throw BadField("seed", "seed: " + ShowValue(*value) + " is not an integer of 64 bits");
}

std::vector<fd_logit_bias> ReadLogitBias(const BodyFields& fields, size_t count_max) {
  const json* const value = fields.Find("logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object()) {
    throw BadField("logit_bias", "logit_bias: " + ShowValue(*value) + " is not an object of token ids and biases");
  }
  if (value->size() > count_max) {
    throw BadField("logit_bias", "logit_bias: there are " + std::to_string(value->size()) + " biases, more than " +
                                     std::to_string(count_max));
  }
  std::vector<fd_logit_bias> biases;
  for (const auto& [key, bias] : value->items()) {
    int32_t token = -1;
    const std::from_chars_result end = std::from_chars(key.data(), key.data() + key.size(), token);
    // One way to write an id, so that no token is there twice.
    if (end.ec != std::errc() || token < 0 || std::to_string(token) != key) {
      throw BadField("logit_bias", "logit_bias: the key " + ShowValue(key) + " is not a token id such as \"42\"");
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      throw BadField("logit_bias",
                     "logit_bias: " + ShowValue(bias) + " of token " + key + " is not a number in [-100, 100]");
    }
    biases.push_back({token, bias.get<float>()});
  }
  return biases;
}

void ReadLogprobs(const BodyFields& fields, bool echo, fd_request* request) {
  const json* const value = fields.Find("logprobs");
  if (value != nullptr && value->is_boolean()) {
    throw BadField("logprobs", "logprobs: " + ShowValue(*value) +
                                   " is not an integer, which it is outside of chat completions; give the number of "
                                   "most likely tokens, 0 to " +
                                   std::to_string(kLogprobsMax) + ", or null for none");
  }
  const std::optional<int64_t> logprobs = fields.Integer("logprobs", 0, kLogprobsMax);
  request->logprobs = static_cast<int32_t>(logprobs.value_or(-1));
  request->prompt_logprobs = echo ? request->logprobs : -1;
  // The engine takes a request that generates nothing if it wants something of the prompt.
  if (echo && request->max_tokens == 0) request->prompt_logprobs = std::max(request->prompt_logprobs, 0);
}

// --- All endpoints
// ----------------------------------------------------------------------------------------------------------

std::string ReadModel(const BodyFields& fields) { return fields.String("model").value_or(""); }

}  // namespace

CompletionRequest ReadCompletionRequest(const json& body, const RequestLimits& limits, const fd_request& defaults,
                                        uint64_t random_seed) {
  RefuseUnservedFields(body);
  const BodyFields fields(body);
  CompletionRequest request;
  request.model = ReadModel(fields);
  request.prompts = ReadPrompts(fields, limits.sequences);
  request.n = ReadN(fields, limits, request.prompts.size());
  request.echo = fields.Bool("echo", false);
  ReadStreamOptions(fields, &request);
  request.return_token_ids = fields.Bool("return_token_ids", false);
  request.user = ReadUser(fields);
  request.request_id = ReadRequestId(fields);

  fd_request& generate = request.generate.fields;
  generate = defaults;
  ReadLengths(fields, request.echo, &generate);
  ReadSampling(fields, &generate);
  ReadLogprobs(fields, request.echo, &generate);
  generate.seed = ReadSeed(fields, random_seed);
  generate.ignore_eos = fields.Bool("ignore_eos", generate.ignore_eos != 0) ? 1 : 0;
  generate.include_stop = fields.Bool("include_stop_str_in_output", generate.include_stop != 0) ? 1 : 0;
  generate.show_special = fields.Bool("skip_special_tokens", generate.show_special == 0) ? 0 : 1;
  generate.add_special_tokens = fields.Bool("add_special_tokens", generate.add_special_tokens != 0) ? 1 : 0;
  request.generate.stop = ReadStops(fields, limits);
  request.generate.stop_token_ids = fields.TokenIds("stop_token_ids", limits.stop_token_ids);
  request.generate.logit_bias = ReadLogitBias(fields, limits.logit_bias);
  return request;
}

TokenizeRequest ReadTokenizeRequest(const json& body) {
  const BodyFields fields(body);
  TokenizeRequest request;
  request.model = ReadModel(fields);
  if (fields.Find("messages") != nullptr) {
    throw BadField("messages", "messages: they are not supported; give prompt, a string");
  }
  std::optional<std::string> prompt = fields.String("prompt");
  if (!prompt) throw BadField("prompt", "prompt: it is missing; give the text as a string");
  request.prompt = *std::move(prompt);
  request.add_special_tokens = fields.Bool("add_special_tokens", true);
  request.return_token_strs = fields.Bool("return_token_strs", false);
  return request;
}

DetokenizeRequest ReadDetokenizeRequest(const json& body) {
  const BodyFields fields(body);
  DetokenizeRequest request;
  request.model = ReadModel(fields);
  if (fields.Find("tokens") == nullptr) throw BadField("tokens", "tokens: they are missing; give a list of token ids");
  request.tokens = fields.TokenIds("tokens");
  return request;
}

}  // namespace fastdecode::serve
