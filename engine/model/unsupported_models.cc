#include "engine/model/unsupported_models.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

constexpr char kExperts[] = "its layers are mixtures of experts: a router and many MLPs a layer";
constexpr char kLatent[] =
    "its attention is multi-head latent attention (MLA): keys and values are made of a compressed row, of which heads "
    "of 576 elements share one";
constexpr char kRecurrent[] =
    "most of its layers are recurrent: they keep a state per sequence instead of keys and values";
constexpr char kAlibi[] = "it has no positions but ALiBi, a bias of the attention's scores";
constexpr char kEncoder[] = "it is an encoder-decoder: attention over an encoder's output";
constexpr char kEmbeddings[] = "it is an encoder, which makes embeddings and no text";
constexpr char kPerLayer[] = "its layers differ in head size, and some attend to other layers' keys and values";
constexpr char kVision[] = "it is a vision-language model whose text model has positions of its own (M-RoPE)";

struct Unsupported {
  const char* model_type;
  const char* needs;
};

// By model_type, of wrappers and of the text models in them.
constexpr Unsupported kUnsupported[] = {
    {"mixtral", kExperts},
    {"qwen2_moe", kExperts},
    {"qwen3_moe", kExperts},
    {"qwen3_vl_moe", kExperts},
    {"olmoe", kExperts},
    {"granitemoe", kExperts},
    {"granitemoeshared", kExperts},
    {"phimoe", kExperts},
    {"dbrx", kExperts},
    {"jetmoe", kExperts},
    {"glm4_moe", kExperts},
    {"ernie4_5_moe", kExperts},
    {"hunyuan_v1_moe", kExperts},
    {"minimax", kExperts},
    {"minimax_m2", kExperts},
    {"llama4", kExperts},
    {"llama4_text", kExperts},
    {"gpt_oss", "its layers are mixtures of experts with weights in MXFP4, and its attention has sinks"},
    {"deepseek_v2", kLatent},
    {"deepseek_v3", kLatent},
    {"deepseek_v32", kLatent},
    {"deepseek_v4", kLatent},
    {"kimi_k2", kLatent},
    {"minicpm3", kLatent},
    {"glm4_moe_lite", kLatent},
    {"glm_moe_dsa", kLatent},
    {"longcat_flash", kLatent},
    {"qwen3_next", kRecurrent},
    {"qwen3_5", kRecurrent},
    {"qwen3_5_text", kRecurrent},
    {"qwen3_5_moe", kRecurrent},
    {"qwen3_5_moe_text", kRecurrent},
    {"nemotron_h", kRecurrent},
    {"granitemoehybrid", kRecurrent},
    {"kimi_linear", kRecurrent},
    {"falcon_h1", kRecurrent},
    {"bamba", kRecurrent},
    {"jamba", kRecurrent},
    {"zamba2", kRecurrent},
    {"lfm2", kRecurrent},
    {"recurrent_gemma", kRecurrent},
    {"mamba", kRecurrent},
    {"mamba2", kRecurrent},
    {"falcon_mamba", kRecurrent},
    {"rwkv", kRecurrent},
    {"bloom", kAlibi},
    {"mpt", kAlibi},
    {"falcon", "its queries, keys and values are fused in groups, and older ones have ALiBi"},
    {"baichuan", "its queries, keys and values are fused under another name, and the larger ones have ALiBi"},
    {"t5", kEncoder},
    {"mt5", kEncoder},
    {"umt5", kEncoder},
    {"t5gemma", kEncoder},
    {"bart", kEncoder},
    {"mbart", kEncoder},
    {"marian", kEncoder},
    {"m2m_100", kEncoder},
    {"pegasus", kEncoder},
    {"whisper", kEncoder},
    {"bert", kEmbeddings},
    {"roberta", kEmbeddings},
    {"xlm-roberta", kEmbeddings},
    {"distilbert", kEmbeddings},
    {"albert", kEmbeddings},
    {"electra", kEmbeddings},
    {"deberta-v2", kEmbeddings},
    {"mpnet", kEmbeddings},
    {"modernbert", kEmbeddings},
    {"nomic_bert", kEmbeddings},
    {"clip", kEmbeddings},
    {"siglip", kEmbeddings},
    {"gemma3n", kPerLayer},
    {"gemma3n_text", kPerLayer},
    {"gemma4", kPerLayer},
    {"gemma4_text", kPerLayer},
    {"qwen2_vl", kVision},
    {"qwen2_5_vl", kVision},
    {"qwen3_vl", kVision},
};

}  // namespace

std::optional<std::string> WhatModelTypeNeeds(const std::string& model_type) {
  for (const Unsupported& one : kUnsupported) {
    if (model_type == one.model_type) return one.needs;
  }
  return std::nullopt;
}

bool IsUnknownQuantization(const nlohmann::json& config) {
  // These are the methods of transformers' quantizers/auto.py.
  constexpr std::string_view kKnown[] = {"gguf",
                                         "awq",
                                         "bitsandbytes",
                                         "bitsandbytes_4bit",
                                         "bitsandbytes_8bit",
                                         "eetq",
                                         "gptq",
                                         "aqlm",
                                         "quanto",
                                         "quark",
                                         "fouroversix",
                                         "fp_quant",
                                         "hqq",
                                         "torchao",
                                         "bitnet",
                                         "vptq",
                                         "compressed-tensors",
                                         "fbgemm_fp8",
                                         "higgs",
                                         "spqr",
                                         "fp8",
                                         "nvfp4",
                                         "mxfp8",
                                         "auto-round",
                                         "mxfp4",
                                         "metal",
                                         "sinq",
                                         "gemma"};
  if (!config.is_object() || config.contains("load_in_8bit") || config.contains("load_in_4bit")) return false;
  const auto method = config.find("quant_method");
  if (method == config.end() || !method->is_string()) return false;
  return std::ranges::find(kKnown, method->get_ref<const std::string&>()) == std::end(kKnown);
}

std::string DescribeQuantization(const nlohmann::json& config) {
  if (!config.is_object()) return ShowJson(config);
  const auto method = config.find("quant_method");
  std::string text =
      method != config.end() && method->is_string() ? ShowText(method->get<std::string>()) : "of no kind";
  for (const char* name : {"bits", "num_bits", "weight_bits"}) {
    const auto bits = config.find(name);
    if (bits != config.end() && bits->is_number_integer()) absl::StrAppend(&text, ", ", ShowJson(*bits), " bits");
  }
  return text;
}

}  // namespace fastdecode
