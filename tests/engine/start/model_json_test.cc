#include "engine/start/model_json.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/engine/request/llama2_tokenizer.h"

namespace fastdecode {
namespace {

using nlohmann::json;

ModelSpec Spec(std::vector<int> eos_token_ids) {
  ModelSpec spec;
  spec.family = "mistral";
  spec.vocab = 100;
  spec.eos_token_ids = std::move(eos_token_ids);
  return spec;
}

std::unique_ptr<Tokenizer> Parse(const std::string& tokenizer_json, const std::string& config_json) {
  TokenizerFiles files;
  files.dir = "/m";
  files.tokenizer_json = tokenizer_json;
  files.tokenizer_config_json = config_json;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Parse(files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// kLlama2TokenizerJson with another template around a text.
std::string WithTemplate(const json& single) {
  json tokenizer = json::parse(kLlama2TokenizerJson);
  tokenizer["post_processor"]["single"] = single;
  tokenizer["post_processor"]["special_tokens"]["</s>"] = {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}};
  return tokenizer.dump();
}

json Special(const char* name) { return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; }
const json kText = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};

constexpr const char* kNamed = R"({"bos_token": "<s>", "eos_token": "</s>"})";

json Describe(const Tokenizer* tokenizer, const ModelSpec& spec = Spec({})) {
  return json::parse(ModelToJson("/m", spec, 64, tokenizer));
}

TEST(ModelJsonTest, SaysWhatTheTokenizerPutsAroundAText) {
  const struct {
    json single;
    bool bos, eos;
  } cases[] = {{{kText}, false, false},
               {{Special("<s>"), kText}, true, false},
               {{kText, Special("</s>")}, false, true},
               {{Special("<s>"), kText, Special("</s>")}, true, true},
               {{Special("</s>"), kText, Special("<s>")}, false, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.single.dump());
    const auto tokenizer = Parse(WithTemplate(c.single), kNamed);
    ASSERT_NE(tokenizer, nullptr);
    const json model = Describe(tokenizer.get());
    EXPECT_EQ(model["add_bos_token"], c.bos);
    EXPECT_EQ(model["add_eos_token"], c.eos);
    EXPECT_EQ(model["bos_token"], "<s>");
    EXPECT_EQ(model["bos_token_id"], kLlama2Bos);
    EXPECT_EQ(model["eos_token"], "</s>");
    EXPECT_EQ(model["eos_token_id"], kLlama2Eos);
    EXPECT_EQ(model["tokenizer_file"], "/m/tokenizer.json");
  }
}

// GPT-2 has one token for both: where it stands says which of the two it is.
TEST(ModelJsonTest, OneTokenMayBeBoth) {
  constexpr const char* kOne = R"({"bos_token": "</s>", "eos_token": "</s>"})";
  const json behind = Describe(Parse(WithTemplate({kText, Special("</s>")}), kOne).get());
  EXPECT_EQ(behind["add_bos_token"], false);
  EXPECT_EQ(behind["add_eos_token"], true);
  const json before = Describe(Parse(WithTemplate({Special("</s>"), kText}), kOne).get());
  EXPECT_EQ(before["add_bos_token"], true);
  EXPECT_EQ(before["add_eos_token"], false);
}

TEST(ModelJsonTest, StopTokensAreTheModelsAndTheTokenizers) {
  const auto tokenizer = Parse(kLlama2TokenizerJson, kNamed);
  EXPECT_EQ(Describe(tokenizer.get(), Spec({9, 4}))["stop_token_ids"], json({2, 4, 9}));
  EXPECT_EQ(Describe(tokenizer.get(), Spec({2}))["stop_token_ids"], json({2}));
  EXPECT_EQ(Describe(nullptr, Spec({9, 4, 9}))["stop_token_ids"], json({4, 9}));
  EXPECT_EQ(Describe(nullptr)["stop_token_ids"], json::array());
  ModelSpec small = Spec({1});
  small.vocab = 2;
  EXPECT_EQ(Describe(tokenizer.get(), small)["stop_token_ids"], json({1})) << "the model has no token 2";
}

TEST(ModelJsonTest, WithoutATokenizerItsFieldsAreNull) {
  EXPECT_EQ(Describe(nullptr, Spec({5})), json({{"model", "/m"},
                                                {"architecture", "MistralForCausalLM"},
                                                {"vocab_size", 100},
                                                {"max_context", 64},
                                                {"tokenizer_file", nullptr},
                                                {"bos_token", nullptr},
                                                {"bos_token_id", nullptr},
                                                {"eos_token", nullptr},
                                                {"eos_token_id", nullptr},
                                                {"stop_token_ids", {5}},
                                                {"add_bos_token", false},
                                                {"add_eos_token", false}}));
}

// Names of folders are bytes, and JSON is UTF-8.
TEST(ModelJsonTest, APathThatIsNotUtf8IsReplacedThere) {
  EXPECT_EQ(json::parse(ModelToJson("/m\xFFx", Spec({}), 64, nullptr))["model"], "/m\xEF\xBF\xBDx");
}

}  // namespace
}  // namespace fastdecode
