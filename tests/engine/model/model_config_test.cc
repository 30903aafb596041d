#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/shapes.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A small config with every field that is required, and some that we do not care for.
json SmallLlama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "initializer_range": 0.02,
    "num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 200, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "pretraining_tp": 1, "use_cache": true, "torch_dtype": "float16", "rope_theta": 20000, "rope_scaling": null,
    "bos_token_id": 1, "eos_token_id": 2
  })");
}

json SmallMistral() {
  json config = SmallLlama();
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = 128;
  return config;
}

ModelSpec Parse(const json& config, std::optional<std::string_view> generation = std::nullopt) {
  const auto spec = ParseModelSpec(config.dump(), generation, "dir");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

std::string ErrorOf(const json& config, std::optional<std::string_view> generation = std::nullopt) {
  const auto spec = ParseModelSpec(config.dump(), generation, "dir");
  EXPECT_FALSE(spec.ok()) << config;
  return std::string(spec.status().message());
}

TEST(ModelConfig, ReadsEveryField) {
  const ModelSpec spec = Parse(SmallLlama());
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.layers, 3);
  EXPECT_EQ(spec.hidden, 96);
  EXPECT_EQ(spec.heads, 6);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.intermediate, 200);
  EXPECT_EQ(spec.vocab, 1000);
  EXPECT_EQ(spec.max_context, 2048);
  EXPECT_EQ(spec.sliding_window, 0);
  EXPECT_EQ(spec.norm.epsilon, 1e-6);
  EXPECT_FALSE(spec.tied_embeddings);
  EXPECT_FALSE(spec.attention_bias);
  EXPECT_FALSE(spec.attention_output_bias);
  EXPECT_FALSE(spec.mlp_bias);
  EXPECT_EQ(spec.rope.theta, 20000.0);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kNone);
  EXPECT_THAT(spec.bos_token_ids, ElementsAre(1));
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfig, TakesDefaultsOfAbsentFields) {
  json config = SmallLlama();
  for (const char* name : {"architectures", "hidden_act", "num_key_value_heads", "rope_theta", "rope_scaling",
                           "bos_token_id", "eos_token_id"}) {
    config.erase(name);
  }
  const ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.kv_heads, 6);  // Llama 1 and 2: one KV head for each head
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_TRUE(spec.bos_token_ids.empty());
  EXPECT_TRUE(spec.eos_token_ids.empty());
}

TEST(ModelConfig, ReadsOptionalFields) {
  json config = SmallLlama();
  config["head_dim"] = 80;
  config["tie_word_embeddings"] = true;
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  config["eos_token_id"] = {5, 6};
  const ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.head_dim, 80);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_TRUE(spec.attention_bias);
  EXPECT_TRUE(spec.attention_output_bias);
  EXPECT_TRUE(spec.mlp_bias);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(5, 6));
}

TEST(ModelConfig, GenerationConfigSaysHowToSample) {
  const SamplingDefaults silent = Parse(SmallLlama(), R"({"eos_token_id": 2})").sampling;
  EXPECT_FALSE(silent.temperature || silent.top_k || silent.top_p || silent.min_p || silent.repetition_penalty);
  const SamplingDefaults all =
      Parse(SmallLlama(), R"({"do_sample": true, "temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.05,
                              "repetition_penalty": 1.1})")
          .sampling;
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 50);
  EXPECT_EQ(all.top_p, 0.9f);
  EXPECT_EQ(all.min_p, 0.05f);
  EXPECT_EQ(all.repetition_penalty, 1.1f);
  EXPECT_EQ(Parse(SmallLlama(), R"({"do_sample": false, "temperature": 0.6})").sampling.temperature, 0.0f);
  EXPECT_FALSE(Parse(SmallLlama(), R"({"temperature": null})").sampling.temperature.has_value());
}

