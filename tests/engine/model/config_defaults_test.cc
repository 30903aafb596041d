// What a config.json means that says less than everything, or one thing twice. What is expected is what transformers
// 5.24 make of the same config: AutoConfig's fields, and which of them AutoModelForCausalLM uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/families.h"
#include "engine/model/model_config.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A config of a family by the names that most have.
json Small(const std::string& model_type, const json& more = json::object()) {
  json config = {
      {"model_type", model_type}, {"num_hidden_layers", 2},  {"hidden_size", 32}, {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"intermediate_size", 48}, {"vocab_size", 64},  {"max_position_embeddings", 128},
      {"rms_norm_eps", 1e-6},     {"rope_theta", 20000.0},   {"head_dim", 8}};
  config.update(more);
  return config;
}

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

TEST(ConfigDefaults, AreTheFamilysWhereConfigSaysNothing) {
  struct Case {
    const char* model_type;
    int layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, max_context;
    double epsilon;
    bool tied;
  };
  const Case cases[] = {
      {"llama", 32, 4096, 32, 32, 128, 11008, 32000, 2048, 1e-06, false},
      {"mistral", 32, 4096, 32, 8, 128, 14336, 32000, 131072, 1e-06, false},
      {"ministral", 32, 4096, 32, 8, 128, 14336, 32000, 131072, 1e-06, false},
      {"ministral3", 34, 4096, 32, 8, 128, 14336, 131072, 262144, 1e-05, false},
      {"qwen2", 32, 4096, 32, 32, 128, 22016, 151936, 32768, 1e-06, false},
      {"qwen3", 32, 4096, 32, 32, 128, 22016, 151936, 32768, 1e-06, false},
      {"smollm3", 36, 2048, 16, 4, 128, 11008, 128256, 32768, 1e-06, true},
      {"granite", 32, 4096, 32, 32, 128, 11008, 32000, 2048, 1e-06, false},
      {"seed_oss", 64, 4096, 80, 8, 128, 27648, 155136, 524288, 1e-06, false},
      {"phi3", 32, 3072, 32, 32, 96, 8192, 32064, 4096, 1e-05, false},
      {"gemma", 28, 3072, 16, 16, 256, 24576, 256000, 8192, 1e-06, true},
      {"gemma2", 26, 2304, 8, 4, 256, 9216, 256000, 8192, 1e-06, true},
      {"gemma3_text", 26, 2304, 8, 4, 256, 9216, 262208, 131072, 1e-06, true},
      {"olmo", 32, 4096, 32, 32, 128, 11008, 50304, 2048, 1e-05, false},
      {"olmo2", 32, 4096, 32, 32, 128, 11008, 50304, 2048, 1e-05, false},
      {"olmo3", 32, 4096, 32, 32, 128, 11008, 50304, 2048, 1e-05, false},
      {"exaone4", 32, 4096, 32, 32, 128, 16384, 102400, 2048, 1e-05, false},
      {"glm", 40, 4096, 32, 2, 128, 13696, 151552, 131072, 1.5625e-07, false},
      {"glm4", 40, 4096, 32, 2, 128, 13696, 151552, 131072, 1.5625e-07, false},
      {"cohere", 40, 8192, 64, 64, 128, 22528, 256000, 8192, 1e-05, true},
      {"cohere2", 40, 8192, 64, 64, 128, 22528, 256000, 8192, 1e-05, true},
      {"nemotron", 32, 6144, 48, 48, 128, 24576, 256000, 4096, 1e-05, false},
      {"starcoder2", 30, 3072, 24, 2, 128, 12288, 49152, 4096, 1e-05, true},
      {"opt", 12, 768, 12, 12, 64, 3072, 50272, 2048, 1e-05, true},
      {"gpt_neox", 44, 6144, 64, 64, 96, 24576, 50432, 2048, 1e-05, false},
      {"gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, 1e-05, true},
  };
  EXPECT_EQ(std::size(cases), Families().size()) << "a case for each";
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model_type);
    const ModelSpec spec = Parse({{"model_type", c.model_type}});
    EXPECT_EQ(spec.layers, c.layers);
    EXPECT_EQ(spec.hidden, c.hidden);
    EXPECT_EQ(spec.heads, c.heads);
    EXPECT_EQ(spec.kv_heads, c.kv_heads);
    EXPECT_EQ(spec.head_dim, c.head_dim);
    EXPECT_EQ(spec.intermediate, c.intermediate);
    EXPECT_EQ(spec.vocab, c.vocab);
    EXPECT_EQ(spec.max_context, c.max_context);
    EXPECT_EQ(spec.norm.epsilon, c.epsilon);
    EXPECT_EQ(spec.tied_embeddings, c.tied);
    ASSERT_EQ(spec.notes.size(), 1u);
    EXPECT_THAT(spec.notes[0],
                AllOf(HasSubstr("dir/config.json: it does not say everything; as in transformers, this is taken: "),
                      HasSubstr("vocab_size (" + std::to_string(c.vocab) + ")")));
  }
}

