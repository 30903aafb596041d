#include "engine/model/shapes.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fastdecode {
namespace {

struct Shape {
  const char* name;
  ModelSpec spec;
};

ModelSpec Llama2(int layers, int hidden, int heads, int kv_heads, int intermediate) {
  ModelSpec spec;
  spec.family = "llama";
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = hidden / heads;
  spec.intermediate = intermediate;
  spec.vocab = 32000;
  spec.max_context = 4096;
  spec.bos_token_ids = {1};
  spec.eos_token_ids = {2};
  return spec;
}

ModelSpec TinyLlama() {
  ModelSpec spec = Llama2(22, 2048, 32, 4, 5632);
  spec.max_context = 2048;
  return spec;
}

ModelSpec Llama3(int layers, int hidden, int heads, int intermediate) {
  ModelSpec spec = Llama2(layers, hidden, heads, /*kv_heads=*/8, intermediate);
  spec.vocab = 128256;
  spec.max_context = 8192;
  spec.rope.theta = 500000.0;
  spec.bos_token_ids = {128000};
  spec.eos_token_ids = {128001};
  return spec;
}

// Llama 3.1 and 3.2: Llama 3 with its context stretched from 8192 to 131072.
ModelSpec Stretched(ModelSpec spec, double factor, bool tied_embeddings) {
  spec.max_context = 131072;
  spec.rope.scaling = RopeSpec::Scaling::kLlama3;
  spec.rope.factor = factor;
  spec.rope.low_freq_factor = 1.0;
  spec.rope.high_freq_factor = 4.0;
  spec.rope.original_context = 8192;
  spec.tied_embeddings = tied_embeddings;
  return spec;
}

// v0.1, the one with a sliding window.
ModelSpec Mistral7b() {
  ModelSpec spec = Llama2(32, 4096, 32, 8, 14336);
  spec.family = "mistral";
  spec.max_context = 32768;
  spec.sliding_window = 4096;
  return spec;
}

ModelSpec TinyRandom() {
  ModelSpec spec = Llama2(2, 64, 4, 2, 176);
  spec.vocab = 256;
  spec.max_context = 512;
  return spec;
}

// S-Part and R-Part take about as long at some hundred tokens a sequence, in milliseconds: what balances them can be
// tried out on a few cores. Each head has K and V of its own, as in the models of the paper's figures.
ModelSpec Balance() { return Llama2(2, 1024, 16, 16, 2816); }

ModelSpec Qwen25_7b() {
  ModelSpec spec = Llama2(28, 3584, 28, 4, 18944);
  spec.family = "qwen2";
  spec.attention_bias = true;
  spec.vocab = 152064;
  spec.max_context = 32768;
  spec.norm.epsilon = 1e-6;
  spec.rope.theta = 1000000.0;
  spec.bos_token_ids = {151643};
  spec.eos_token_ids = {151645};
  return spec;
}

ModelSpec Qwen3_8b() {
  ModelSpec spec = Qwen25_7b();
  spec.family = "qwen3";
  spec.attention_bias = false;
  spec.layers = 36;
  spec.hidden = 4096;
  spec.heads = 32;
  spec.kv_heads = 8;
  spec.intermediate = 12288;
  spec.vocab = 151936;
  spec.max_context = 40960;
  spec.qk_norm = ModelSpec::QkNorm::kHead;
  return spec;
}

// Each sixth layer sees all; the others see 1,024 tokens, and have a rope of their own.
ModelSpec Gemma3_12b() {
  ModelSpec spec = Llama2(48, 3840, 16, 8, 15360);
  spec.family = "gemma3_text";
  spec.head_dim = 256;
  spec.vocab = 262208;
  spec.max_context = 131072;
  spec.sliding_window = 1024;
  for (int i = 1; i <= spec.layers; ++i) spec.layer_kinds.push_back({.windowed = i % 6 != 0});
  spec.norm = {.epsilon = 1e-6, .one_plus = true};
  spec.norm_after = true;
  spec.qk_norm = ModelSpec::QkNorm::kHead;
  spec.activation = Activation::kGeluTanh;
  spec.tied_embeddings = true;
  spec.rope.theta = 1000000.0;
  spec.rope.scaling = RopeSpec::Scaling::kLinear;
  spec.rope.factor = 8.0;
  spec.window_rope = RopeSpec{};
  spec.embedding_scale = std::sqrt(3840.0);
  spec.scale_in_type = true;
  spec.attention_scale = 0.0625;
  spec.bos_token_ids = {2};
  spec.eos_token_ids = {1, 106};
  return spec;
}

ModelSpec Opt(int layers, int hidden, int heads) {
  ModelSpec spec = Llama2(layers, hidden, heads, heads, 4 * hidden);
  spec.family = "opt";
  spec.vocab = 50272;
  spec.max_context = 2048;
  spec.norm = {.kind = NormSpec::Kind::kLayer, .epsilon = 1e-5, .bias = true};
  spec.activation = Activation::kRelu;
  spec.gated = false;
  spec.tied_embeddings = true;
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  spec.learned_positions = 2050;
  spec.position_offset = 2;
  spec.bos_token_ids = {2};
  spec.eos_token_ids = {2};
  return spec;
}

std::vector<Shape> Shapes() {
  return {
      {"tiny-random", TinyRandom()},
      {"balance", Balance()},
      {"tinyllama-1.1b", TinyLlama()},
      {"llama-2-7b", Llama2(32, 4096, 32, 32, 11008)},
      {"llama-2-13b", Llama2(40, 5120, 40, 40, 13824)},
      {"llama-3-8b", Llama3(32, 4096, 32, 14336)},
      {"llama-3-70b", Llama3(80, 8192, 64, 28672)},
      {"llama-3.1-8b", Stretched(Llama3(32, 4096, 32, 14336), 8.0, false)},
      {"llama-3.2-1b", Stretched(Llama3(16, 2048, 32, 8192), 32.0, true)},
      {"llama-3.2-3b", Stretched(Llama3(28, 3072, 24, 8192), 32.0, true)},
      {"mistral-7b", Mistral7b()},
      {"qwen2.5-7b", Qwen25_7b()},
      {"qwen3-8b", Qwen3_8b()},
      {"gemma-3-12b", Gemma3_12b()},
      {"opt-6.7b", Opt(32, 4096, 32)},
      {"opt-13b", Opt(40, 5120, 40)},
      {"opt-175b", Opt(96, 12288, 96)},
  };
}

}  // namespace

absl::StatusOr<ModelSpec> FindShape(const std::string& name) {
  for (const Shape& shape : Shapes()) {
    if (name == shape.name) return shape.spec;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("shape is \"", name, "\", expected one of ", absl::StrJoin(ShapeNames(), ", ")));
}

void SetLayers(int layers, ModelSpec* spec) {
  spec->layers = layers;
  if (spec->layer_kinds.empty() || layers <= 0) return;
  // The pattern goes on.
  const std::vector<LayerKind> pattern = spec->layer_kinds;
  spec->layer_kinds.resize(static_cast<size_t>(layers));
  for (size_t i = 0; i < spec->layer_kinds.size(); ++i) spec->layer_kinds[i] = pattern[i % pattern.size()];
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : Shapes()) names.emplace_back(shape.name);
  return names;
}

}  // namespace fastdecode
