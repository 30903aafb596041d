#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_REQUEST_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <limits>
#include <string>

#include "tools/serve/openai/body_fields.h"

namespace fastdecode::serve {

// How much one request may ask for. What exceeds it is a 400 that names the field, its value and the limit.
struct RequestLimits {
  uint32_t choices = 128;    // `n`; the engine's fd_max_choices if that is less
  size_t sequences = 1024;   // prompts times n
  size_t stop_strings = 16;  // each of...
  size_t stop_bytes = 256;   // ...so many bytes
  size_t stop_token_ids = 256;
  size_t logit_bias = 1024;
};

// What a request for generated text asks for, whatever its prompt is and its endpoint.
struct AnswerRequest {
  std::string model;  // empty: not named
  uint32_t n = 1;
  bool stream = false;
  bool include_usage = false;     // of stream_options
  bool continuous_usage = false;  // of stream_options: each chunk says its usage so far
  bool return_token_ids = false;
  std::string user;        // for the access log alone
  std::string request_id;  // what the answer's id is made of; empty: that of the header X-Request-Id
  // Sampling, lengths, stops and what is kept of each prompt; its own prompt is empty, and fields.n is left to whoever
  // submits. Choice k of a prompt runs with fields.seed + k.
  GenerateRequest generate;
  // The field that gave fields.max_tokens. Null: none has, and an answer may go on to the end of the context.
  const char* length_field = "max_tokens";
};

// Reads the fields that all endpoints share under the same names and with the same meanings: all of AnswerRequest but
// for lengths and log-probabilities. `defaults`: the model's, from fd_request_init and fd_default_sampling.
// `random_seed` is the seed of a request that names none. Throws ApiError. Thread: any.
void ReadAnswerFields(const BodyFields& fields, const RequestLimits& limits, const fd_request& defaults,
                      uint64_t random_seed, AnswerRequest* request);
// Reads min_tokens, which is at most as large as max_tokens where that is given. REQUIRES: max_tokens has been read.
void ReadMinTokens(const BodyFields& fields, AnswerRequest* request);

// The largest number of most likely tokens.
inline constexpr int64_t kLogprobsMax = 20;
// ...and of what has 32 bits in the engine.
inline constexpr int64_t kUint32Max = std::numeric_limits<uint32_t>::max();

// The model that a request names; empty: none.
std::string ReadModel(const BodyFields& fields);
// "stop[3]"
std::string Numbered(const std::string& name, size_t index);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_REQUEST_H_
