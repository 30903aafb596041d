"""The small models of tests/golden/transformers: what each of them shows, and its configuration."""

import dataclasses

import torch
import transformers

VOCABULARY = 128


@dataclasses.dataclass
class Family:
    """A class of transformers' and the fields of a tiny model of it."""

    config: type
    base: dict
    one_plus: bool = False  # norms multiply by 1 + weight
    auto: type = transformers.AutoModelForCausalLM


@dataclasses.dataclass
class Case:
    """What differs from the family's base."""

    about: str
    config: dict = dataclasses.field(default_factory=dict)
    # Fields that switch the feature off, or several such sets: each must change the logits.
    without: dict | list[dict] = dataclasses.field(default_factory=list)
    # For features that no field switches off. Of tensors whose names match: the value that makes them do nothing, which
    # must change the logits.
    neutral: dict[str, float] = dataclasses.field(default_factory=dict)
    same: dict | None = None  # fields that must change nothing
    family: str = "llama"
    dtype: torch.dtype = torch.float32
    shard_size: str = "1GB"
    # Standard deviations of weights. With large biases a model says the same token again and again.
    embedding: float | None = None
    bias: float = 0.3
    head_norm: float = 1.6  # the mean of the weights of norms of q and k, which decides how peaked attention is
    long_rope: bool = False  # longrope's long factors for every length, see make_transformers_goldens.py
    # The published form, where it is not as transformers 5 saves.
    old_config: bool = False  # config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype
    omit: tuple = ()  # fields that are not there, because the class' default is meant
    omit_of_wrapper: tuple = ()
    extra: dict = dataclasses.field(default_factory=dict)  # fields that are there as well
    rename: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # of tensors: pattern, replacement
    tensors: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # which are to be ignored


BASE = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=False)


def heads(query, key_value, size, **more):
    return dict(num_attention_heads=query, num_key_value_heads=key_value, head_dim=size, **more)


def rope(theta, **more):
    return dict(rope_parameters=dict(dict(rope_type="default"), rope_theta=theta, **more))


def two_ropes(sliding, full, **more):
    """Windowed layers have a plain rope, the others may have a scaled one."""
    return dict(rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=sliding),
                                     full_attention=dict(dict(rope_type="default"), rope_theta=full, **more)))


def without_fields(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


# Families of Llama's shape: those whose configuration has a head_dim, and those whose heads share out hidden_size.
FREE = dict(BASE, **rope(10000.0), hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
            pad_token_id=0)
SQUARE = dict(without_fields(FREE, "head_dim"), hidden_size=64)
LAYER_NORM = without_fields(SQUARE, "rms_norm_eps")
UNGATED = without_fields(LAYER_NORM, "rope_parameters", "num_key_value_heads", "pad_token_id")

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
# Of 16 pairs each. Published lists begin with factors near 1 and rise.
SHORT_FACTORS = [1.0 + 0.05 * i for i in range(16)]
LONG_FACTORS = [1.0 + 0.02 * i * i * i for i in range(16)]

# Of wrappers' vision towers, which are skipped: as small as their classes allow.
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, patch_size=14,
              image_size=28)


def wrapper(config_class, text_class, vision_class, **more):
    """A configuration class as Family wants it: the fields are those of the text model."""
    def make(**fields):
        return config_class(text_config=text_class(**fields), vision_config=vision_class(**VISION), **more)
    return make


