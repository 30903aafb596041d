#ifndef FASTDECODE_TESTS_ENGINE_TEXT_EXPECT_GOLDEN_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_EXPECT_GOLDEN_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace fastdecode {

// The texts of texts.json.
std::vector<std::string> GoldenTexts();
// Those that a golden is about: of `all` the ones whose numbers are its "text_numbers", and then its "texts".
std::vector<std::string> TextsOf(const nlohmann::json& golden, const std::vector<std::string>& all);

// That this tokenizer, whole and as a stream, gives what the golden says.
//
// `golden` has one encoding for each of `texts`; "decoded" is left out where it is the text itself, "skipped" where it
// is what was decoded, "before" and "after" where special tokens add nothing, "as_text" (the ids where special tokens
// in the text are none) where that makes no difference. "judges_around" is false where its program does not say what
// stands around a text.
void ExpectGolden(const Tokenizer& tokenizer, const nlohmann::json& golden, const std::vector<std::string>& texts);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_EXPECT_GOLDEN_H_
