#include "engine/model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/unsupported_models.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A config that every family takes, by the names that it has for the fields.
json SmallConfig(const Family& family, int layers = 6) {
  const ConfigFields& names = family.fields;
  json config = {{"model_type", family.model_type},
                 {"architectures", {family.architecture}},
                 {names.layers, layers},
                 {names.hidden, 96},
                 {names.heads, 4},
                 {names.intermediate, 200},
                 {names.vocab, 1000},
                 {names.max_context, 512}};
  if (names.kv_heads != nullptr) config[names.kv_heads] = 2;
  if (names.head_dim != nullptr) config[names.head_dim] = 32;
  if (names.norm_epsilon != nullptr) config[names.norm_epsilon] = 1e-6;
  if (names.sliding_window != nullptr) config[names.sliding_window] = 64;
  if (names.use_sliding_window != nullptr) config[names.use_sliding_window] = true;
  return config;
}

json SmallConfig(const std::string& model_type, int layers = 6) { return SmallConfig(*FindFamily(model_type), layers); }

ModelSpec Parse(const json& config) {
  const auto spec = ParseModelSpec(config.dump(), std::nullopt, "dir");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto spec = ParseModelSpec(config.dump(), std::nullopt, "dir");
  EXPECT_FALSE(spec.ok()) << config;
  return std::string(spec.status().message());
}

// "wwf": windowed, windowed, full; in capitals where positions are not rotated.
std::string KindsOf(const ModelSpec& spec) {
  std::string kinds;
  for (int layer = 0; layer < spec.layers; ++layer) {
    const LayerKind kind = spec.kind(layer);
    kinds += kind.windowed ? (kind.rotated ? 'w' : 'W') : (kind.rotated ? 'f' : 'F');
  }
  return kinds;
}

TEST(Families, EachFieldThatIsBrokenIsNamedWithItsValue) {
  for (const Family& family : Families()) {
    const ConfigFields& f = family.fields;
    const std::vector<const char*> fields = {f.layers,
                                             f.hidden,
                                             f.heads,
                                             f.kv_heads,
                                             f.head_dim,
                                             f.intermediate,
                                             f.vocab,
                                             f.max_context,
                                             f.norm_epsilon,
                                             f.activation,
                                             f.tied_embeddings,
                                             f.attention_bias,
                                             f.attention_output_bias,
                                             f.mlp_bias,
                                             f.sliding_window,
                                             f.use_sliding_window,
                                             f.max_window_layers,
                                             f.window_pattern,
                                             f.no_rope_layers,
                                             f.no_rope_interval,
                                             f.attention_scalar,
                                             f.attention_multiplier,
                                             f.attention_cap,
                                             f.embedding_multiplier,
                                             f.residual_multiplier,
                                             f.logit_multiplier,
                                             f.logit_divisor,
                                             f.logit_cap,
                                             f.clip_qkv,
                                             f.parallel,
                                             f.norm_before,
                                             f.norm_weight,
                                             f.embedding_width};
    EXPECT_TRUE(ParseModelSpec(SmallConfig(family).dump(), std::nullopt, "dir").ok()) << family.model_type;
    for (const char* field : fields) {
      if (field == nullptr) continue;
      json config = SmallConfig(family);
      config[field] = {{"no", "value"}};
      EXPECT_THAT(ErrorOf(config),
                  HasSubstr(std::string("dir/config.json: ") + field + " is {\"no\":\"value\"}, expected"))
          << family.model_type;
    }
    if (family.traits.positions == Positions::kLearned) continue;
    for (const char* field : {f.theta, f.local_theta}) {
      if (field == nullptr) continue;
      json config = SmallConfig(family);
      config[field] = "long";
      EXPECT_THAT(ErrorOf(config), HasSubstr(std::string("dir/config.json: ") + field + " is \"long\", expected"))
          << family.model_type;
    }
  }
}

TEST(Families, FieldsOfOneValueRefuseTheOther) {
  for (const Family& family : Families()) {
    for (const FixedField& field : family.fixed) {
      if (field.name == nullptr) continue;
      json config = SmallConfig(family);
      config[field.name] = field.value;
      Parse(config);
      config[field.name] = !field.value;
      EXPECT_THAT(ErrorOf(config),
                  AllOf(HasSubstr(std::string("dir/config.json: ") + field.name + " is "), HasSubstr(field.other)));
    }
  }
}

