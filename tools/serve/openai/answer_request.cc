#include "tools/serve/openai/answer_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "tools/serve/api_error.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

constexpr size_t kRequestIdBytesMax = 128;
constexpr size_t kUserBytesMax = 512;
constexpr size_t kCacheSaltBytesMax = 4096;  // the engine's

// --- What the server makes of the answers

void ReadStreamOptions(const BodyFields& fields, AnswerRequest* request) {
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

std::string ReadCacheSalt(const BodyFields& fields) {
  const std::optional<std::string> salt = fields.String("cache_salt");
  if (!salt) return "";
  if (salt->empty()) {
    throw BadField("cache_salt", "cache_salt: it is empty, and would keep nothing apart; leave it out");
  }
  if (salt->size() <= kCacheSaltBytesMax) return *salt;
  throw BadField("cache_salt", "cache_salt: it has " + std::to_string(salt->size()) + " bytes, more than " +
                                   std::to_string(kCacheSaltBytesMax));
}

// --- Stops

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

void ReadSampling(const BodyFields& fields, fd_request* request) {
  // These are the engine's ranges. It takes no top_p below 1e-6, which could leave no token.
  const struct {
    const char* name;
    float low, high;
    float* field;
    const char* advice;
  } floats[] = {
      {"temperature", 0, 100, &request->temperature, "; 0 always takes the most likely token"},
      {"top_p", 1e-6f, 1, &request->top_p, "; 1 is off, and temperature 0 always takes the most likely token"},
      {"min_p", 0, 1, &request->min_p, "; 0 is off"},
      {"repetition_penalty", 0.01f, 100, &request->repetition_penalty, "; 1 is off"},
      {"presence_penalty", -2, 2, &request->presence_penalty, "; 0 is off"},
      {"frequency_penalty", -2, 2, &request->frequency_penalty, "; 0 is off"}};
  for (const auto& [name, low, high, field, advice] : floats) {
    *field = fields.Float(name, low, high, advice).value_or(*field);
  }
  const std::optional<int64_t> top_k =
      fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max(), "; 0 is off, and so is -1");
  if (top_k) request->top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));  // -1 is vLLM's "off"
}

// -1 is no seed, as vLLM and llama-server have it; other negative ones become what they are modulo 2^64.
uint64_t ReadSeed(const BodyFields& fields, uint64_t random_seed) {
  const json* const value = fields.Find("seed");
  if (value == nullptr) return random_seed;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const std::optional<int64_t> seed = AsInteger(*value);
  if (seed) return *seed == -1 ? random_seed : static_cast<uint64_t>(*seed);
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

}  // namespace

void ReadAnswerFields(const BodyFields& fields, const RequestLimits& limits, const fd_request& defaults,
                      uint64_t random_seed, AnswerRequest* request) {
  request->model = ReadModel(fields);
  request->n = static_cast<uint32_t>(fields.Integer("n", 1, limits.choices).value_or(1));
  ReadStreamOptions(fields, request);
  request->return_token_ids = fields.Bool("return_token_ids", false);
  request->user = ReadUser(fields);
  request->request_id = ReadRequestId(fields);

  fd_request& generate = request->generate.fields;
  generate = defaults;
  ReadSampling(fields, &generate);
  generate.seed = ReadSeed(fields, random_seed);
  generate.ignore_eos = fields.Bool("ignore_eos", generate.ignore_eos != 0) ? 1 : 0;
  generate.include_stop = fields.Bool("include_stop_str_in_output", generate.include_stop != 0) ? 1 : 0;
  generate.show_special = fields.Bool("skip_special_tokens", generate.show_special == 0) ? 0 : 1;
  request->generate.stop = ReadStops(fields, limits);
  request->generate.stop_token_ids = fields.TokenIds("stop_token_ids", limits.stop_token_ids);
  request->generate.logit_bias = ReadLogitBias(fields, limits.logit_bias);
  generate.no_prefix_cache = fields.Bool("prefix_cache", generate.no_prefix_cache == 0) ? 0 : 1;
  request->generate.cache_salt = ReadCacheSalt(fields);
}

void ReadMinTokens(const BodyFields& fields, AnswerRequest* request) {
  fd_request& generate = request->generate.fields;
  generate.min_tokens =
      static_cast<uint32_t>(fields.Integer("min_tokens", 0, kUint32Max).value_or(generate.min_tokens));
  if (request->length_field == nullptr || generate.min_tokens <= generate.max_tokens) return;
  throw BadField("min_tokens", "min_tokens: " + std::to_string(generate.min_tokens) + " is more than " +
                                   request->length_field + ", " + std::to_string(generate.max_tokens));
}

std::string ReadModel(const BodyFields& fields) { return fields.String("model").value_or(""); }

std::string Numbered(const std::string& name, size_t index) { return name + "[" + std::to_string(index) + "]"; }

}  // namespace fastdecode::serve