FAMILIES = {
    "llama": Family(transformers.LlamaConfig, dict(BASE, **rope(10000.0))),
    "mistral": Family(transformers.MistralConfig, dict(BASE, **rope(10000.0))),
    "qwen2": Family(transformers.Qwen2Config, SQUARE),
    "qwen3": Family(transformers.Qwen3Config, FREE),
    "smollm3": Family(transformers.SmolLM3Config, SQUARE),
    "granite": Family(transformers.GraniteConfig, SQUARE),
    "phi3": Family(transformers.Phi3Config, dict(SQUARE, original_max_position_embeddings=512)),
    "ministral": Family(transformers.MinistralConfig, FREE),
    "mistral3": Family(
        wrapper(transformers.Mistral3Config, transformers.Ministral3Config, transformers.PixtralVisionConfig,
                tie_word_embeddings=False), FREE, auto=transformers.AutoModelForImageTextToText),
    "mistral3_small": Family(
        wrapper(transformers.Mistral3Config, transformers.MistralConfig, transformers.PixtralVisionConfig,
                tie_word_embeddings=False), FREE, auto=transformers.AutoModelForImageTextToText),
    "gemma": Family(transformers.GemmaConfig, dict(FREE, hidden_size=48, tie_word_embeddings=True), one_plus=True),
    "gemma2": Family(transformers.Gemma2Config, dict(FREE, hidden_size=48, tie_word_embeddings=True), one_plus=True),
    "gemma3_text": Family(transformers.Gemma3TextConfig,
                          dict(without_fields(FREE, "rope_parameters"), tie_word_embeddings=True), one_plus=True),
    "gemma3": Family(
        wrapper(transformers.Gemma3Config, transformers.Gemma3TextConfig, transformers.SiglipVisionConfig,
                mm_tokens_per_image=4),
        dict(without_fields(FREE, "rope_parameters"), tie_word_embeddings=True), one_plus=True,
        auto=transformers.AutoModelForImageTextToText),
    "olmo": Family(transformers.OlmoConfig, LAYER_NORM),
    "olmo2": Family(transformers.Olmo2Config, SQUARE),
    "olmo3": Family(transformers.Olmo3Config, without_fields(SQUARE, "rope_parameters")),
    "opt": Family(transformers.OPTConfig, dict(without_fields(UNGATED, "intermediate_size"), ffn_dim=96, pad_token_id=1,
                                               tie_word_embeddings=True)),
    "gpt_neox": Family(transformers.GPTNeoXConfig,
                       dict(UNGATED, intermediate_size=96, **rope(10000.0, partial_rotary_factor=0.25))),
    "gpt2": Family(transformers.GPT2Config, dict(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=2, n_positions=512,
                                                 bos_token_id=1, eos_token_id=2)),
    "cohere2": Family(transformers.Cohere2Config, dict(LAYER_NORM, tie_word_embeddings=True)),
    "nemotron": Family(transformers.NemotronConfig,
                       dict(without_fields(FREE, "rms_norm_eps"), **rope(10000.0, partial_rotary_factor=0.5)),
                       one_plus=True),
    "starcoder2": Family(transformers.Starcoder2Config, dict(LAYER_NORM, tie_word_embeddings=True)),
    "exaone4": Family(transformers.Exaone4Config, FREE),
    "seed_oss": Family(transformers.SeedOssConfig, FREE),
    "glm": Family(transformers.GlmConfig, dict(FREE, **rope(10000.0, partial_rotary_factor=0.5))),
    "glm4": Family(transformers.Glm4Config, dict(FREE, **rope(10000.0, partial_rotary_factor=0.5))),
}

BF16, F16 = torch.bfloat16, torch.float16

# What is Llama's and Mistral's own, one case a feature.
LLAMA_CASES = {
    "mha": Case("as many KV heads as query heads", heads(3, 3, 32)),
    "gqa": Case("two query heads share a KV head"),
    "mqa": Case("one KV head", heads(4, 1, 32)),
    "tied": Case("the head is the embedding", dict(tie_word_embeddings=True)),
    "rope_linear": Case("rope scaling linear", rope(10000.0, rope_type="linear", factor=4.0), rope(10000.0),
                        old_config=True),
    "rope_llama3": Case("rope scaling llama3, beyond the original context of 64", rope(10000.0, **LLAMA3),
                        rope(10000.0)),
    "sliding_window": Case("a query sees 32 tokens, itself included", dict(rope(1e6), sliding_window=32),
                           dict(sliding_window=None), family="mistral", old_config=True),
    "biases": Case("bias on q, k, v, o and on the MLP", dict(attention_bias=True, mlp_bias=True),
                   dict(attention_bias=False, mlp_bias=False)),
    "head_32": Case("three query heads of 32 a KV head", heads(3, 1, 32)),
    "head_48": Case("head size 48", heads(2, 1, 48)),
    "head_64": Case("head size 64, theta 500000", dict(heads(2, 1, 64), **rope(500000.0)), rope(10000.0),
                    old_config=True),
    "head_80": Case("head size 80", heads(2, 1, 80)),
    "head_96": Case("head size 96", heads(2, 1, 96, hidden_size=32)),
    "head_128": Case("head size 128, rope scaling llama3",
                     dict(heads(2, 1, 128, hidden_size=32), **rope(500000.0, **LLAMA3)), rope(500000.0),
                     old_config=True),
    "head_256": Case("head size 256", heads(2, 1, 256, hidden_size=32, intermediate_size=48)),
    "sharded": Case("several safetensors files and an index", shard_size="100KB"),
    "bf16": Case("weights stored as bf16", dtype=BF16),
    "f16": Case("weights stored as f16", dtype=F16),
    # Without an attention_factor, cos and sin are multiplied by 0.1 ln(factor) + 1.
    "rope_yarn": Case("rope scaling yarn, beyond the original context of 64",
                      dict(heads(2, 1, 32, hidden_size=32), **rope(10000.0, **YARN)), rope(10000.0), old_config=True),
    # Up to max_position_embeddings this is the plain rope, and nothing here is longer. Beyond, theta depends on the
    # length of the whole sequence, so that keys in a cache would have to be rotated again.
    "rope_dynamic": Case("rope scaling dynamic, within max_position_embeddings",
                         dict(heads(2, 1, 32, hidden_size=32), **rope(10000.0, rope_type="dynamic", factor=4.0)),
                         same=rope(10000.0), old_config=True),
}

