// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside a vocabulary, where goldens of
// transformers (tokenizer_families_test.cc) do not reach.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
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
  EXPECT_THAT((*named)->warnings(), testing::IsEmpty());
}

// The vocabulary itself may call a token bos, too: templates then know it by its new name.
TEST(TokenizerConfig, NamesBosThatTheVocabularyOnlyNumbers) {
  const auto plain = Tokenizer::Parse(Tekken(json::object()));
  const auto named =
      Tokenizer::Parse(Tekken({{"added_tokens_decoder", {{"1", {{"content", "<|go|>"}, {"special", true}}}}}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(named.ok()) << named.status();
  const auto bos_of = [](const Tokenizer& tokenizer) {
    const std::map<std::string, std::string> names(tokenizer.named_tokens().begin(), tokenizer.named_tokens().end());
    return names.contains("bos_token") ? names.at("bos_token") : "none";
  };
  EXPECT_EQ(bos_of(**plain), "<s>");
  EXPECT_EQ(bos_of(**named), "<|go|>");
  for (const auto* tokenizer : {plain->get(), named->get()}) {
    EXPECT_EQ(tokenizer->bos_id(), 1);
    EXPECT_EQ(tokenizer->vocab_size(), (*plain)->vocab_size());
    EXPECT_EQ(tokenizer->Encode("", true), Ids({1}));
    EXPECT_EQ(tokenizer->Encode(bos_of(*tokenizer), false), Ids({1}));
  }
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
  EXPECT_THAT((*tokenizer)->warnings(),
              testing::ElementsAre("dir/tokenizer_config.json: added_tokens_decoder gives \"<|new|>\" id 5000, but it "
                                   "gets 770, the next free one"));
}

std::vector<std::string> WarningsOf(const TokenizerFiles& files) {
  const auto tokenizer = Tokenizer::Parse(files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? (*tokenizer)->warnings() : std::vector<std::string>();
}

// A field that transformers follows and that is not followed here is named; each of these says what transformers'
// default is, too, and then there is nothing to say.
TEST(TokenizerConfig, WarnsOfFieldsThatAreNotFollowed) {
  const std::string byte_level = ReadGolden("base/tokenizer.json");
  json spaced = json::parse(byte_level);
  spaced["pre_tokenizer"]["add_prefix_space"] = true;
  const struct {
    const json& document;
    const char* config;
    const char* warning;  // empty: none
  } cases[] = {
      {json::parse(byte_level), R"({"split_special_tokens": true})", "split_special_tokens is true"},
      {json::parse(byte_level), R"({"split_special_tokens": false})", ""},
      {json::parse(byte_level), R"({"split_special_tokens": null, "clean_up_tokenization_spaces": true})", ""},
      {json::parse(byte_level), R"({"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": true})",
       "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output is true"},
      {json::parse(byte_level), R"({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]})",
       R"(fast_tokenizer_files is ["tokenizer.4.0.0.json"], which is not followed: tokenizer.json is read)"},
      {json::parse(byte_level), R"({"fast_tokenizer_files": ["tokenizer.json"]})", ""},
      {json::parse(byte_level), R"({"fast_tokenizer_files": []})", ""},
      {json::parse(byte_level), R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})",
       "add_prefix_space is true, but dir/tokenizer.json puts no space before a text, which is followed; transformers "
       "5's GPT2Tokenizer follows add_prefix_space"},
      {json::parse(byte_level), R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false})", ""},
      {json::parse(byte_level), R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": null})", ""},
      {json::parse(byte_level), R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})", ""},
      {spaced, R"({"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": false})",
       "add_prefix_space is false, but dir/tokenizer.json puts a space before a text"},
      {spaced, R"({"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": true})", ""},
      {json::parse(ReadGolden("llama2/tokenizer.json")),
       R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false})",
       "add_prefix_space is false, but dir/tokenizer.json puts a space before a text"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.config);
    const auto warnings = WarningsOf({"dir", c.document.dump(), std::string(c.config)});
    if (*c.warning == 0) {
      EXPECT_THAT(warnings, testing::IsEmpty());
    } else {
      EXPECT_THAT(warnings,
                  testing::ElementsAre(testing::HasSubstr(std::string("dir/tokenizer_config.json: ") + c.warning)));
    }
  }
}