TEST(ModelConfig, GenerationConfigDecidesWhereToStop) {
  EXPECT_THAT(Parse(SmallLlama(), R"({"eos_token_id": [7, 8, 9]})").eos_token_ids, ElementsAre(7, 8, 9));
  EXPECT_THAT(Parse(SmallLlama(), R"({"temperature": 0.6})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(ErrorOf(SmallLlama(), R"({"eos_token_id": "</s>"})"),
              HasSubstr("dir/generation_config.json: eos_token_id is \"</s>\", expected a token id from 0 to 999"));
}

TEST(ModelConfig, TokenIdsOutsideTheVocabularyDoNotCount) {
  json config = SmallLlama();
  config["bos_token_id"] = -1;
  config["eos_token_id"] = {2, 151329, 7};
  const ModelSpec spec = Parse(config);
  EXPECT_TRUE(spec.bos_token_ids.empty());
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(2, 7));
  EXPECT_THAT(
      spec.notes,
      ElementsAre("dir/config.json: bos_token_id -1 is none of the model's 1000 tokens: it does not count",
                  "dir/config.json: eos_token_id 151329 is none of the model's 1000 tokens: it does not count"));
}

TEST(ModelConfig, SlidingWindowIsMistrals) {
  json config = SmallMistral();
  EXPECT_EQ(Parse(config).sliding_window, 128);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(config).sliding_window, 0);
  config.erase("sliding_window");
  EXPECT_EQ(Parse(config).sliding_window, 4096);  // as in MistralConfig
  config["sliding_window"] = 64;
  config["use_sliding_window"] = false;  // Qwen's
  EXPECT_EQ(Parse(config).sliding_window, 64);
  config = SmallLlama();
  config["sliding_window"] = 64;
  EXPECT_EQ(Parse(config).sliding_window, 0);
  config = SmallMistral();
  config["sliding_window"] = 0;
  EXPECT_THAT(ErrorOf(config), HasSubstr("sliding_window is 0, expected an integer from 1"));
}

TEST(ModelConfig, ReadsRopeScalings) {
  json config = SmallLlama();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_EQ(spec.rope.factor, 2.5);
  EXPECT_EQ(spec.rope.theta, 20000.0);

  config["rope_scaling"] = json::parse(R"({"rope_type": "llama3", "factor": 32, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  spec = Parse(config);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kLlama3);
  EXPECT_EQ(spec.rope.factor, 32.0);
  EXPECT_EQ(spec.rope.low_freq_factor, 1.0);
  EXPECT_EQ(spec.rope.high_freq_factor, 4.0);
  EXPECT_EQ(spec.rope.original_context, 8192);

  for (const char* unscaled : {R"({"type": "default"})", R"({"rope_type": "default", "factor": 1.0})", "{}"}) {
    config["rope_scaling"] = json::parse(unscaled);
    EXPECT_EQ(Parse(config).rope.scaling, RopeSpec::Scaling::kNone) << unscaled;
  }
}

TEST(ModelConfig, ReadsNewerRopeParameters) {
  json config = SmallLlama();
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(Parse(config).rope.theta, 500000.0);
  EXPECT_EQ(Parse(config).rope.scaling, RopeSpec::Scaling::kNone);
  config["rope_parameters"] = {{"rope_type", nullptr}, {"rope_theta", 700000.0}, {"factor", nullptr}};
  EXPECT_EQ(Parse(config).rope.theta, 700000.0);
  EXPECT_EQ(Parse(config).rope.scaling, RopeSpec::Scaling::kNone);
  config["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 4}};
  EXPECT_EQ(Parse(config).rope.theta, 1e6);
  EXPECT_EQ(Parse(config).rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_EQ(Parse(config).rope.factor, 4.0);
}

TEST(ModelConfig, ReadsWhatOtherRopesNeed) {
  json config = SmallLlama();
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config).rope.scaling, RopeSpec::Scaling::kDynamic);
  config["partial_rotary_factor"] = 0.5;  // is not Llama's
  EXPECT_EQ(Parse(config).rope.dims, 0);

  config["rope_scaling"] = json::parse(R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16,
      "original_max_position_embeddings": 512, "truncate": false})");
  RopeSpec rope = Parse(config).rope;
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::kYarn);
  EXPECT_EQ(rope.original_context, 512);
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_NEAR(rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  config["rope_scaling"]["mscale"] = 0.5;
  config["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_NEAR(Parse(config).rope.attention_factor, (0.05 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1), 1e-12);
  config["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(Parse(config).rope.attention_factor, 1.5);

  const std::vector<double> factors = {1, 2, 3, 4, 5, 6, 7, 8};  // half a head
  config["rope_scaling"] = {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  config["original_max_position_embeddings"] = 1024;
  rope = Parse(config).rope;
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::kLongRope);
  EXPECT_EQ(rope.long_factors, factors);
  EXPECT_EQ(rope.original_context, 1024);
  EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(2.0) / std::log(1024.0)), 1e-12);
}