TEST(ConfigDefaults, NameTheFieldsThatAreMissing) {
  const std::pair<const char*, const char*> cases[] = {{"num_hidden_layers", "32"},
                                                       {"intermediate_size", "11008"},
                                                       {"vocab_size", "32000"},
                                                       {"max_position_embeddings", "2048"},
                                                       {"rms_norm_eps", "1e-06"}};
  for (const auto& [name, value] : cases) {
    json config = Small("llama");
    config.erase(name);
    EXPECT_THAT(Parse(config).notes,
                ElementsAre("dir/config.json: it does not say everything; as in transformers, this is taken: " +
                            std::string(name) + " (" + value + ")"));
  }
  EXPECT_THAT(Parse(Small("llama")).notes, IsEmpty());
  // A wrapper leaves out of text_config what is so anyway.
  EXPECT_THAT(Parse({{"model_type", "gemma3"}, {"text_config", {{"num_hidden_layers", 7}}}}).notes, IsEmpty());
  json config = Small("llama");
  config.erase("model_type");
  config["architectures"] = {"LlamaForCausalLM"};
  EXPECT_THAT(ErrorOf(config),
              AllOf(HasSubstr("dir/config.json: model_type is missing, expected one of llama, mistral"),
                    HasSubstr("(its architectures make it llama: add \"model_type\": \"llama\")")));
  EXPECT_THAT(ErrorOf({{"error", "Repository not found"}}), HasSubstr("a server's answer in place of the file"));
  EXPECT_THAT(ErrorOf({{"peft_type", "LORA"}}), HasSubstr("a LoRA adapter's"));
  EXPECT_THAT(ErrorOf({{"dim", 4096}, {"n_layers", 32}}), HasSubstr("the layout that Meta and Mistral publish"));
  EXPECT_THAT(ErrorOf({{"model_type", "bert"}}), HasSubstr("an encoder, which makes embeddings"));
}

