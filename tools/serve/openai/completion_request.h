#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

// How much one request may ask for. What exceeds it is a 400 that names the field, its value and the limit.
struct RequestLimits {
  uint32_t choices = 128;    // `n`
  size_t sequences = 1024;   // prompts times n
  size_t stop_strings = 16;  // each of...
  size_t stop_bytes = 256;   // ...so many bytes
  size_t stop_token_ids = 256;
  size_t logit_bias = 1024;
};

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;  // which of the two it is
};

// What POST /v1/completions asks for, under OpenAI's names and those that vLLM added.
struct CompletionRequest {
  std::string model;  // empty: not named
  std::vector<Prompt> prompts;
  uint32_t n = 1;
  bool echo = false;
  bool stream = false;
  bool include_usage = false;     // of stream_options
  bool continuous_usage = false;  // of stream_options: each chunk says its usage so far
  bool return_token_ids = false;
  std::string user;        // for the access log alone
  std::string request_id;  // what the answer's id is made of; empty: that of the header X-Request-Id
  // Sampling, lengths and stops of every sequence; its prompt is empty. Choice k of a prompt runs with
  // fields.seed + k. With echo and logprobs, fields.prompt_logprobs is set; with echo, max_tokens may be 0.
  GenerateRequest generate;
};

// Reads a body of POST /v1/completions. `defaults`: the model's, from fd_request_init and fd_default_sampling.
// `random_seed` is the seed of a request that names none. Null is the same as absent; integers may be written as 1.0;
// unknown fields are ignored; a field that would change the answer and is not served is refused. Throws ApiError that
// names the field. What depends on the model (length, ids below the vocabulary) is left to whoever submits. Thread:
// any.
CompletionRequest ReadCompletionRequest(const nlohmann::json& body, const RequestLimits& limits,
                                        const fd_request& defaults, uint64_t random_seed);

// POST /tokenize.
struct TokenizeRequest {
  std::string model;
  std::string prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};
TokenizeRequest ReadTokenizeRequest(const nlohmann::json& body);

// POST /detokenize.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
DetokenizeRequest ReadDetokenizeRequest(const nlohmann::json& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_
