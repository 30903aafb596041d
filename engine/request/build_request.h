#ifndef FASTDECODE_ENGINE_REQUEST_BUILD_REQUEST_H_
#define FASTDECODE_ENGINE_REQUEST_BUILD_REQUEST_H_

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/request/request.h"
#include "engine/text/tokenizer.h"
#include "kernels/sampler.h"
#include "numa/log.h"

namespace fastdecode {

// What a request is checked against.
struct RequestContext {
  const ModelSpec* spec = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: token ids only
  const std::string* tokenizer_missing_reason = nullptr;
  int max_context = 0;
  std::pmr::memory_resource* sampling_memory = std::pmr::get_default_resource();  // SPart::sampling_memory
  // The most answers of one request. Their first tokens come from one step, which must have a row of logits for each of
  // them beside those of all other members.
  uint32_t answers_max = 1 + kFollowersMax;
  bool prefix_cache = true;  // false: no request uses what others have computed, or leaves anything for them
  // Told once of prompts that begin with bos twice, and then the flag is set. Null: nobody is told.
  Logger* log = nullptr;
  std::atomic<bool>* warned_of_bos = nullptr;
};

// What a caller asks for, as it comes: nothing is checked yet. Arrays are lent, and may be null if their count is 0.
// The public header says what each field means (fd_request has the same names).
struct RequestFields {
  // A piece of a prompt: ids if they are not null, else text.
  struct Part {
    bool special = true;  // special tokens in the text become their ids
    const char* text = nullptr;
    size_t text_bytes = 0;
    const int32_t* ids = nullptr;
    size_t id_count = 0;
    bool joins = false;  // the text goes on with that of the part before
  };

  const Part* parts = nullptr;
  size_t part_count = 0;
  void* user = nullptr;
  uint64_t deadline_ns = 0;
  const char* prompt = nullptr;
  size_t prompt_bytes = 0;
  const int32_t* prompt_ids = nullptr;
  size_t prompt_id_count = 0;
  bool add_special_tokens = true;
  uint32_t max_tokens = 16;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  const int32_t* stop_token_ids = nullptr;
  size_t stop_token_id_count = 0;
  const char* const* stop = nullptr;
  size_t stop_count = 0;
  bool include_stop = false;
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  int32_t logprobs = -1;
  const LogitBias* logit_bias = nullptr;
  size_t logit_bias_count = 0;
  float* prompt_logits = nullptr;
  size_t prompt_logits_floats = 0;
  uint32_t fill_tokens = 0;
  int32_t prompt_logprobs = -1;
  bool show_special = false;
  bool hides_special = false;  // beside show_special, see Request
  bool pause_events = false;
  uint32_t answers = 1;              // that are sampled from the prompt, the i-th one with seed + i; callers call it n
  bool prefix_cache = true;          // false: it uses nothing that others have computed, and leaves nothing for them
  const char* cache_salt = nullptr;  // what is kept of a prompt is for those with the same salt alone
  size_t cache_salt_bytes = 0;
};

inline constexpr size_t kCacheSaltBytesMax = 4096;

// What is wrong with a request whatever the model is: pointers, lengths, sampling, stop strings. Errors name field and
// value.
absl::Status CheckRequest(const RequestFields& given);

// The ids of a prompt in parts, the template's tokens around them. Errors name part and field. Logs a warning if they
// begin with bos twice, the template's and the text's.
absl::StatusOr<std::vector<int32_t>> EncodeParts(const RequestContext& context,
                                                 std::span<const RequestFields::Part> parts, bool add_special_tokens);

// What ends an answer unless the request ignores it, ascending: what the model's files name, and the tokenizer's end of
// a text. `tokenizer`: null if there is none.
std::vector<int32_t> ModelStopTokens(const ModelSpec& spec, const Tokenizer* tokenizer);

// Checks every field, tokenises the prompt, and takes all the memory that the request will need. Errors name field and
// value; ResourceExhausted: no sampling memory. Runs on the caller's thread.
absl::StatusOr<std::unique_ptr<Request>> BuildRequest(const RequestContext& context, const RequestFields& given);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_REQUEST_BUILD_REQUEST_H_
