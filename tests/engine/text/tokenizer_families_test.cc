// Tokenizers that are not byte-level BPE in a tokenizer.json alone, against the programs that they come from: see
// tests/golden/make_family_goldens.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/engine/text/expect_golden.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;

class TokenizerFolderTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerFolderTest, EqualsItsReference) {
  const std::string name = GetParam();
  const auto tokenizer = Tokenizer::Load(GoldenPath(name));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json golden = ReadGoldenJson(name + "/golden.json");
  const std::vector<std::string> texts = TextsOf(golden, GoldenTexts());
  ASSERT_GE(texts.size(), 30u);
  ExpectGolden(**tokenizer, golden, texts);
  // What only some goldens say.
  if (golden.contains("special")) {
    const std::vector<int> special = golden["special"];
    for (int id = 0; id < (*tokenizer)->vocab_size(); ++id) {
      EXPECT_EQ((*tokenizer)->IsSpecial(id), std::count(special.begin(), special.end(), id) > 0) << id;
    }
  }
  const std::pair<const char*, std::optional<int>> named[] = {{"bos_id", (*tokenizer)->bos_id()},
                                                              {"eos_id", (*tokenizer)->eos_id()}};
  for (const auto& [field, id] : named) {
    if (!golden.contains(field)) continue;
    EXPECT_EQ(id, golden[field].is_null() ? std::nullopt : std::optional<int>(golden[field].get<int>())) << field;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TokenizerFolderTest,
                         testing::Values("llama2", "spm", "spm_plain", "tekken", "tekken_special", "named_decoder",
                                         "named_flags", "named_config", "named_map"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(TokenizerFamilies, EqualHuggingFace) {
  const json families = ReadGoldenJson("families.json");
  const std::vector<std::string> texts = GoldenTexts();
  ASSERT_GE(families.size(), 90u);
  for (const json& family : families) {
    SCOPED_TRACE(family["kind"].get<std::string>() + "/" + family["name"].get<std::string>());
    json document = ReadGoldenJson(family["base"].get<std::string>() + "/tokenizer.json");
    document.merge_patch(family["patch"]);
    const auto tokenizer = ParseTokenizer(document);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (tokenizer.ok()) ExpectGolden(**tokenizer, family, TextsOf(family, texts));
  }
}

}  // namespace
}  // namespace fastdecode
