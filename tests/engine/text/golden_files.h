#ifndef FASTDECODE_TESTS_ENGINE_TEXT_GOLDEN_FILES_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_GOLDEN_FILES_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace fastdecode {

// A file of tests/golden/tokenizer, which make_tokenizer_goldens.py writes.
std::string GoldenPath(const std::string& name);
nlohmann::json ReadGoldenJson(const std::string& name);

// What Tokenizer::Parse makes of this document.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const nlohmann::json& tokenizer);

// The bytes of an entry {"text": string} or {"hex": digits}.
std::string TextBytes(const nlohmann::json& entry);

// The text of these tokens, one after the other. Ends the process if a piece of it is not whole characters.
std::string DecodeAsStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_GOLDEN_FILES_H_