TEST(Families, WhatIsWrittenIsReadBack) {
  for (const Family& family : Families()) {
    const ModelSpec spec = Parse(SmallConfig(family));
    ModelSpec read = Parse(json::parse(WriteModelConfig(spec, DType::kF32)));
    EXPECT_NEAR(read.attention_scale, spec.attention_scale, 1e-12) << family.model_type;
    read.attention_scale = spec.attention_scale;
    EXPECT_TRUE(read == spec) << WriteModelConfig(spec, DType::kF32);
  }
}

// As the layer_types that transformers make of these.
TEST(Families, WindowsAndPositionsOfLayers) {
  const auto kinds = [](const std::string& model_type, const json& more) {
    json config = SmallConfig(model_type, 8);
    if (!more.is_null()) config.update(more);
    return KindsOf(Parse(config));
  };
  EXPECT_EQ(kinds("mistral", {}), "wwwwwwww");
  EXPECT_EQ(kinds("mistral", {{"sliding_window", nullptr}}), "ffffffff");
  EXPECT_EQ(kinds("qwen2", {{"max_window_layers", 3}}), "fffwwwww");
  EXPECT_EQ(kinds("qwen2", {}), "ffffffff") << "28 layers see all";
  EXPECT_EQ(kinds("qwen2", {{"max_window_layers", 3}, {"use_sliding_window", false}}), "ffffffff");
  EXPECT_EQ(kinds("qwen3", {{"max_window_layers", 0}}), "wwwwwwww");
  EXPECT_EQ(kinds("gemma2", {}), "wfwfwfwf");
  EXPECT_EQ(kinds("gemma3_text", {}), "wwwwwfww");
  EXPECT_EQ(kinds("gemma3_text", {{"sliding_window_pattern", 3}}), "wwfwwfww");
  EXPECT_EQ(kinds("olmo3", {}), "wwwfwwwf");
  EXPECT_EQ(kinds("cohere2", {}), "wwwFwwwF");
  EXPECT_EQ(kinds("exaone4", {}), "wwwFwwwF");
  EXPECT_EQ(kinds("exaone4", {{"sliding_window", nullptr}}), "ffffffff") << "then all are rotated";
  EXPECT_EQ(kinds("smollm3", {{"use_sliding_window", false}}), "fffFfffF");
  EXPECT_EQ(kinds("smollm3", {}), "fffWfffW");
  EXPECT_EQ(kinds("smollm3", {{"no_rope_layer_interval", 3}, {"use_sliding_window", false}}), "ffFffFff");
  EXPECT_EQ(kinds("smollm3", {{"no_rope_layers", {0, 1, 1, 1, 0, 1, 1, 1}}, {"use_sliding_window", false}}),
            "FfffFfff");
  const json types = {"full_attention",    "sliding_attention", "full_attention", "full_attention",
                      "sliding_attention", "full_attention",    "full_attention", "full_attention"};
  for (const char* family : {"ministral", "qwen2", "gemma2", "gemma3_text", "olmo3"}) {
    EXPECT_EQ(kinds(family, {{"layer_types", types}}), "fwffwfff") << family;
  }
  json config = SmallConfig("gemma2", 3);
  config["layer_types"] = {"full_attention", "linear_attention", "full_attention"};
  EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("layer_types is ["), HasSubstr("entry 1 is \"linear_attention\"")));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("expected a list of 3 kinds"));
}

TEST(Families, TwoRopesOfOneModel) {
  json config = SmallConfig("gemma3_text");
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.rope_of(5).theta, 1e6);
  EXPECT_EQ(spec.rope_of(5).factor, 8.0);
  EXPECT_EQ(spec.rope_of(0).theta, 1e4);
  EXPECT_EQ(spec.rope_of(0).scaling, RopeSpec::Scaling::kNone);
  config.erase("rope_scaling");
  config["rope_parameters"] = json::parse(
      R"({"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
          "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})");
  spec = Parse(config);
  EXPECT_EQ(spec.rope_of(5).theta, 5e5);
  EXPECT_EQ(spec.rope_of(5).factor, 4.0);
  EXPECT_EQ(spec.rope_of(0).theta, 2e4);
  config["rope_parameters"]["full_attention"]["factor"] = 0;
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: rope_parameters.full_attention.factor is 0"));
  config["rope_parameters"]["full_attention"] = 7;
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: rope_parameters.full_attention is 7, expected an object"));
}

