#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_JSON_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Reads the text of a tokenizer.json; `file` is only named in errors, with field and value. bos_id and eos_id stay
// empty. Errors: Unimplemented for a well-formed tokenizer that is not BPE, or uses a step that is not built (its
// model can still run on token ids); InvalidArgument for a broken file.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text, const std::string& file);
// The same of what it holds.
absl::StatusOr<TokenizerSpec> ParseTokenizerDocument(const nlohmann::json& root, const std::string& file);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_JSON_H_
