#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/model/model_config.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kConfig[] = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
    "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6, "eos_token_id": 2})";

ModelSpec Parse(const std::string& generation) {
  const auto spec = ParseModelSpec(kConfig, generation, "dir");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

// Transformers then makes the generation config from config.json.
TEST(GenerationConfig, AFileThatCannotBeReadDoesNotCount) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON: [json.exception.parse_error.101]"},
      {"", "not valid JSON: it is empty"},
      {"version https://git-lfs.github.com/spec/v1\n", "not valid JSON: it is a pointer that git-lfs left"},
      {"[]", "content is [], expected a JSON object"},
      {"null", "content is null, expected a JSON object"}};
  for (const auto& [text, why] : cases) {
    const ModelSpec spec = Parse(text);
    EXPECT_THAT(spec.eos_token_ids, ElementsAre(2)) << text;
    EXPECT_EQ(spec.sampling, SamplingDefaults());
    ASSERT_EQ(spec.notes.size(), 1u);
    EXPECT_THAT(spec.notes[0], testing::StartsWith("dir/generation_config.json: " + std::string(why)));
    EXPECT_THAT(spec.notes[0], testing::EndsWith(": the file does not count; where to stop is what config.json says"));
  }
  EXPECT_THAT(Parse("{}").notes, IsEmpty());

  ScratchDir dir;
  dir.Write("config.json", kConfig);
  std::filesystem::create_symlink("gone", dir.File("generation_config.json"));
  const auto spec = ReadModelSpec(dir.path());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->notes,
              ElementsAre(dir.File("generation_config.json") +
                          ": a link to nothing: the file does not count; where to stop is what config.json "
                          "says"));
}

TEST(GenerationConfig, AWrongValueOfSamplingDoesNotCountAndTheOthersDo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": NaN)", "temperature is NaN, expected a number from 0 to 100"},
      {R"("temperature": "hot")", "temperature is \"hot\", expected a number from 0 to 100"},
      {R"("temperature": -1)", "temperature is -1, expected a number from 0 to 100"},
      {R"("top_p": 1.5)", "top_p is 1.5, expected a number from 1e-06 to 1"},
      {R"("top_k": -3)", "top_k is -3, expected an integer from 0 to 2147483647"},
      {R"("do_sample": 1)", "do_sample is 1, expected true or false"},
      {R"("repetition_penalty": Infinity)", "repetition_penalty is Infinity, expected a number from 0.01 to 100"}};
  for (const auto& [field, why] : cases) {
    const ModelSpec spec = Parse("{" + std::string(field) + R"(, "min_p": 0.25, "eos_token_id": [7, 8]})");
    SamplingDefaults expected;
    expected.min_p = 0.25f;
    EXPECT_EQ(spec.sampling, expected) << field;
    EXPECT_THAT(spec.eos_token_ids, ElementsAre(7, 8));
    EXPECT_THAT(spec.notes, ElementsAre("dir/generation_config.json: " + std::string(why) + ": it does not count"));
  }
  EXPECT_THAT(Parse(R"({"unread": NaN, "top_k": 40.0})").notes, IsEmpty());
  EXPECT_EQ(Parse(R"({"unread": NaN, "top_k": 40.0})").sampling.top_k, 40);
}

TEST(GenerationConfig, EmptyListsOfStopTokensLeaveConfigs) {
  EXPECT_THAT(Parse(R"({"eos_token_id": []})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(R"({"eos_token_id": []})").notes,
              ElementsAre("dir/generation_config.json: eos_token_id is []: where to stop is what config.json says"));
  EXPECT_THAT(Parse(R"({"eos_token_id": null})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(R"({"eos_token_id": [1000, 5]})").eos_token_ids, ElementsAre(5));
  EXPECT_THAT(Parse(R"({"eos_token_id": 1000})").eos_token_ids, ElementsAre(2));
  const auto wrong = ParseModelSpec(kConfig, R"({"eos_token_id": "</s>"})", "dir");
  EXPECT_THAT(std::string(wrong.status().message()),
              HasSubstr("dir/generation_config.json: eos_token_id is \"</s>\", expected a token id from 0 to 63"));
}

}  // namespace
}  // namespace fastdecode