TEST(ModelConfig, RefusesRopeThatItCannotCompute) {
  json config = SmallLlama();
  config["rope_scaling"] = {{"type", "mrope"}, {"factor", 2.0}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: rope_scaling.type is \"mrope\", expected \"default\", "
                                         "\"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\""));
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", "big"}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.factor is \"big\""));
  config["rope_scaling"] = {{"rope_type", "longrope"}, {"short_factor", {1.0, 2.0}}};
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("rope_scaling.short_factor is [1.0,2.0], expected a list of 8 positive numbers"));
  config["rope_scaling"] = {{"type", "linear"}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.factor is missing"));
  config["rope_scaling"] = {{"type", "linear"}, {"factor", -2}};
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.factor is -2"));
  config["rope_scaling"] = json::parse(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.high_freq_factor is 4, expected more than low_freq_factor"));
  config["rope_scaling"]["high_freq_factor"] = 5;
  config["rope_scaling"]["original_max_position_embeddings"] = "long";
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.original_max_position_embeddings is \"long\""));
  config["rope_scaling"] = "linear";
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling is \"linear\", expected an object"));
  config.erase("rope_scaling");
  config["rope_parameters"] = json::parse(R"({"full_attention": {"rope_type": "linear", "factor": 2}})");
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_parameters.full_attention is {"));
}

TEST(ModelConfig, RequiresTheModelType) {
  json config = SmallLlama();
  config.erase("model_type");
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: model_type is missing, expected one of llama, mistral"));
  config["model_type"] = nullptr;
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: model_type is null, expected one of llama, mistral"));
}

TEST(ModelConfig, RefusesAbsurdValues) {
  struct Case {
    const char* name;
    const char* value;
    const char* expected;
  };
  const Case cases[] = {
      {"num_hidden_layers", "0", "an integer from 1 to 1024"},
      {"num_hidden_layers", "-3", "an integer from 1 to 1024"},
      {"num_hidden_layers", "1025", "an integer from 1 to 1024"},
      {"num_hidden_layers", "18446744073709551615", "an integer from 1 to 1024"},
      {"num_hidden_layers", "1.5", "an integer from 1 to 1024"},
      {"num_hidden_layers", "\"3\"", "an integer from 1 to 1024"},
      {"num_hidden_layers", "true", "an integer from 1 to 1024"},
      {"hidden_size", "65537", "an integer from 1 to 65536"},
      {"hidden_size", "-96", "an integer from 1 to 65536"},
      {"hidden_size", "100", "num_attention_heads (6) times an even head size from 2 to 256"},
      {"hidden_size", "90", "num_attention_heads (6) times an even head size"},    // head size 15
      {"hidden_size", "1548", "num_attention_heads (6) times an even head size"},  // 258
      {"num_attention_heads", "0", "an integer from 1"},
      {"num_attention_heads", "100000", "an integer from 1"},
      {"num_key_value_heads", "4", "a divisor of num_attention_heads, which is 6"},
      {"num_key_value_heads", "7", "an integer from 1 to 6"},
      {"num_key_value_heads", "0", "an integer from 1 to 6"},
      {"head_dim", "33", "an even number"},
      {"head_dim", "1", "an integer from 2 to 256"},
      {"head_dim", "512", "an integer from 2 to 256"},
      {"head_dim", "[64]", "an integer from 2 to 256"},
      {"intermediate_size", "9999999999", "an integer from 1"},
      {"vocab_size", "-1", "an integer from 1 to 524288"},
      {"vocab_size", "524289", "an integer from 1 to 524288"},
      {"max_position_embeddings", "0", "an integer from 1"},
      {"rms_norm_eps", "0", "a number from"},
      {"rms_norm_eps", "-1e-06", "a number from"},
      {"rms_norm_eps", "5", "a number from"},
      {"rms_norm_eps", "\"1e-5\"", "a number from"},
      {"rope_theta", "0", "a number from 1"},
      {"rope_theta", "-10000.0", "a number from 1"},
      {"rope_theta", "1e+300", "a number from 1"},
      {"tie_word_embeddings", "1", "true or false"},
      {"attention_bias", "\"yes\"", "true or false"},
      {"mlp_bias", "{}", "true or false"},
      {"eos_token_id", "[2,\"x\"]", "a token id from 0 to 999"},
      {"bos_token_id", "1.0", "a token id from 0 to 999"},
      {"hidden_act", "\"quick_gelu\"", "one of silu, swish, gelu"},
      {"model_type", "\"alpaca\"", "one of llama, mistral"},
      {"model_type", "7", "a string"},
      {"architectures", "[\"LlamaForSequenceClassification\"]", "[\"LlamaForCausalLM\"]"},
      {"architectures", "\"LlamaForCausalLM\"", "[\"LlamaForCausalLM\"]"},
      {"quantization_config", "{\"bits\":4}",
       "none: quantised weights are not supported (these are of no kind, 4 bits)"},
  };
  for (const Case& c : cases) {
    json config = SmallLlama();
    config[c.name] = json::parse(c.value);
    EXPECT_THAT(ErrorOf(config), testing::AllOf(HasSubstr(std::string("dir/config.json: ") + c.name + " is " + c.value),
                                                HasSubstr(std::string("expected ") + c.expected)))
        << c.name << " " << c.value;
  }
}

