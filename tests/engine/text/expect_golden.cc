#include "tests/engine/text/expect_golden.h"

#include <gtest/gtest.h>

#include "engine/text/stream_detokenizer.h"
#include "engine/text/utf8.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

void ExpectDecodes(const Tokenizer& tokenizer, const Ids& ids, const std::string& decoded, const std::string& skipped) {
  EXPECT_EQ(tokenizer.Decode(ids, false), decoded);
  EXPECT_EQ(tokenizer.Decode(ids, true), skipped);
  EXPECT_EQ(DecodeAsStream(tokenizer, ids, false), decoded);
  EXPECT_EQ(DecodeAsStream(tokenizer, ids, true), skipped);
}

// These ids between the ones that the golden names as standing before and after a text.
Ids Around(const Ids& ids, const json& encoding) {
  Ids result = encoding.value("before", Ids());
  const Ids after = encoding.value("after", Ids());
  result.insert(result.end(), ids.begin(), ids.end());
  result.insert(result.end(), after.begin(), after.end());
  return result;
}

}  // namespace

std::vector<std::string> GoldenTexts() {
  std::vector<std::string> texts;
  for (const json& entry : ReadGoldenJson("texts.json")) texts.push_back(TextBytes(entry));
  return texts;
}

std::vector<std::string> TextsOf(const json& golden, const std::vector<std::string>& all) {
  std::vector<std::string> texts;
  for (const size_t number : golden.value("text_numbers", std::vector<size_t>())) texts.push_back(all.at(number));
  for (const std::string& text : golden.value("texts", std::vector<std::string>())) texts.push_back(text);
  return texts;
}

void ExpectGolden(const Tokenizer& tokenizer, const json& golden, const std::vector<std::string>& texts) {
  EXPECT_EQ(tokenizer.vocab_size(), golden["vocab_size"].get<int>());
  ASSERT_EQ(golden["encodings"].size(), texts.size());
  const bool judges_around = golden.value("judges_around", true);
  for (size_t i = 0; i < texts.size(); ++i) {
    const json& expected = golden["encodings"][i];
    SCOPED_TRACE("text " + std::to_string(i) + ": " + texts[i].substr(0, 200));
    const Ids ids = expected["ids"];
    EXPECT_EQ(tokenizer.Encode(texts[i], false), ids);
    if (judges_around) {
      EXPECT_EQ(tokenizer.Encode(texts[i], true), Around(ids, expected));
    }
    const Tokenizer::Part as_text = {texts[i], /*special=*/false, {}};
    EXPECT_EQ(tokenizer.EncodeParts({&as_text, 1}, false), expected.value("as_text", ids));
    const std::string decoded = expected.value("decoded", ReplaceInvalidUtf8(texts[i]));
    ExpectDecodes(tokenizer, ids, decoded, expected.value("skipped", decoded));
  }
  for (const json& expected : golden["decodes"]) {
    SCOPED_TRACE("ids " + expected["ids"].dump());
    ExpectDecodes(tokenizer, expected["ids"], expected["decoded"], expected["skipped"]);
  }
}

}  // namespace fastdecode
