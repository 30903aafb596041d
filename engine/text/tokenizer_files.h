#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// The files that describe a tokenizer, as they are on disk.
struct TokenizerFiles {
  std::string dir;  // only for messages
  std::string tokenizer_json;
  std::optional<std::string> tokenizer_config_json;    // bos_token, eos_token and whether to add them
  std::optional<std::string> special_tokens_map_json;  // the same, where the config has none
};

// Errors: NotFound without a tokenizer.json; what absl::ErrnoToStatus makes of unreadable files.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir);

// Reads tokenizer_json, then from the others bos and eos, and whether they are put around a text. Errors as of
// ParseTokenizerJson.
absl::StatusOr<TokenizerSpec> ParseTokenizerSpec(const TokenizerFiles& files);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_