TEST(ModelConfig, RefusesWhatIsNoJsonObject) {
  const auto error = [](const std::string& text) {
    return std::string(ParseModelSpec(text, std::nullopt, "dir").status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("dir/config.json: not valid JSON"));
  EXPECT_THAT(error("{\"model_type\": \"llama\""), HasSubstr("dir/config.json: not valid JSON"));
  EXPECT_THAT(error("[1]"), HasSubstr("dir/config.json: content is [1], expected a JSON object"));
  EXPECT_THAT(error("{\"x\": 1e999}"), HasSubstr("dir/config.json: not valid JSON"));
  // The parser's own message quotes the string as far as it read it.
  const std::string quoted = error("{\"" + std::string(1'000'000, 'x') + "\x1b[2J\":");
  EXPECT_THAT(quoted, testing::AllOf(HasSubstr("dir/config.json: not valid JSON"), testing::EndsWith("xxx...")));
  EXPECT_LT(quoted.size(), 500u);
  EXPECT_THAT(error("{\"\xc2\x9b\x7f"), HasSubstr("\\u009b\\u007f"));
  EXPECT_THAT(error(std::string(1'000'000, '[')), HasSubstr("nesting is 1000000 deep, expected at most 64"));
}

TEST(ModelConfig, ReadsAFolder) {
  ScratchDir dir;
  EXPECT_THAT(std::string(ReadModelSpec(dir.path()).status().message()),
              HasSubstr(dir.File("config.json") + ": cannot open: No such file or directory: the folder is empty"));
  dir.Write("config.json", SmallLlama().dump());
  ASSERT_TRUE(ReadModelSpec(dir.path()).ok());
  EXPECT_THAT(ReadModelSpec(dir.path())->eos_token_ids, ElementsAre(2));
  dir.Write("generation_config.json", R"({"eos_token_id": 3})");
  ASSERT_TRUE(ReadModelSpec(dir.path()).ok());
  EXPECT_THAT(ReadModelSpec(dir.path())->eos_token_ids, ElementsAre(3));
  dir.Write("config.json", std::string(5 << 20, ' '));
  EXPECT_THAT(std::string(ReadModelSpec(dir.path()).status().message()),
              HasSubstr("size is 5242880 bytes, expected at most"));
}

TEST(FindShape, BalanceHasAKvHeadForEachHead) {
  const ModelSpec spec = *FindShape("balance");
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.hidden, 1024);
  EXPECT_EQ(spec.heads, 16);
  EXPECT_EQ(spec.kv_heads, 16);
  EXPECT_EQ(spec.intermediate, 2816);
  EXPECT_EQ(spec.max_context, 4096);
}

TEST(WriteModelConfig, IsReadBackAsItWas) {
  for (const std::string& name : ShapeNames()) {
    ModelSpec spec = *FindShape(name);
    spec.eos_token_ids = {2, 7};
    spec.tied_embeddings = !spec.tied_embeddings;
    const auto read = ParseModelSpec(WriteModelConfig(spec, DType::kF16), std::nullopt, "dir");
    ASSERT_TRUE(read.ok()) << name << ": " << read.status();
    EXPECT_TRUE(*read == spec) << WriteModelConfig(*read, DType::kF16);
  }
}

}  // namespace
}  // namespace fastdecode
