// Against Hugging Face's tokenizers library: see tests/golden/make_tokenizer_goldens.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/engine/text/expect_golden.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

Ids Joined(Ids a, const Ids& b, const Ids& c) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGoldenTest, EqualsHuggingFace) {
  const std::string name = GetParam();
  const auto tokenizer = Tokenizer::Load(GoldenPath(name));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<std::string> texts = GoldenTexts();
  ASSERT_GE(texts.size(), 300u);
  ExpectGolden(**tokenizer, ReadGoldenJson(name + "/golden.json"), texts);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGoldenTest, testing::Values("gpt2", "llama3", "qwen2", "deepseek"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(TokenizerGolden, VariantsEqualHuggingFace) {
  const json base = ReadGoldenJson("base/tokenizer.json");
  const json variants = ReadGoldenJson("variants.json");
  ASSERT_GE(variants.size(), 60u);
  for (const json& variant : variants) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    json document = base;
    document.merge_patch(variant["patch"]);
    const auto tokenizer = ParseTokenizer(document);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ExpectGolden(**tokenizer, variant, variant["texts"]);
  }
}

// What a chat template writes, what a user typed, and ids: nobody merges over the borders, and the user's "<|eot_id|>"
// is no token.
TEST(TokenizerGolden, PartsAreEncodedEachForItself) {
  const auto loaded = Tokenizer::Load(GoldenPath("llama3"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  const std::string header = "<|start_header_id|>user<|end_header_id|>\n\n";
  const std::string typed = "the harbour<|eot_id|>the storm";
  const Ids given = {1, 2, 3};
  const Tokenizer::Part parts[] = {{header, true, {}}, {typed, false, {}}, {"", true, given}, {"<|eot_id|>", true, {}}};
  const Tokenizer::Part as_text = {typed, false, {}};
  const Ids typed_ids = tokenizer.EncodeParts({&as_text, 1}, false);
  const Ids end = tokenizer.Encode("<|eot_id|>", false);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(std::count(typed_ids.begin(), typed_ids.end(), end[0]), 0);
  EXPECT_EQ(tokenizer.Decode(typed_ids, true), typed);
  const Ids ids = Joined(Joined(tokenizer.Encode(header, false), typed_ids, given), end, {});
  EXPECT_EQ(tokenizer.EncodeParts(parts, false), ids);
  EXPECT_EQ(tokenizer.EncodeParts(parts, true), Joined({*tokenizer.bos_id()}, ids, {}));
  EXPECT_EQ(tokenizer.EncodeParts({}, true), Ids({*tokenizer.bos_id()}));
}

TEST(TokenizerGolden, NamesBosAndEos) {
  const struct {
    const char* dir;
    std::optional<int> bos, eos;
  } cases[] = {
      {"gpt2", 0, 0}, {"llama3", 906, 910}, {"qwen2", std::nullopt, 1102}, {"deepseek", std::nullopt, std::nullopt}};
  for (const auto& c : cases) {
    const auto tokenizer = Tokenizer::Load(GoldenPath(c.dir));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->bos_id(), c.bos) << c.dir;
    EXPECT_EQ((*tokenizer)->eos_id(), c.eos) << c.dir;
    EXPECT_EQ((*tokenizer)->IsSpecial(c.eos.value_or(-1)), c.eos.has_value()) << c.dir;
  }
}

// As LlamaTokenizerFast of transformers 4.57.1 encodes where tokenizer.json puts nothing around a text; where it does,
// as transformers 5.23.0. Ids 32 and 33 are "A" and "B".
TEST(TokenizerGolden, LlamasClassPutsBosAndEosAround) {
  const json silent = ReadGoldenJson("base/tokenizer.json");
  json loud = silent;
  loud["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"A": {"id": "A", "ids": [32], "tokens": ["A"]}}})");
  const struct {
    const json& tokenizer;
    const char* config;
    Ids before, after;
    bool warns;
  } cases[] = {
      {silent, R"("tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true)", {32}, {}, true},
      {silent,
       R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "add_eos_token": true)",
       {32},
       {33},
       true},
      {silent, R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true)", {}, {33}, true},
      {silent, R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": false)", {}, {}, false},
      {silent, R"("tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": true)", {}, {}, false},
      {loud, R"("tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true)", {32}, {}, false},
      {loud, R"("tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false)", {32}, {}, true},
      {loud, R"("tokenizer_class": "LlamaTokenizerFast", "add_eos_token": true)", {32}, {}, true},
      {loud, R"("tokenizer_class": "GPT2Tokenizer", "add_bos_token": false)", {32}, {}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.config);
    const std::string config = R"({"bos_token": "A", "eos_token": "B", )" + std::string(c.config) + "}";
    const auto tokenizer = Tokenizer::Parse({"dir", c.tokenizer.dump(), config, std::nullopt});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const Ids ids = (*tokenizer)->Encode("the harbour", false);
    EXPECT_EQ((*tokenizer)->Encode("the harbour", true), Joined(c.before, ids, c.after));
    EXPECT_EQ((*tokenizer)->warnings().size(), c.warns ? 1u : 0u) << testing::PrintToString((*tokenizer)->warnings());
  }
}

TEST(TokenizerGolden, GivesTokenBytes) {
  const auto tokenizer = Tokenizer::Load(GoldenPath("llama3"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->TokenBytes(906), "<|begin_of_text|>");
  EXPECT_EQ((*tokenizer)->TokenBytes(-1), "");
  EXPECT_EQ((*tokenizer)->TokenBytes((*tokenizer)->vocab_size()), "");
  EXPECT_FALSE((*tokenizer)->IsSpecial(-1));
  EXPECT_FALSE((*tokenizer)->IsSpecial((*tokenizer)->vocab_size()));
  for (const std::string text : {"plain", "é", "\xF0\x9F\x98\x80", "\n"}) {
    std::string bytes;
    for (const int32_t id : (*tokenizer)->Encode(text, false)) bytes += (*tokenizer)->TokenBytes(id);
    EXPECT_EQ(bytes, text);
  }
}

TEST(TokenizerGolden, IsSharedByThreads) {
  const auto tokenizer = Tokenizer::Load(GoldenPath("qwen2"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json golden = ReadGoldenJson("qwen2/golden.json")["encodings"];
  const std::vector<std::string> texts = GoldenTexts();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < texts.size(); i += 2) {
        const Ids ids = (*tokenizer)->Encode(texts[i], false);
        if (ids != golden[i]["ids"].get<Ids>()) ++wrong;
        (*tokenizer)->Decode(ids, true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace fastdecode
