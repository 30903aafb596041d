#ifndef FASTDECODE_TOOLS_SERVE_ENGINE_TEXT_H_
#define FASTDECODE_TOOLS_SERVE_ENGINE_TEXT_H_

#include <fastdecode/fastdecode.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode::serve {

// The engine's tokenizer, with errors as the API has them. Thread: any.

// Throws the ApiError of a status, if there is one, and destroys it. `param`: the field at fault if the engine refuses
// a value.
void ThrowApiError(fd_status* status, std::string_view param);

// The ids of a prompt's parts, see fd_tokenize. `param`: the field that they are of.
std::vector<int32_t> TokenizeParts(const fd_engine* engine, const fd_prompt_part* parts, size_t count,
                                   bool add_special_tokens, std::string_view param);
// A text in which special tokens become their ids, as those of /v1/completions do.
std::vector<int32_t> Tokenize(const fd_engine* engine, std::string_view text, bool add_special_tokens);
// `param`: the field that the ids are of.
std::string Detokenize(const fd_engine* engine, const std::vector<int32_t>& ids, bool special, std::string_view param);
// See fd_token_bytes.
std::string TokenBytes(const fd_engine* engine, int32_t id);
// Bytes of the longest token; 0: there is no tokenizer.
size_t LongestToken(const fd_engine* engine);
// Throws ApiError for an id that the vocabulary does not have. `field`: as the message names it, such as "prompt[3]".
void CheckTokenIds(const fd_engine* engine, const std::string& field, const std::vector<int32_t>& ids);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ENGINE_TEXT_H_