TEST(Families, ScalesAreThoseOfTheFamily) {
  json config = SmallConfig("granite");
  config.update({{"attention_multiplier", 0.015625},
                 {"embedding_multiplier", 12.0},
                 {"residual_multiplier", 0.22},
                 {"logits_scaling", 8.0}});
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.attention_scale, 0.015625);
  EXPECT_EQ(spec.embedding_scale, 12.0);
  EXPECT_EQ(spec.residual_scale, 0.22);
  EXPECT_EQ(spec.logit_scale, 0.125);
  config["residual_multiplier"] = 0;
  EXPECT_THAT(ErrorOf(config), HasSubstr("residual_multiplier is 0, expected a number from"));

  spec = Parse(SmallConfig("gemma2"));
  EXPECT_EQ(spec.attention_cap, 50.0);
  EXPECT_EQ(spec.logit_cap, 30.0);
  EXPECT_EQ(spec.attention_scale, 1.0 / 16);
  EXPECT_EQ(spec.embedding_scale, std::sqrt(96.0));
  EXPECT_TRUE(spec.scale_in_type);
  EXPECT_TRUE(spec.tied_embeddings);
  config = SmallConfig("gemma2");
  config["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parse(config).attention_cap, 0.0);
  config = SmallConfig("gemma3_text");
  config["attn_logit_softcapping"] = 50.0;  // is never applied
  EXPECT_EQ(Parse(config).attention_cap, 0.0);
  config = SmallConfig("gemma");
  config["hidden_act"] = "gelu";
  EXPECT_EQ(Parse(config).activation, Activation::kGeluTanh);
  EXPECT_EQ(Parse(SmallConfig("cohere")).logit_scale, 0.0625);
}

TEST(Families, OptIsReadWithTheOdditiesOf350m) {
  json config = SmallConfig("opt");
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.learned_positions, 514);
  EXPECT_EQ(spec.position_offset, 2);
  EXPECT_EQ(spec.kv_heads, 4);
  EXPECT_TRUE(spec.norm_before && spec.final_norm && !spec.norm_sum);
  config["do_layer_norm_before"] = false;
  config["word_embed_proj_dim"] = 48;
  spec = Parse(config);
  EXPECT_TRUE(!spec.norm_before && !spec.final_norm && spec.norm_sum);
  EXPECT_EQ(spec.embedding_width, 48);
  config["word_embed_proj_dim"] = 96;
  EXPECT_EQ(Parse(config).embedding_width, 0);
}

TEST(Families, AHeadSizeOfNullIsWhatTheWidthLeaves) {
  json config = SmallConfig("seed_oss");
  config.erase("head_dim");
  EXPECT_EQ(Parse(config).head_dim, 128) << "the family's default";
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config).head_dim, 24);
}

// Of the families that have such a field; the share in the rope's own object counts more.
TEST(Families, HeadsAreRotatedInPart) {
  for (const Family& family : Families()) {
    if (family.fields.rotary_share == nullptr) continue;
    json config = SmallConfig(family);
    config[family.fields.rotary_share] = 0.75;
    EXPECT_EQ(Parse(config).rope.dims, family.fields.head_dim == nullptr ? 18 : 24) << family.model_type;
    config[family.fields.rotary_share] = 0.05;
    EXPECT_THAT(ErrorOf(config), HasSubstr("is 0.05, expected a share of the head size")) << family.model_type;
    config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}};
    EXPECT_EQ(Parse(config).rope.dims, 0) << family.model_type;
    config["rope_parameters"]["partial_rotary_factor"] = 0.05;
    EXPECT_THAT(ErrorOf(config), HasSubstr("rope_parameters.partial_rotary_factor is 0.05")) << family.model_type;
  }
}

TEST(Families, Ministral3HasYarnWhereNothingIsSaid) {
  const ModelSpec spec = Parse(SmallConfig("ministral3"));
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kYarn);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.rope.attention_factor, 1.0);
  EXPECT_EQ(spec.temperature_beta, 0.1);
  EXPECT_EQ(spec.temperature_context, 16384);
}

