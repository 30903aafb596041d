#include "engine/api/read_request.h"

#include "absl/strings/str_format.h"
#include "engine/api/sized_struct.h"
#include "engine/api/status.h"

namespace fastdecode {

namespace {
constexpr size_t kPartsMax = 1 << 16;
}  // namespace

fd_request DefaultRequest() {
  fd_request request = {};
  request.add_special_tokens = 1;
  request.max_tokens = 16;
  request.temperature = 1;
  request.top_p = 1;
  request.repetition_penalty = 1;
  request.logprobs = -1;
  request.prompt_logprobs = -1;
  request.n = 1;
  return request;
}

fd_status* ReadParts(const fd_prompt_part* given, size_t count, std::vector<RequestFields::Part>* out) {
  if (count > kPartsMax) {
    return ToStatus(absl::StrFormat("part_count: %d parts of a prompt are more than %d", count, kPartsMax));
  }
  for (size_t i = 0; given != nullptr && i < count; ++i) {
    const char* const at = reinterpret_cast<const char*>(given) + i * given->struct_size;
    fd_prompt_part part = {};
    const std::string wrong = ReadSizedAt("fd_prompt_part", at, given->struct_size, &part);
    if (!wrong.empty()) return ToStatus(wrong);
    if (part.reserved != 0) return ToStatus(absl::StrFormat("fd_prompt_part.reserved: %d is not 0", part.reserved));
    out->push_back({part.special != 0, part.text, part.text_bytes, part.ids, part.id_count, part.joins != 0});
  }
  return nullptr;
}

fd_status* ReadRequest(const fd_request* given, GivenRequest* out) {
  fd_request request = DefaultRequest();
  if (fd_status* bad = ToStatus(ReadSized("fd_request", given, &request)); bad != nullptr) return bad;
  if (request.reserved != 0) return ToStatus(absl::StrFormat("fd_request.reserved: %d is not 0", request.reserved));
  if (request.reserved2 != 0) return ToStatus(absl::StrFormat("fd_request.reserved2: %d is not 0", request.reserved2));
  if (request.reserved3 != 0) return ToStatus(absl::StrFormat("fd_request.reserved3: %d is not 0", request.reserved3));
  if (request.logit_bias_count > size_t{kMaxVocab}) {
    return ToStatus(absl::StrFormat("logit_bias_count: %d are more biases than any vocabulary has tokens, %d",
                                    request.logit_bias_count, kMaxVocab));
  }
  RequestFields& fields = out->fields;
  fields.add_special_tokens = request.add_special_tokens != 0;
  fields.prompt = request.prompt;
  fields.prompt_bytes = request.prompt_bytes;
  fields.prompt_ids = request.prompt_ids;
  fields.prompt_id_count = request.prompt_id_count;
  fields.part_count = request.part_count;
  if (request.parts != nullptr) {
    if (fd_status* bad = ReadParts(request.parts, request.part_count, &out->parts); bad != nullptr) return bad;
    fields.parts = out->parts.data();
  }
  fields.user = request.user;
  fields.deadline_ns = request.deadline_ns;
  fields.max_tokens = request.max_tokens;
  fields.min_tokens = request.min_tokens;
  fields.ignore_eos = request.ignore_eos != 0;
  fields.include_stop = request.include_stop != 0;
  fields.stop_token_ids = request.stop_token_ids;
  fields.stop_token_id_count = request.stop_token_id_count;
  fields.stop = request.stop;
  fields.stop_count = request.stop_count;
  fields.seed = request.seed;
  fields.temperature = request.temperature;
  fields.top_k = request.top_k;
  fields.top_p = request.top_p;
  fields.min_p = request.min_p;
  fields.repetition_penalty = request.repetition_penalty;
  fields.presence_penalty = request.presence_penalty;
  fields.frequency_penalty = request.frequency_penalty;
  fields.logprobs = request.logprobs;
  fields.prompt_logprobs = request.prompt_logprobs;
  fields.logit_bias_count = request.logit_bias_count;
  if (request.logit_bias != nullptr) {
    for (size_t i = 0; i < request.logit_bias_count; ++i) {
      out->biases.push_back({request.logit_bias[i].token, request.logit_bias[i].bias});
    }
    fields.logit_bias = out->biases.data();
  }
  fields.show_special = request.show_special != 0;
  fields.hides_special = request.show_special == 2;
  fields.pause_events = request.pause_events != 0;
  fields.answers = request.n;
  fields.prefix_cache = request.no_prefix_cache == 0;
  fields.cache_salt = request.cache_salt;
  fields.cache_salt_bytes = request.cache_salt_bytes;
  return nullptr;
}

}  // namespace fastdecode