// transformers 4 puts bos before a text of a tokenizer.model, transformers 5 only if it is told to.
TEST(TokenizerConfig, SaysWhereBosComesFromIfNoFileDoes) {
  TokenizerFiles files = {.dir = "dir"};
  files.vocabulary = ReadGolden("spm/tokenizer.model");
  files.vocabulary_name = "tokenizer.model";
  const struct {
    const char* config;
    Ids around;
    bool warns;
  } cases[] = {
      {"{}", {1}, true},
      {R"({"add_bos_token": null})", {1}, true},
      {R"({"add_bos_token": true})", {1}, false},
      {R"({"add_bos_token": false})", {}, false},
      {R"({"add_bos_token": 0, "add_eos_token": 1})", {2}, false},
      {R"({"bos_token": null})", {}, false},
      {R"({"bos_token": "</s>"})", {2}, true},
      {R"({"bos_token": "</s>", "add_bos_token": true})", {2}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.config);
    files.tokenizer_config_json = c.config;
    const auto tokenizer = Tokenizer::Parse(files);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("", true), c.around);
    EXPECT_EQ((*tokenizer)->warnings().size(), c.warns ? 1u : 0u);
    if (c.warns) {
      EXPECT_THAT((*tokenizer)->warnings(),
                  testing::ElementsAre(testing::HasSubstr("dir/tokenizer.model: bos is put before a text")));
    }
  }
}

// Where added_tokens.json numbers tokens otherwise than tokenizer.json, that counts; the ids are those of transformers.
TEST(TokenizerConfig, WarnsOfTokensThatTwoFilesNumberOtherwise) {
  json document = json::parse(ReadGolden("base/tokenizer.json"));
  for (const char* content : {"<a>", "<b>"}) {
    json token = {{"id", 1000 + document["added_tokens"].size()}, {"content", content}};
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) token[flag] = false;
    document["added_tokens"].push_back(token);
  }
  const struct {
    const char* added;
    Ids of_c;  // the ids of "<c>"
    const char* warning;
  } cases[] = {
      {R"({"<a>": 1000, "<c>": 1002})", {1002}, ""},
      {R"({"<c>": 1005})", {1002}, R"(gives "<c>" id 1005, but it gets 1002, the next free one)"},
      {R"({"<a>": 1005, "<c>": 1006})", {1002}, R"(gives "<a>" id 1005, but it gets 1000, as in the vocabulary)"},
      {R"({"<c>": 1001})", {27, 66, 29}, R"(gives "<c>" id 1001, which is that of "<b>" in tokenizer.json)"},
      {R"({})", {27, 66, 29}, ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.added);
    TokenizerFiles files = {.dir = "dir", .tokenizer_json = document.dump()};
    files.added_tokens_json = c.added;
    const auto tokenizer = Tokenizer::Parse(files);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("<c>", false), c.of_c);
    EXPECT_EQ((*tokenizer)->Encode("<a><b>", false), Ids({1000, 1001}));
    EXPECT_EQ((*tokenizer)->warnings().size(), *c.warning == 0 ? 0u : 1u);
    if (*c.warning != 0) {
      EXPECT_THAT((*tokenizer)->warnings(),
                  testing::ElementsAre(testing::HasSubstr(std::string("dir/added_tokens.json: ") + c.warning)));
    }
  }
}

// vocab.json and merges.txt do not say how text is cut; goldens for those that do are in odd.json.
TEST(TokenizerConfig, NamesWhatTwoFilesOfBpeLack) {
  const struct {
    const char *vocab, *merges, *config, *message;
  } cases[] = {
      {R"({"a": 0})", "", "{}", "and tokenizer_class of tokenizer_config.json is missing; name the class, or make a"},
      {R"({"a": 0})", "", R"({"tokenizer_class": "RobertaTokenizer"})",
       "tokenizer_class of tokenizer_config.json is RobertaTokenizer; name the class"},
      {R"({"a": 0})", "", R"({"tokenizer_class": "LlamaTokenizer"})", "is LlamaTokenizer; name the class"},
      {"[", "", R"({"tokenizer_class": "GPT2Tokenizer"})", "dir/vocab.json: not valid JSON"},
      {R"({"a": "0"})", "", R"({"tokenizer_class": "GPT2Tokenizer"})", R"(model.vocab["a"] is "0", expected an id)"},
      {R"({"a": 0})", "#version: 0.2\na b\n", R"({"tokenizer_class": "GPT2Tokenizer"})",
       R"(dir/vocab.json, merges.txt: model.merges[0] is "a b": "b" is not in model.vocab)"},
      {R"({"a": 0, "aa": 1})", "a a\r\n\na\n", R"({"tokenizer_class": "GPT2Tokenizer"})",
       R"(model.merges[1] is "a", expected two tokens)"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    TokenizerFiles files = {.dir = "dir"};
    files.vocab_json = c.vocab;
    files.merges_txt = c.merges;
    files.tokenizer_config_json = c.config;
    const auto tokenizer = Tokenizer::Parse(files);
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_THAT(std::string(tokenizer.status().message()),
                testing::AllOf(testing::StartsWith("dir/vocab.json"), testing::HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace fastdecode