FAMILY_CASES = {
    # No field says that q, k and v have biases, and o has none. sliding_window stands in published files although
    # use_sliding_window, which is false where it is missing, switches it off.
    "qwen2": Case("bias on q, k, v; tied; a sliding_window that is not used", dict(
                      rope(1e6), rms_norm_eps=1e-6, tie_word_embeddings=True, max_window_layers=0),
                  neutral={"bias$": 0.0}, family="qwen2", dtype=BF16, old_config=True, omit=("layer_types",),
                  extra=dict(sliding_window=32)),
    "qwen2_window": Case("a window of 32 in layers from max_window_layers, 2, of 4",
                         dict(rope(1e6), num_hidden_layers=4, intermediate_size=32, use_sliding_window=True,
                              sliding_window=32, max_window_layers=2),
                         [dict(sliding_window=512), dict(layer_types=["sliding_attention"] * 4)], family="qwen2",
                         dtype=BF16, old_config=True, omit=("layer_types",)),
    "qwen3": Case("a norm of each head of q and k; heads * head_dim is not hidden_size", dict(rope(1e6)),
                  neutral={"[qk]_norm": 1.0}, family="qwen3", old_config=True, omit=("layer_types",)),
    "smollm3": Case("no rope in each fourth layer; tied", dict(
                        rope(2e6), num_hidden_layers=4, intermediate_size=32, tie_word_embeddings=True),
                    dict(no_rope_layers=[1] * 4), family="smollm3", dtype=BF16, old_config=True,
                    omit=("tie_word_embeddings", "layer_types", "no_rope_layers")),
    "granite": Case("multipliers of embeddings, residuals, attention and logits", dict(
                        embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.25,
                        logits_scaling=4.0),
                    [dict(embedding_multiplier=1.0), dict(residual_multiplier=1.0),
                     dict(attention_multiplier=32 ** -0.5), dict(logits_scaling=1.0)],
                    family="granite", dtype=BF16, embedding=0.3, old_config=True),
    # A rope of 24 of 32 dimensions: its pairs are (i, i + 12).
    "phi3": Case("fused q, k, v and gate, up; three quarters of a head rotated; a window of 48",
                 dict(rope(10000.0, partial_rotary_factor=0.75), sliding_window=48),
                 [rope(10000.0, partial_rotary_factor=1.0), dict(sliding_window=512)], family="phi3", dtype=BF16,
                 old_config=True),
    # transformers takes the long factors as soon as a sequence is longer than original_max_position_embeddings, so that
    # the keys of one sequence are rotated by two tables. FastDecode decides once, by the longest context that it
    # allows, as vLLM does: here, with 512 against 64, that is the long table for every length, which long_rope makes
    # transformers take too. cos and sin are multiplied by sqrt(1 + ln(512 / 64) / ln 64), by both tables.
    "phi3_longrope": Case("longrope's long factors, for every length", dict(
                              rope(10000.0, rope_type="longrope", short_factor=SHORT_FACTORS, long_factor=LONG_FACTORS,
                                   partial_rotary_factor=1.0, original_max_position_embeddings=64),
                              original_max_position_embeddings=64, sliding_window=512),
                          [rope(10000.0, partial_rotary_factor=1.0),
                           rope(10000.0, rope_type="longrope", short_factor=SHORT_FACTORS, long_factor=SHORT_FACTORS,
                                partial_rotary_factor=1.0, original_max_position_embeddings=64)],
                          family="phi3", dtype=BF16, long_rope=True, old_config=True, omit=("partial_rotary_factor",)),
    "ministral": Case("windows by layer_types", dict(
                          rope(1e6), num_hidden_layers=4, sliding_window=32,
                          layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
                      [dict(sliding_window=512), dict(layer_types=["sliding_attention"] * 4)], family="ministral",
                      dtype=BF16),
    # mscale and mscale_all_dim are equal, so that yarn's attention_factor is 1. q is multiplied, after the rope, by
    # 1 + llama_4_scaling_beta * ln(1 + floor(position / original_max_position_embeddings)).
    "mistral3": Case("a wrapper with a vision tower; yarn; q grows with the position", dict(
                         rope(1e6, **YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                              llama_4_scaling_beta=0.4, type="yarn"), num_hidden_layers=3),
                     [rope(1e6, **YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                           llama_4_scaling_beta=0.0, type="yarn"),
                      rope(1e6, rope_type="default", llama_4_scaling_beta=0.4, original_max_position_embeddings=64)],
                     family="mistral3", dtype=BF16),
    # Mistral Small 3: no field says whether the head is tied. The wrapper's default is that it is, but transformers
    # does not tie what it finds in the file: there is a head of its own.
    "mistral3_small": Case("a wrapper with a Mistral that has a head of its own, without saying so",
                           dict(rope(1e9), sliding_window=None), family="mistral3_small", dtype=BF16, old_config=True,
                           omit=("tie_word_embeddings",), omit_of_wrapper=("tie_word_embeddings",)),
    # Of all Gemmas: weights of norms are stored less 1. The embedding is multiplied by sqrt(hidden_size), which is
    # rounded to the type of the weights as loaded: here it is in float32, and in transformers' bf16 run in bf16.
    # hidden_act "gelu" means the tanh form.
    "gemma": Case("norms of 1 + weight; scaled embeddings; gelu_tanh that is called gelu", dict(heads(2, 1, 32)),
                  neutral={"norm": 0.0}, family="gemma", embedding=0.05, old_config=True, omit=("tie_word_embeddings",),
                  extra=dict(hidden_act="gelu")),
    # Norms before and after attention and MLP: pre_feedforward_layernorm and post_feedforward_layernorm are the MLP's,
    # and post_attention_layernorm stands behind attention, not before the MLP as in Llama. The scale is
    # query_pre_attn_scalar^-1/2. Layers 0, 2, .. are windowed.
    "gemma2": Case("soft caps on attention and logits; norms around each block; a window of 32 in every other layer",
                   dict(num_hidden_layers=4, sliding_window=32, attn_logit_softcapping=6.0, final_logit_softcapping=1.5,
                        query_pre_attn_scalar=4),
                   [dict(sliding_window=512), dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None),
                    dict(query_pre_attn_scalar=32)], family="gemma2", dtype=BF16, embedding=0.05, old_config=True,
                   omit=("tie_word_embeddings", "layer_types"), neutral={"post_.*norm": 0.0}),
    # rope_scaling is that of the full layers alone, and needs rope_type: with the old spelling, type, transformers
    # ignores it. attn_logit_softcapping is stored, but never applied.
    "gemma3_text": Case("two ropes, that of the full layers scaled; norms of q and k; a window of 32 in 4 of 6 layers",
                        dict(two_ropes(10000.0, 1e6, rope_type="linear", factor=8.0), num_hidden_layers=6,
                             sliding_window=32, query_pre_attn_scalar=24,
                             layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2),
                        [dict(sliding_window=512), two_ropes(10000.0, 1e6),
                         two_ropes(1e6, 1e6, rope_type="linear", factor=8.0), dict(query_pre_attn_scalar=32)],
                        neutral={"[qk]_norm": 0.0}, family="gemma3_text", dtype=BF16, embedding=0.05, old_config=True,
                        omit=("tie_word_embeddings", "layer_types", "_sliding_window_pattern"),
                        extra=dict(sliding_window_pattern=3)),
    # Published text_configs leave out what is the class' default: both thetas, the pattern of 6, epsilon,
    # query_pre_attn_scalar = 256 whatever head_dim is, and that the head is tied.
    "gemma3": Case("a wrapper with a vision tower, and a text_config of defaults", dict(
                       two_ropes(10000.0, 1e6, rope_type="linear", factor=8.0), num_hidden_layers=6, sliding_window=32,
                       rms_norm_eps=1e-6, max_position_embeddings=131072, bos_token_id=2, eos_token_id=1),
                   [dict(sliding_window=512), two_ropes(10000.0, 1e6), dict(query_pre_attn_scalar=32)], family="gemma3",
                   dtype=BF16, embedding=0.05, head_norm=2.7, old_config=True,
                   omit=("tie_word_embeddings", "layer_types", "rope_theta", "rope_local_base_freq", "rms_norm_eps",
                         "query_pre_attn_scalar", "max_position_embeddings", "hidden_activation",
                         "attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention",
                         "attention_bias", "attention_dropout", "_sliding_window_pattern", "bos_token_id",
                         "eos_token_id", "pad_token_id"),
                   omit_of_wrapper=("tie_word_embeddings",)),
    # The norms of OLMo 1 are LayerNorms without weights and with an epsilon of 1e-5 that no field says.
    "olmo": Case("LayerNorm without weights; q, k, v clipped", dict(clip_qkv=1.5), dict(clip_qkv=None), family="olmo",
                 dtype=BF16, old_config=True),
    # No field switches the order of the norms. The mean of a norm of q or k is taken over all heads of a token.
    "olmo2": Case("norms after attention and MLP alone; norms of all heads of q and k at once", family="olmo2",
                  dtype=BF16, neutral={"[qk]_norm": 1.0, "post_attention_layernorm": 1.0}, old_config=True),
    # If rope_theta is not the class' 500000, transformers 5 takes it for the full layers alone, and leaves the windowed
    # ones with 500000; all published ones have 500000.
    "olmo3": Case("OLMo 2 with a window of 32 in 3 of 4 layers, and yarn in the full one", dict(
                      two_ropes(500000.0, 500000.0, **dict(YARN, factor=8.0), beta_fast=32.0, beta_slow=1.0,
                                attention_factor=1.2079441541679836),
                      num_hidden_layers=4, intermediate_size=32, sliding_window=32),
                  [dict(sliding_window=512), two_ropes(500000.0, 500000.0)], family="olmo3", dtype=BF16,
                  old_config=True),
    # Position p takes row p + 2 of embed_positions. The epsilon of all norms is 1e-5, which no field says.
    "opt": Case("LayerNorm, learned positions, an MLP of ReLU without gate; biases", family="opt", dtype=F16,
                embedding=0.1, bias=0.1, neutral={"bias$": 0.0, "embed_positions": 0.0, "layer_norm.weight": 1.0},
                old_config=True, omit=("tie_word_embeddings", "enable_bias", "layer_norm_elementwise_affine")),
    # The norm is behind the sum: x = norm(x + attention(x)), x = norm(x + mlp(x)), and there is none at the end.
    # project_in stands before the positions are added, project_out before the tied head.
    "opt_350m": Case("OPT with norms after the sums, and an embedding narrower than hidden_size", dict(
                         do_layer_norm_before=False, word_embed_proj_dim=48),
                     neutral={"bias$": 0.0, "embed_positions": 0.0}, family="opt", dtype=F16, embedding=0.1, bias=0.1,
                     old_config=True,
                     omit=("tie_word_embeddings", "enable_bias", "layer_norm_elementwise_affine"),
                     rename=[("^model.decoder", "decoder")]),
    # The rows of query_key_value are [head][q, k, v][head_dim].
    "gpt_neox": Case("parallel attention and MLP, each with a norm; a quarter of a head rotated; fused by heads",
                     without=[dict(use_parallel_residual=False), rope(10000.0, partial_rotary_factor=1.0)],
                     neutral={"bias$": 0.0}, family="gpt_neox", dtype=F16, bias=0.1, old_config=True,
                     omit=("attention_bias", "is_decoder"),
                     tensors={"gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
                              "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(4)}),
    "gpt_neox_serial": Case("GPT-NeoX with the MLP after attention", dict(use_parallel_residual=False),
                            dict(use_parallel_residual=True), family="gpt_neox", dtype=BF16, bias=0.1),
    # Linear weights are stored [in, out]. Published files have no prefix.
    "gpt2": Case("transposed weights, learned positions, gelu_new", neutral={"bias$": 0.0, "wpe": 0.0}, family="gpt2",
                 dtype=BF16, embedding=0.1, bias=0.1, old_config=True,
                 omit=("tie_word_embeddings", "add_cross_attention", "pad_token_id", "scale_attn_by_inverse_layer_idx",
                       "reorder_and_upcast_attn"),
                 extra=dict(n_ctx=512), rename=[("^transformer.", "")],
                 tensors={"h.0.attn.bias": torch.ones(1, 1, 4, 4)}),
    # Pairs of the rope are (2i, 2i + 1). Layers without a window have no rope. Logits are multiplied by logit_scale.
    "cohere2": Case("parallel attention and MLP with one norm; an interleaved rope in windowed layers alone", dict(
                        num_hidden_layers=4, intermediate_size=32, sliding_window=32, logit_scale=0.25),
                    [dict(sliding_window=512), dict(logit_scale=1.0), dict(layer_types=["sliding_attention"] * 4)],
                    family="cohere2", dtype=BF16, old_config=True, omit=("tie_word_embeddings", "layer_types"),
                    extra=dict(sliding_window_pattern=4)),
    # Where partial_rotary_factor is missing, it is 0.5.
    # Wide, because squares make few elements count: then one rounding decides how large the error is.
    "nemotron": Case("LayerNorm of 1 + weight; squared ReLU without gate; half of a head rotated",
                     dict(intermediate_size=256),
                     without=rope(10000.0, partial_rotary_factor=1.0), neutral={"norm.*weight": 0.0},
                     family="nemotron", old_config=True, dtype=BF16),
    "starcoder2": Case("LayerNorm, gelu_tanh without gate, biases; tied; a window of 32", dict(sliding_window=32),
                       dict(sliding_window=512), neutral={"bias$": 0.0}, family="starcoder2", dtype=BF16,
                       embedding=0.1, bias=0.1, old_config=True, omit=("tie_word_embeddings",)),
    # Layers without a window have no rope, but only if others have a window.
    # sliding_window_pattern is a number or letters; layer_types wins over it.
    "exaone4": Case("norms after attention and MLP alone; norms of q and k by heads; rope in windowed layers alone",
                    dict(rope(1e6), num_hidden_layers=4, sliding_window=32, sliding_window_pattern="LLLG",
                         layer_types=["sliding_attention"] * 3 + ["full_attention"]),
                    [dict(sliding_window=512), dict(layer_types=["sliding_attention"] * 4)],
                    neutral={"[qk]_norm": 1.0}, family="exaone4", dtype=BF16, old_config=True),
    "seed_oss": Case("bias on q, k, v and on o, by two fields", dict(attention_bias=True, attention_out_bias=True),
                     [dict(attention_bias=False), dict(attention_out_bias=False)], family="seed_oss", dtype=BF16,
                     old_config=True),
    "glm": Case("an interleaved rope of half a head; fused gate, up; bias on q, k, v", dict(attention_bias=True),
                [rope(10000.0, partial_rotary_factor=1.0), dict(attention_bias=False)], family="glm", dtype=BF16,
                old_config=True),
    # post_attention_layernorm stands before the MLP, as in Llama; post_self_attn_layernorm and post_mlp_layernorm are
    # those of the outputs.
    "glm4": Case("GLM with norms after attention and MLP too", dict(attention_bias=True),
                 [rope(10000.0, partial_rotary_factor=1.0), dict(attention_bias=False)],
                 neutral={"post_self_attn_layernorm": 1.0, "post_mlp_layernorm": 1.0}, family="glm4", dtype=BF16,
                 old_config=True),
}

CASES = LLAMA_CASES | FAMILY_CASES
