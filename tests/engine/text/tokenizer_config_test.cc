// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside a vocabulary, where goldens of
// transformers (tokenizer_families_test.cc) do not reach.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string ReadGolden(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(GoldenPath(name)).rdbuf();
  return text.str();
}

TokenizerFiles Tekken(const json& config) {
  TokenizerFiles files = {.dir = "dir"};
  files.vocabulary = ReadGolden("tekken/tekken.json");
  files.vocabulary_name = "tekken.json";
  files.tokenizer_config_json = config.dump();
  return files;
}

// Files of ranks do not name all special tokens: what the config calls an id is its name.
TEST(TokenizerConfig, NamesTokensThatTheVocabularyOnlyNumbers) {
  const json token = {{"content", "<|tool|>"}, {"special", true}};
  const auto plain = Tokenizer::Parse(Tekken(json::object()));
  const auto named = Tokenizer::Parse(Tekken({{"added_tokens_decoder", {{"39", token}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ((*plain)->TokenBytes(39), "<SPECIAL_39>");
  EXPECT_EQ((*named)->TokenBytes(39), "<|tool|>");
  EXPECT_EQ((*named)->Encode("<|tool|>", false), Ids({39}));
  EXPECT_GT((*named)->Encode("<SPECIAL_39>", false).size(), 1u);
  EXPECT_EQ((*named)->vocab_size(), (*plain)->vocab_size());
  EXPECT_EQ((*named)->warning(), "");
}

// Fine-tuned Llama models bring tokenizer.model and added_tokens.json alone. Flags as transformers gives them.
TEST(TokenizerConfig, TakesAddedTokensJson) {
  TokenizerFiles files = {.dir = "dir"};
  files.vocabulary = ReadGolden("spm/tokenizer.model");
  files.vocabulary_name = "tokenizer.model";
  const auto plain = Tokenizer::Parse(files);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const int32_t next = (*plain)->vocab_size();
  files.added_tokens_json = json{{"<|im_end|>", next}, {"<|word|>", next + 1}}.dump();
  files.tokenizer_config_json = R"({"eos_token": "<|im_end|>", "add_bos_token": false})";
  const auto tokenizer = Tokenizer::Parse(files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), next);
  EXPECT_TRUE((*tokenizer)->IsSpecial(next));
  EXPECT_FALSE((*tokenizer)->IsSpecial(next + 1));
  EXPECT_EQ((*tokenizer)->Encode("<|im_end|>", true), Ids({next}));
  EXPECT_EQ((*plain)->Encode("", true), Ids({1}));
}

// Which of the lists and names count, and in which order: as PreTrainedTokenizerFast of transformers 5.24.0 numbers
// them (added_tokens_decoder after from_pretrained).
TEST(TokenizerConfig, TakesNamedTokensAsTransformersDoes) {
  const struct {
    const char* config;
    const char* map;
    std::vector<std::string> tokens;  // from id 1000 on
  } cases[] = {
      {R"({"additional_special_tokens": ["<a>"]})", R"({"additional_special_tokens": ["<b>"]})", {"<a>"}},
      {"{}", R"({"additional_special_tokens": ["<b>"]})", {"<b>"}},
      {R"({"extra_special_tokens": ["<a>"]})", R"({"extra_special_tokens": ["<b>"]})", {"<a>", "<b>"}},
      {R"({"additional_special_tokens": ["<a>"], "extra_special_tokens": ["<e>"]})", "{}", {"<e>"}},
      {R"({"image_token": "<img>", "eos_token": "<e>", "extra_special_tokens": {"zz_token": "<z>"}})",
       "{}",
       {"<e>", "<img>", "<z>"}},
      {R"({"extra_special_tokens": {"zz_token": "<z>"}})",
       R"({"eos_token": "<e>", "video_token": "<v>"})",
       {"<e>", "<v>", "<z>"}},
      {R"({"image_token": {"content": "<img>"}})", "{}", {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.config) + c.map);
    const auto tokenizer =
        Tokenizer::Parse({"dir", ReadGolden("base/tokenizer.json"), std::string(c.config), std::string(c.map)});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::vector<std::string> tokens;
    for (int32_t id = 1000; id < (*tokenizer)->vocab_size(); ++id) tokens.push_back((*tokenizer)->TokenBytes(id));
    EXPECT_EQ(tokens, c.tokens);
  }
}

TEST(TokenizerConfig, WarnsOfATokenThatGetsAnotherId) {
  TokenizerFiles files = Tekken({{"added_tokens_decoder", {{"5000", {{"content", "<|new|>"}}}}}});
  const auto tokenizer = Tokenizer::Parse(files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->warning(),
              testing::HasSubstr("dir/tokenizer_config.json: added_tokens_decoder gives \"<|new|>\" id 5000, but it "
                                 "gets 770, the next free one"));
}

}  // namespace
}  // namespace fastdecode