// transformers' strict configs refuse null where a field has a type that has none.
TEST(ConfigDefaults, NullIsNoWayToLeaveASizeOut) {
  for (const char* name :
       {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias"}) {
    EXPECT_THAT(ErrorOf(Small("llama", {{name, nullptr}})),
                HasSubstr("dir/config.json: " + std::string(name) + " is null, expected "));
  }
  const std::pair<const char*, const char*> others[] = {{"qwen2", "use_sliding_window"},
                                                        {"granite", "logits_scaling"},
                                                        {"granite", "attention_multiplier"},
                                                        {"gemma2", "query_pre_attn_scalar"},
                                                        {"gemma3_text", "sliding_window_pattern"},
                                                        {"smollm3", "no_rope_layer_interval"},
                                                        {"glm", "attention_bias"}};
  for (const auto& [model_type, name] : others) {
    EXPECT_THAT(ErrorOf(Small(model_type, {{name, nullptr}})),
                HasSubstr("dir/config.json: " + std::string(name) + " is null, expected "));
  }
  EXPECT_THAT(ErrorOf({{"model_type", "opt"}, {"do_layer_norm_before", nullptr}}),
              HasSubstr("do_layer_norm_before is null"));
  EXPECT_EQ(Parse(Small("gemma2", {{"attn_logit_softcapping", nullptr}})).attention_cap, 0.0);
  EXPECT_EQ(Parse(Small("olmo", {{"clip_qkv", nullptr}})).clip_qkv, 0.0);
  EXPECT_EQ(Parse(Small("llama", {{"num_key_value_heads", nullptr}})).kv_heads, 4);
  EXPECT_EQ(Parse(Small("llama", {{"head_dim", nullptr}})).head_dim, 8);
  EXPECT_EQ(Parse(Small("qwen2", {{"use_sliding_window", false}, {"sliding_window", 0}})).sliding_window, 0);
  EXPECT_EQ(Parse(Small("mistral", {{"sliding_window", nullptr}})).sliding_window, 0);
  EXPECT_THAT(ErrorOf(Small("mistral", {{"sliding_window", 0}})),
              HasSubstr("sliding_window is 0, expected an integer from 1"));
  EXPECT_THAT(ErrorOf(Small("mistral", {{"sliding_window", -1}})), HasSubstr("sliding_window is -1, expected"));
  EXPECT_THAT(ErrorOf(Small("llama", {{"num_key_value_heads", 0}})), HasSubstr("num_key_value_heads is 0, expected"));
  // Mistral's and StarCoder2's code asks "head_dim or ...".
  json config = Small("mistral", {{"head_dim", 0}, {"hidden_size", 64}});
  EXPECT_EQ(Parse(config).head_dim, 16);
  EXPECT_THAT(Parse(config).notes, ElementsAre("dir/config.json: head_dim is 0: it does not count"));
}

TEST(ConfigDefaults, SizesMayBeWrittenAsFloats) {
  const ModelSpec spec = Parse(Small("llama", {{"max_position_embeddings", 4096.0}, {"intermediate_size", 96.0}}));
  EXPECT_EQ(spec.max_context, 4096);
  EXPECT_EQ(spec.intermediate, 96);
  EXPECT_THAT(ErrorOf(Small("llama", {{"intermediate_size", 96.5}})),
              HasSubstr("intermediate_size is 96.5, expected an"));
}

TEST(ConfigSources, RopeScalingThatIsEmptyHidesNothing) {
  const json parameters = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  for (const json& empty : {json::object(), json::array(), json(0), json(false), json(""), json()}) {
    const ModelSpec spec = Parse(Small("llama", {{"rope_scaling", empty}, {"rope_parameters", parameters}}));
    EXPECT_EQ(spec.rope.theta, 500000.0) << empty;
    EXPECT_THAT(spec.notes, ElementsAre("dir/config.json: rope_theta (20000.0) does not count beside "
                                        "rope_parameters.rope_theta (500000.0), as in transformers"));
  }
  EXPECT_EQ(Parse(Small("llama", {{"rope_parameters", json::object()}})).rope.theta, 20000.0);
  for (const json& wrong : {json::array(), json(0), json(false), json("")}) {
    EXPECT_THAT(ErrorOf(Small("llama", {{"rope_parameters", wrong}})), HasSubstr("rope_parameters is "));
  }
}

TEST(ConfigSources, RopeScalingCountsMoreThanRopeParameters) {
  json config = Small("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                                {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}}});
  ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.rope.theta, 20000.0);
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_EQ(spec.rope.factor, 2.0);
  EXPECT_THAT(spec.notes,
              ElementsAre("dir/config.json: rope_parameters does not count beside rope_scaling, as in transformers"));
  config.erase("rope_theta");
  EXPECT_EQ(Parse(config).rope.theta, 10000.0) << "not that of the object that does not count";
  config["rope_parameters"] = config["rope_scaling"];
  EXPECT_THAT(Parse(config).notes, IsEmpty()) << "both say the same";
}

TEST(ConfigSources, RopeTypeCountsMoreThanType) {
  ModelSpec spec =
      Parse(Small("llama", {{"rope_scaling", {{"type", "linear"}, {"rope_type", "default"}, {"factor", 4}}}}));
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kNone);
  EXPECT_THAT(spec.notes,
              ElementsAre("dir/config.json: rope_scaling.type does not count beside rope_scaling.rope_type, as in "
                          "transformers",
                          "dir/config.json: rope_scaling.rope_type is \"default\": positions are not scaled, as in "
                          "transformers; factor does not count"));
  spec = Parse(Small("llama", {{"rope_scaling", {{"type", "yarn"}, {"rope_type", "linear"}, {"factor", 4}}}}));
  EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kLinear);
  spec = Parse(Small("llama", {{"rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 4}}}}));
  EXPECT_THAT(spec.notes, IsEmpty());
}

TEST(ConfigSources, WithoutARopeTypeNothingScales) {
  struct Case {
    json scaling;
    const char* note;
  };
  const Case cases[] = {
      {{{"factor", 8.0}}, "rope_type is missing: positions are not scaled, as in transformers; factor does not count"},
      {{{"type", "default"}, {"factor", 8.0}}, "rope_type is \"default\": positions are not scaled"},
      {{{"long_factor", {1.0, 2.0}}, {"short_factor", {1.0}}}, "long_factor, short_factor do not count"},
      {{{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}, "mrope_section does not count"},
  };
  for (const Case& c : cases) {
    const ModelSpec spec = Parse(Small("llama", {{"rope_scaling", c.scaling}}));
    EXPECT_EQ(spec.rope.scaling, RopeSpec::Scaling::kNone);
    EXPECT_EQ(spec.rope.theta, 20000.0);
    ASSERT_EQ(spec.notes.size(), 1u) << c.scaling;
    EXPECT_THAT(spec.notes[0], AllOf(HasSubstr("dir/config.json: rope_scaling."), HasSubstr(c.note)));
  }
  EXPECT_THAT(Parse(Small("llama", {{"rope_scaling", {{"type", "default"}, {"factor", 1}}}})).notes, IsEmpty());
}

TEST(ConfigSources, FactorsBelowOneCount) {
  for (const char* type : {"linear", "dynamic", "yarn"}) {
    EXPECT_EQ(Parse(Small("llama", {{"rope_scaling", {{"type", type}, {"factor", 0.5}}}})).rope.factor, 0.5) << type;
  }
  EXPECT_THAT(ErrorOf(Small("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}})),
              HasSubstr("rope_scaling.factor is 0, expected a number from 0.001"));
  EXPECT_THAT(ErrorOf(Small("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", nullptr}}}})),
              HasSubstr("rope_scaling.factor is null"));
}

TEST(ConfigSources, AThetaOfNullIsRefusedWhereItWouldCount) {
  EXPECT_THAT(ErrorOf(Small("llama", {{"rope_theta", nullptr}})),
              HasSubstr("dir/config.json: rope_theta is null, expected"));
  EXPECT_THAT(ErrorOf(Small("llama", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", nullptr}}}})),
              HasSubstr("rope_parameters.rope_theta is null, expected"));
  EXPECT_EQ(Parse(Small("llama", {{"rope_theta", nullptr}, {"rope_parameters", {{"rope_theta", 7e5}}}})).rope.theta,
            7e5);
}

TEST(ConfigSources, RopesOfKindsOfLayers) {
  const auto ropes = [](const json& more) {
    const ModelSpec spec = Parse(Small("gemma3_text", more));
    return std::vector<double>{spec.rope_of(5).theta, spec.rope_of(5).factor, spec.rope_of(0).theta};
  };
  const json linear = {{"rope_type", "linear"}, {"factor", 8.0}};
  const json kinds = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  const json six = {{"num_hidden_layers", 6}};
  const auto with = [&six](json more) {
    more.update(six);
    return more;
  };
  EXPECT_THAT(ropes(with({{"rope_scaling", linear}})), ElementsAre(20000, 8, 10000));
  EXPECT_THAT(ropes(with({{"rope_scaling", linear}, {"rope_parameters", kinds}})), ElementsAre(5e5, 8, 2e4));
  EXPECT_THAT(ropes(with({{"rope_scaling", json::object()}})), ElementsAre(20000, 1, 10000));
  EXPECT_THAT(ropes(with({{"rope_local_base_freq", 12345.0}})), ElementsAre(20000, 1, 12345));
  EXPECT_THAT(ropes(with({{"rope_parameters", {{"full_attention", nullptr}, {"sliding_attention", json::object()}}},
                          {"rope_local_base_freq", 12345.0}})),
              ElementsAre(20000, 1, 12345));
  const json flat = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 7e5}};
  EXPECT_THAT(ropes(with({{"rope_parameters", flat}})), ElementsAre(20000, 1, 10000));
  EXPECT_THAT(Parse(Small("gemma3_text", {{"rope_parameters", flat}})).notes,
              ElementsAre("dir/config.json: rope_parameters does not count, as in transformers: it has neither "
                          "full_attention nor sliding_attention"));
}

TEST(ConfigSources, TheRotatedShareOfTheObjectCountsMore) {
  json config = Small("glm", {{"head_dim", 16}, {"partial_rotary_factor", 0.75}});
  EXPECT_EQ(Parse(config).rope.dims, 12);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(Parse(config).rope.dims, 4);
  EXPECT_THAT(Parse(config).notes, ElementsAre("dir/config.json: partial_rotary_factor (0.75) does not count beside "
                                               "rope_parameters.partial_rotary_factor (0.25), as in transformers"));
}

// AutoConfig: GPT2Config.attribute_map.
TEST(ConfigSources, TheUsualNamesCountMoreThanGpt2s) {
  json config = {{"model_type", "gpt2"}, {"vocab_size", 64},   {"n_embd", 32}, {"n_layer", 2},
                 {"n_head", 4},          {"n_positions", 100}, {"n_ctx", 50},  {"layer_norm_epsilon", 1e-5}};
  EXPECT_EQ(Parse(config).max_context, 100);
  EXPECT_THAT(Parse(config).notes, IsEmpty());
  config["hidden_size"] = 64;
  config["max_position_embeddings"] = 60;
  const ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.hidden, 64);
  EXPECT_EQ(spec.max_context, 60);
  EXPECT_THAT(spec.notes,
              ElementsAre("dir/config.json: n_embd is 32 and hidden_size, its other name, 64: the latter counts, "
                          "as in transformers",
                          "dir/config.json: n_positions is 100 and max_position_embeddings, its other name, "
                          "60: the latter counts, as in transformers"));
  config = {{"model_type", "gpt2"},      {"vocab_size", 64},         {"hidden_size", 64},
            {"num_hidden_layers", 3},    {"num_attention_heads", 2}, {"max_position_embeddings", 77},
            {"layer_norm_epsilon", 1e-5}};
  const ModelSpec usual = Parse(config);
  EXPECT_EQ(usual.hidden, 64);
  EXPECT_EQ(usual.layers, 3);
  EXPECT_EQ(usual.heads, 2);
  EXPECT_EQ(usual.max_context, 77);
  EXPECT_THAT(usual.notes, IsEmpty());
  config["hidden_size"] = nullptr;
  config["n_embd"] = 32;
  EXPECT_THAT(ErrorOf(config), HasSubstr("hidden_size is null"));
}

TEST(ConfigSources, ArchitecturesDoNotChooseTheFamily) {
  EXPECT_THAT(Parse(Small("llama", {{"architectures", json::array()}})).notes, IsEmpty());
  EXPECT_THAT(Parse(Small("llama", {{"architectures", nullptr}})).notes, IsEmpty());
  EXPECT_THAT(Parse(Small("llama", {{"architectures", {"LlamaForCausalLM", "Other"}}})).notes, IsEmpty());
  for (const char* other : {"LlamaModel", "MistralForCausalLM", "LLaMAForCausalLM"}) {
    const ModelSpec spec = Parse(Small("llama", {{"architectures", {other}}}));
    EXPECT_EQ(spec.family, "llama");
    EXPECT_THAT(spec.notes, ElementsAre("dir/config.json: architectures is [\"" + std::string(other) +
                                        "\"]: it does not count; model_type makes it a LlamaForCausalLM"));
  }
  // These give classes, scores or spans: what would come out here is no answer of theirs.
  for (const char* other : {"LlamaForSequenceClassification", "Qwen2ForRewardModel", "LlamaForQuestionAnswering"}) {
    EXPECT_THAT(ErrorOf(Small("llama", {{"architectures", {other}}})), HasSubstr("architectures is [\""));
  }
}

TEST(ConfigSources, AQuantizationThatNobodyKnowsDoesNotCount) {
  EXPECT_THAT(Parse(Small("llama", {{"quantization_config", nullptr}})).notes, IsEmpty());
  EXPECT_THAT(
      Parse(Small("llama", {{"quantization_config", {{"quant_method", "foo"}}}})).notes,
      ElementsAre("dir/config.json: quantization_config is {\"quant_method\":\"foo\"}, a method that is not known: "
                  "it does not count, as in transformers"));
  for (const json& known :
       {json({{"quant_method", "awq"}}), json::object(), json({{"load_in_4bit", true}, {"quant_method", "x"}}),
        json({{"quant_method", nullptr}}), json({{"quant_method", "fp8"}})}) {
    EXPECT_THAT(ErrorOf(Small("llama", {{"quantization_config", known}})),
                HasSubstr("quantised weights are not supported"));
  }
  const json wrapper = {{"model_type", "gemma3"},
                        {"text_config", {{"quantization_config", {{"quant_method", "gptq"}}}}}};
  EXPECT_THAT(ErrorOf(wrapper), HasSubstr("text_config.quantization_config is"));
}

TEST(ConfigSources, LayersOfTheirOwnAreRefused) {
  EXPECT_THAT(Parse(Small("llama", {{"per_layer_config", json::object()}})).notes, IsEmpty());
  EXPECT_THAT(ErrorOf(Small("llama", {{"per_layer_config", {{"0", {{"intermediate_size", 24}}}}}})),
              HasSubstr("per_layer_config is {\"0\":{\"intermediate_size\":24}}, expected none"));
}

TEST(ConfigSources, LayersAreWindowedWhereThereIsAWindow) {
  const ModelSpec spec = Parse(Small("qwen2", {{"use_sliding_window", false},
                                               {"sliding_window", 16},
                                               {"layer_types", {"full_attention", "sliding_attention"}}}));
  EXPECT_EQ(spec.sliding_window, 0);
  EXPECT_THAT(spec.notes,
              ElementsAre("dir/config.json: layer_types has sliding_attention, but there is no window: those "
                          "layers see all"));
}

// Each is a field of other families, and only an attribute in transformers' config of this one.
TEST(ConfigSources, FieldsThatTheFamilyDoesNotReadDoNotCount) {
  struct Case {
    const char* model_type;
    const char* name;
    json value;
    const char* shown;
  };
  const Case cases[] = {
      {"llama", "sliding_window", 64, "64"},
      {"llama", "partial_rotary_factor", 0.5, "0.5"},
      {"llama", "attn_logit_softcapping", 50.0, "50.0"},
      {"qwen2", "attention_bias", false, "false"},
      {"mistral", "attention_bias", true, "true"},
      {"mistral", "mlp_bias", true, "true"},
      {"mistral", "use_sliding_window", false, "false"},
      {"llama", "logits_scaling", 8.0, "8.0"},
      {"llama", "layer_types", {"full_attention", "sliding_attention"}, "[\"full_attention\",\"sliding_attention\"]"},
      {"gpt2", "num_key_value_heads", 1, "1"},
      {"gpt2", "rope_scaling", {{"type", "linear"}, {"factor", 2}}, "{\"factor\":2,\"type\":\"linear\"}"}};
  for (const Case& c : cases) {
    json config = Small(c.model_type);
    if (std::string(c.model_type) == "gpt2") {
      config = {{"model_type", "gpt2"},
                {"n_embd", 32},
                {"n_layer", 2},
                {"n_head", 4},
                {"n_positions", 64},
                {"vocab_size", 64},
                {"layer_norm_epsilon", 1e-5}};
    }
    const ModelSpec plain = Parse(config);
    EXPECT_THAT(plain.notes, IsEmpty());
    config[c.name] = c.value;
    ModelSpec spec = Parse(config);
    EXPECT_THAT(spec.notes, ElementsAre("dir/config.json: " + std::string(c.name) + " is " + c.shown +
                                        ": it does not count in a " + c.model_type + " model, as in transformers"));
    spec.notes.clear();
    EXPECT_TRUE(spec == plain) << c.name;
  }
  for (const auto& [name, value] : {std::pair<const char*, json>{"sliding_window", nullptr},
                                    {"sliding_window", 0},
                                    {"partial_rotary_factor", 1.0},
                                    {"attn_logit_softcapping", nullptr},
                                    {"logits_scaling", 1},
                                    {"use_sliding_window", false}}) {
    EXPECT_THAT(Parse(Small("llama", {{name, value}})).notes, IsEmpty()) << name;
  }
}

// GenerationConfig.from_model_config takes the text model's where the wrapper has none.
TEST(ConfigSources, StopTokensOfAWrapperCountMoreThanItsTextModels) {
  json config = {{"model_type", "gemma3"},
                 {"eos_token_id", {1, 106}},
                 {"text_config", {{"model_type", "gemma3_text"}, {"eos_token_id", 1}, {"bos_token_id", 2}}}};
  EXPECT_THAT(Parse(config).eos_token_ids, ElementsAre(1, 106));
  EXPECT_THAT(Parse(config).bos_token_ids, ElementsAre(2));
  config.erase("eos_token_id");
  EXPECT_THAT(Parse(config).eos_token_ids, ElementsAre(1));
}

TEST(ConfigSources, NumbersThatAreNotFiniteMatterWhereTheyAreRead) {
  const auto parse = [](const std::string& field) {
    std::string text = Small("llama").dump();
    text.insert(1, field + ",");
    return ParseModelSpec(text, std::nullopt, "dir");
  };
  for (const char* unread : {"\"router_aux_loss_coef\": NaN", "\"mystery\": [Infinity, -Infinity]",
                             "\"task_specific_params\": {\"x\": NaN}"}) {
    EXPECT_TRUE(parse(unread).ok()) << unread << parse(unread).status();
  }
  json config = Small("llama");
  config.erase("rope_theta");
  std::string text = config.dump();
  text.insert(1, "\"rope_theta\": Infinity,");
  EXPECT_THAT(std::string(ParseModelSpec(text, std::nullopt, "dir").status().message()),
              HasSubstr("dir/config.json: rope_theta is Infinity, expected a number from 1"));
}

}  // namespace
}  // namespace fastdecode
