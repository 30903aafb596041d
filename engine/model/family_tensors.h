#ifndef FASTDECODE_ENGINE_MODEL_FAMILY_TENSORS_H_
#define FASTDECODE_ENGINE_MODEL_FAMILY_TENSORS_H_

#include "engine/model/tensor_table.h"

// How families name their tensors, in pieces that several have in common. For the table in families.cc.
namespace fastdecode::family_tensors {

using enum TensorRole;

inline constexpr TensorRow kEnds[] = {
    {"@embed_tokens.weight", kEmbedding},     {"@norm.weight", kFinalNorm},
    {"@norm.bias", kFinalNormBias},           {"lm_head.weight", kHead},
    {"language_model.lm_head.weight", kHead},
};
inline constexpr TensorRow kAttention[] = {
    {"@layers.*.self_attn.q_proj.weight", kQ},     {"@layers.*.self_attn.k_proj.weight", kK},
    {"@layers.*.self_attn.v_proj.weight", kV},     {"@layers.*.self_attn.o_proj.weight", kO},
    {"@layers.*.self_attn.q_proj.bias", kQBias},   {"@layers.*.self_attn.k_proj.bias", kKBias},
    {"@layers.*.self_attn.v_proj.bias", kVBias},   {"@layers.*.self_attn.o_proj.bias", kOBias},
    {"@layers.*.self_attn.q_norm.weight", kQNorm}, {"@layers.*.self_attn.k_norm.weight", kKNorm},
};
inline constexpr TensorRow kFusedAttention[] = {
    {"@layers.*.self_attn.qkv_proj.weight", kQ, kK, kV},
    {"@layers.*.self_attn.o_proj.weight", kO},
};
inline constexpr TensorRow kMlp[] = {
    {"@layers.*.mlp.gate_proj.weight", kGate}, {"@layers.*.mlp.up_proj.weight", kUp},
    {"@layers.*.mlp.down_proj.weight", kDown}, {"@layers.*.mlp.gate_proj.bias", kGateBias},
    {"@layers.*.mlp.up_proj.bias", kUpBias},   {"@layers.*.mlp.down_proj.bias", kDownBias},
};
inline constexpr TensorRow kFusedMlp[] = {
    {"@layers.*.mlp.gate_up_proj.weight", kGate, kUp},
    {"@layers.*.mlp.down_proj.weight", kDown},
};
inline constexpr TensorRow kNormsBefore[] = {
    {"@layers.*.input_layernorm.weight", kAttentionNorm},
    {"@layers.*.input_layernorm.bias", kAttentionNormBias},
    {"@layers.*.post_attention_layernorm.weight", kMlpNorm},
    {"@layers.*.post_attention_layernorm.bias", kMlpNormBias},
};
// Norms of what branches add, and those before the branches, which some of these families have.
inline constexpr TensorRow kNormsAfter[] = {
    {"@layers.*.input_layernorm.weight", kAttentionNorm},
    {"@layers.*.post_attention_layernorm.weight", kAttentionAfterNorm},
    {"@layers.*.pre_feedforward_layernorm.weight", kMlpNorm},
    {"@layers.*.post_feedforward_layernorm.weight", kMlpAfterNorm},
};
inline constexpr TensorRow kGlm4Norms[] = {
    {"@layers.*.input_layernorm.weight", kAttentionNorm},
    {"@layers.*.post_self_attn_layernorm.weight", kAttentionAfterNorm},
    {"@layers.*.post_attention_layernorm.weight", kMlpNorm},
    {"@layers.*.post_mlp_layernorm.weight", kMlpAfterNorm},
};
inline constexpr TensorRow kOpt[] = {
    {"@embed_tokens.weight", kEmbedding},
    {"@project_in.weight", kProjectIn},
    {"@embed_positions.weight", kPositions},
    {"@layers.*.self_attn_layer_norm.weight", kAttentionNorm},
    {"@layers.*.self_attn_layer_norm.bias", kAttentionNormBias},
    {"@layers.*.self_attn.q_proj.weight", kQ},
    {"@layers.*.self_attn.k_proj.weight", kK},
    {"@layers.*.self_attn.v_proj.weight", kV},
    {"@layers.*.self_attn.out_proj.weight", kO},
    {"@layers.*.self_attn.q_proj.bias", kQBias},
    {"@layers.*.self_attn.k_proj.bias", kKBias},
    {"@layers.*.self_attn.v_proj.bias", kVBias},
    {"@layers.*.self_attn.out_proj.bias", kOBias},
    {"@layers.*.final_layer_norm.weight", kMlpNorm},
    {"@layers.*.final_layer_norm.bias", kMlpNormBias},
    {"@layers.*.fc1.weight", kUp},
    {"@layers.*.fc1.bias", kUpBias},
    {"@layers.*.fc2.weight", kDown},
    {"@layers.*.fc2.bias", kDownBias},
    {"@final_layer_norm.weight", kFinalNorm},
    {"@final_layer_norm.bias", kFinalNormBias},
    {"@project_out.weight", kProjectOut},
    {"lm_head.weight", kHead},
};
inline constexpr TensorRow kGptNeox[] = {
    {"@embed_in.weight", kEmbedding},
    {"@layers.*.input_layernorm.weight", kAttentionNorm},
    {"@layers.*.input_layernorm.bias", kAttentionNormBias},
    {"@layers.*.attention.query_key_value.weight", kQ, kK, kV, TensorLayout::kPerHead},
    {"@layers.*.attention.query_key_value.bias", kQBias, kKBias, kVBias, TensorLayout::kPerHead},
    {"@layers.*.attention.dense.weight", kO},
    {"@layers.*.attention.dense.bias", kOBias},
    {"@layers.*.post_attention_layernorm.weight", kMlpNorm},
    {"@layers.*.post_attention_layernorm.bias", kMlpNormBias},
    {"@layers.*.mlp.dense_h_to_4h.weight", kUp},
    {"@layers.*.mlp.dense_h_to_4h.bias", kUpBias},
    {"@layers.*.mlp.dense_4h_to_h.weight", kDown},
    {"@layers.*.mlp.dense_4h_to_h.bias", kDownBias},
    {"@final_layer_norm.weight", kFinalNorm},
    {"@final_layer_norm.bias", kFinalNormBias},
    {"embed_out.weight", kHead},
    {"lm_head.weight", kHead},
};
inline constexpr TensorRow kGpt2[] = {
    {"@wte.weight", kEmbedding},
    {"@wpe.weight", kPositions},
    {"@h.*.ln_1.weight", kAttentionNorm},
    {"@h.*.ln_1.bias", kAttentionNormBias},
    {"@h.*.attn.c_attn.weight", kQ, kK, kV, TensorLayout::kTransposed},
    {"@h.*.attn.c_attn.bias", kQBias, kKBias, kVBias},
    {"@h.*.attn.c_proj.weight", kO, TensorLayout::kTransposed},
    {"@h.*.attn.c_proj.bias", kOBias},
    {"@h.*.ln_2.weight", kMlpNorm},
    {"@h.*.ln_2.bias", kMlpNormBias},
    {"@h.*.mlp.c_fc.weight", kUp, TensorLayout::kTransposed},
    {"@h.*.mlp.c_fc.bias", kUpBias},
    {"@h.*.mlp.c_proj.weight", kDown, TensorLayout::kTransposed},
    {"@h.*.mlp.c_proj.bias", kDownBias},
    {"@ln_f.weight", kFinalNorm},
    {"@ln_f.bias", kFinalNormBias},
    {"lm_head.weight", kHead},
};
inline constexpr TensorRow kStarcoderMlp[] = {
    {"@layers.*.mlp.c_fc.weight", kUp},
    {"@layers.*.mlp.c_fc.bias", kUpBias},
    {"@layers.*.mlp.c_proj.weight", kDown},
    {"@layers.*.mlp.c_proj.bias", kDownBias},
};

// What stands before tensors of a text model alone, of one inside a wrapper as transformers 5 and as older exports
// write it, and of a model that was saved without its head.
inline constexpr const char* kModelPrefixes[] = {"model.", "model.language_model.", "language_model.model.",
                                                 "language_model.", ""};
inline constexpr const char* kOptPrefixes[] = {"model.decoder.", "decoder."};
inline constexpr const char* kNeoxPrefixes[] = {"gpt_neox.", ""};
inline constexpr const char* kGpt2Prefixes[] = {"transformer.", ""};

// Rotary frequencies, which older exports wrote and which follow from the config; and what a wrapper has besides.
inline constexpr const char* kIgnored[] = {"@layers.*.self_attn.rotary_emb.inv_freq",
                                           "@rotary_emb.inv_freq",
                                           "vision_tower.**",
                                           "multi_modal_projector.**",
                                           "model.vision_tower.**",
                                           "model.multi_modal_projector.**"};
inline constexpr const char* kNeoxIgnored[] = {"@layers.*.attention.rotary_emb.inv_freq", "@layers.*.attention.bias",
                                               "@layers.*.attention.masked_bias"};
inline constexpr const char* kGpt2Ignored[] = {"@h.*.attn.bias", "@h.*.attn.masked_bias"};

inline constexpr TensorTable kLlamaTensors = {{kEnds, kAttention, kMlp, kNormsBefore}, kModelPrefixes, kIgnored};
inline constexpr TensorTable kNormsAfterTensors = {{kEnds, kAttention, kMlp, kNormsAfter}, kModelPrefixes, kIgnored};

}  // namespace fastdecode::family_tensors

#endif  // FASTDECODE_ENGINE_MODEL_FAMILY_TENSORS_H_
