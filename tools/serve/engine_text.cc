#include "tools/serve/engine_text.h"

#include <algorithm>

#include "tools/serve/api_error.h"

namespace fastdecode::serve {

void ThrowApiError(fd_status* status, std::string_view param) {
  if (status == nullptr) return;
  ApiError error;
  error.message = fd_status_message(status);
  const fd_code code = fd_status_code(status);
  fd_status_destroy(status);
  switch (code) {
    case FD_INVALID_ARGUMENT:
      error.param = param;
      break;
    case FD_RESOURCE_EXHAUSTED:
      error.status = 503;
      error.type = "overloaded_error";
      error.code = "queue_full";
      error.retry_after_s = 1;
      break;
    case FD_UNAVAILABLE:
      error.status = 503;
      error.type = "overloaded_error";
      error.code = "shutting_down";
      error.retry_after_s = 5;
      break;
    default:
      error.status = 500;
      error.type = "server_error";
  }
  throw error;
}

std::vector<int32_t> TokenizeParts(const fd_engine* engine, const fd_prompt_part* parts, size_t count,
                                   bool add_special_tokens, std::string_view param) {
  std::vector<int32_t> ids(16);
  const char* at = reinterpret_cast<const char*>(parts);
  for (size_t i = 0; i < count; ++i, at += parts->struct_size) {
    ids.resize(ids.size() + reinterpret_cast<const fd_prompt_part*>(at)->text_bytes);
  }
  for (;;) {  // there are rarely more tokens than bytes; they are asked for again then
    size_t needed = 0;
    ThrowApiError(fd_tokenize(engine, parts, count, add_special_tokens, ids.data(), ids.size(), &needed), param);
    const bool complete = needed <= ids.size();
    ids.resize(needed);
    if (complete) return ids;
  }
}

std::vector<int32_t> Tokenize(const fd_engine* engine, std::string_view text, bool add_special_tokens) {
  fd_prompt_part part = {};
  part.struct_size = sizeof(part);
  part.special = 1;
  part.text = text.data();
  part.text_bytes = text.size();
  return TokenizeParts(engine, &part, 1, add_special_tokens, "prompt");
}

std::string Detokenize(const fd_engine* engine, const std::vector<int32_t>& ids, bool special, std::string_view param) {
  char* text = nullptr;
  size_t bytes = 0;
  const auto detokenize = special ? fd_detokenize_special : fd_detokenize;
  ThrowApiError(detokenize(engine, ids.data(), ids.size(), &text, &bytes), param);
  std::string copy(text, bytes);
  fd_string_free(text);
  return copy;
}

std::string TokenBytes(const fd_engine* engine, int32_t id) {
  std::string bytes(32, '\0');
  const size_t count = fd_token_bytes(engine, id, bytes.data(), bytes.size());
  const bool complete = count <= bytes.size();
  bytes.resize(count);
  if (!complete) fd_token_bytes(engine, id, bytes.data(), bytes.size());
  return bytes;
}

size_t LongestToken(const fd_engine* engine) {
  size_t longest = 0;
  const int32_t vocab = fd_vocab_size(engine);
  for (int32_t id = 0; id < vocab; ++id) longest = std::max(longest, fd_token_bytes(engine, id, nullptr, 0));
  return longest;
}

void CheckTokenIds(const fd_engine* engine, const std::string& field, const std::vector<int32_t>& ids) {
  const int32_t vocab = fd_vocab_size(engine);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw BadField(field.substr(0, field.find('[')), field + "[" + std::to_string(i) + "]: " + std::to_string(ids[i]) +
                                                         " is no token id; the vocabulary has " +
                                                         std::to_string(vocab));
  }
}

}  // namespace fastdecode::serve
