#include "tools/serve/openai/completion_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/body_fields.h"
#include "tools/serve/openai/refused_fields.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

constexpr char kNoLimit[] = "; no value means no limit, and POST /tokenize tells how many tokens a prompt leaves";
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

void CheckNumbers(const BodyFields& fields, const RequestLimits& limits, const CompletionRequest& request) {
  const size_t prompts = request.prompts.size();
  if (prompts * request.n > limits.sequences) {
    throw BadField("n", "n: " + std::to_string(request.n) + " for each of " + std::to_string(prompts) +
                            " prompts is more than " + std::to_string(limits.sequences) +
                            " answers; send several requests");
  }
  const std::optional<int64_t> best_of = fields.Integer("best_of", 1, kUint32Max);
  if (best_of && *best_of != request.n) {
    throw BadField("best_of", "best_of: " + std::to_string(*best_of) + " is not n, " + std::to_string(request.n) +
                                  "; answers are not ranked, leave this field out");
  }
}

void ReadLengths(const BodyFields& fields, CompletionRequest* request) {
  fd_request& generate = request->generate.fields;
  generate.max_tokens =
      static_cast<uint32_t>(fields.Integer("max_tokens", 0, kUint32Max, kNoLimit).value_or(generate.max_tokens));
  if (generate.max_tokens == 0 && !request->echo) {
    throw BadField("max_tokens", "max_tokens: 0 is not at least 1, as it may be with \"echo\": true alone");
  }
  ReadMinTokens(fields, request);
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

}  // namespace

CompletionRequest ReadCompletionRequest(const json& body, const RequestLimits& limits, const fd_request& defaults,
                                        uint64_t random_seed) {
  RefuseUnservedFields(Endpoint::kCompletions, body);
  const BodyFields fields(body);
  CompletionRequest request;
  request.prompts = ReadPrompts(fields, limits.sequences);
  ReadAnswerFields(fields, limits, defaults, random_seed, &request);
  CheckNumbers(fields, limits, request);
  request.echo = fields.Bool("echo", false);
  ReadLengths(fields, &request);
  fd_request& generate = request.generate.fields;
  ReadLogprobs(fields, request.echo, &generate);
  generate.add_special_tokens = fields.Bool("add_special_tokens", generate.add_special_tokens != 0) ? 1 : 0;
  return request;
}

}  // namespace fastdecode::serve