TEST(Families, WrappersHoldTheirTextModel) {
  json config = {{"model_type", "gemma3"},
                 {"architectures", {"Gemma3ForConditionalGeneration"}},
                 {"eos_token_id", {1, 106}},
                 {"text_config", SmallConfig("gemma3_text")}};
  config["text_config"].erase("architectures");
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.family, "gemma3_text");
  EXPECT_EQ(spec.hidden, 96);
  EXPECT_THAT(spec.eos_token_ids, testing::ElementsAre(1, 106));
  EXPECT_TRUE(spec.tied_embeddings);
  config["tie_word_embeddings"] = false;  // the wrapper's counts where the text model's is missing
  EXPECT_FALSE(Parse(config).tied_embeddings);
  config["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(Parse(config).tied_embeddings);
  config["text_config"]["hidden_size"] = "wide";
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: text_config.hidden_size is \"wide\""));
  config.erase("text_config");
  EXPECT_THAT(ErrorOf(config), HasSubstr("dir/config.json: text_config is missing"));
  config["text_config"] = {{"model_type", "mixtral"}};
  EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("dir/config.json: text_config.model_type is \"mixtral\""),
                                     HasSubstr("mixtures of experts")));
  config = {{"model_type", "mistral3"}, {"text_config", SmallConfig("ministral3")}};
  config["text_config"]["rope_parameters"] = {
      {"rope_type", "yarn"}, {"factor", 16.0}, {"llama_4_scaling_beta", 0.1}, {"original_max_position_embeddings", 32}};
  spec = Parse(config);
  EXPECT_EQ(spec.family, "ministral3");
  EXPECT_EQ(spec.temperature_beta, 0.1);
  EXPECT_EQ(spec.temperature_context, 32);
}

TEST(UnsupportedModels, AreRefusedByWhatTheyWouldNeed) {
  const std::pair<const char*, const char*> likely[] = {{"mixtral", "mixtures of experts"},
                                                        {"qwen2_moe", "mixtures of experts"},
                                                        {"qwen3_moe", "mixtures of experts"},
                                                        {"olmoe", "mixtures of experts"},
                                                        {"granitemoe", "mixtures of experts"},
                                                        {"phimoe", "mixtures of experts"},
                                                        {"llama4", "mixtures of experts"},
                                                        {"gpt_oss", "MXFP4"},
                                                        {"glm4_moe", "mixtures of experts"},
                                                        {"deepseek_v2", "latent attention"},
                                                        {"deepseek_v3", "latent attention"},
                                                        {"kimi_k2", "latent attention"},
                                                        {"qwen3_next", "recurrent"},
                                                        {"qwen3_5", "recurrent"},
                                                        {"nemotron_h", "recurrent"},
                                                        {"granitemoehybrid", "recurrent"},
                                                        {"mamba2", "recurrent"},
                                                        {"bloom", "ALiBi"},
                                                        {"mpt", "ALiBi"},
                                                        {"t5", "encoder-decoder"},
                                                        {"whisper", "encoder-decoder"},
                                                        {"gemma4", "other layers' keys"},
                                                        {"falcon", "fused in groups"},
                                                        {"qwen2_5_vl", "M-RoPE"}};
  for (const auto& [model_type, needs] : likely) {
    const json config = {{"model_type", model_type}};
    EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("dir/config.json: model_type is \"" + std::string(model_type) + "\""),
                                       HasSubstr(needs)));
    EXPECT_EQ(FindFamily(model_type), nullptr);
  }
  EXPECT_THAT(ErrorOf({{"model_type", "alpaca"}, {"n_routed_experts", 64}}), HasSubstr("it has n_routed_experts"));
  EXPECT_THAT(ErrorOf({{"model_type", "alpaca"}, {"is_encoder_decoder", true}}), HasSubstr("encoder-decoders"));
  json quantised = SmallConfig("llama");
  quantised["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  EXPECT_THAT(ErrorOf(quantised), HasSubstr("quantised weights are not supported (these are awq, 4 bits)"));
}

}  // namespace
}  // namespace fastdecode
