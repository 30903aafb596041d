#include "engine/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

// hidden 32, q_width 64, kv_width 16, intermediate 48, vocab 10.
ModelSpec Spec() {
  ModelSpec spec;
  spec.family = "llama";
  spec.layers = 2;
  spec.hidden = 32;
  spec.heads = 4;
  spec.kv_heads = 1;
  spec.head_dim = 16;
  spec.intermediate = 48;
  spec.vocab = 10;
  spec.max_context = 64;
  return spec;
}

// What a Hugging Face Llama of that spec has; written out by hand, layer by layer.
std::vector<PlainTensor> Tensors(bool biases = false) {
  std::vector<PlainTensor> tensors = {
      {"model.embed_tokens.weight", {10, 32}}, {"model.norm.weight", {32}}, {"lm_head.weight", {10, 32}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors.push_back({layer + "input_layernorm.weight", {32}});
    tensors.push_back({layer + "post_attention_layernorm.weight", {32}});
    tensors.push_back({layer + "self_attn.q_proj.weight", {64, 32}});
    tensors.push_back({layer + "self_attn.k_proj.weight", {16, 32}});
    tensors.push_back({layer + "self_attn.v_proj.weight", {16, 32}});
    tensors.push_back({layer + "self_attn.o_proj.weight", {32, 64}});
    tensors.push_back({layer + "mlp.gate_proj.weight", {48, 32}});
    tensors.push_back({layer + "mlp.up_proj.weight", {48, 32}});
    tensors.push_back({layer + "mlp.down_proj.weight", {32, 48}});
    if (!biases) continue;
    tensors.push_back({layer + "self_attn.q_proj.bias", {64}});
    tensors.push_back({layer + "self_attn.k_proj.bias", {16}});
    tensors.push_back({layer + "self_attn.v_proj.bias", {16}});
    tensors.push_back({layer + "self_attn.o_proj.bias", {32}});
    tensors.push_back({layer + "mlp.gate_proj.bias", {48}});
    tensors.push_back({layer + "mlp.up_proj.bias", {48}});
    tensors.push_back({layer + "mlp.down_proj.bias", {32}});
  }
  return tensors;
}

// A folder with these tensors, opened.
class Folder {
 public:
  explicit Folder(const std::vector<PlainTensor>& tensors) : checkpoint_(Write(dir_, tensors)) {}
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  std::string path() const { return dir_.File("model.safetensors"); }

 private:
  static absl::StatusOr<Checkpoint> Write(const ScratchDir& dir, const std::vector<PlainTensor>& tensors) {
    dir.Write("model.safetensors", ZeroSafetensors(tensors));
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint;
  }
  ScratchDir dir_;
  absl::StatusOr<Checkpoint> checkpoint_;
};

// The error after `edit` has changed the tensors; "FILE" stands for the file's path.
template <typename Edit>
std::string ErrorAfter(const ModelSpec& spec, const Edit& edit) {
  std::vector<PlainTensor> tensors = Tensors();
  edit(&tensors);
  const Folder folder(tensors);
  const auto weights = MapWeights(spec, folder.checkpoint());
  EXPECT_FALSE(weights.ok());
  std::string error(weights.status().message());
  const size_t at = error.find(folder.path());
  EXPECT_EQ(at, 0u) << error;
  return at == 0 ? error.replace(0, folder.path().size(), "FILE") : error;
}

PlainTensor* FindPlain(std::vector<PlainTensor>* tensors, const std::string& name) {
  for (PlainTensor& tensor : *tensors) {
    if (tensor.name == name) return &tensor;
  }
  ADD_FAILURE() << name;
  return &tensors->front();
}

TEST(MapWeights, PutsEveryTensorInItsPlace) {
  const Folder folder(Tensors());
  const auto weights = MapWeights(Spec(), folder.checkpoint());
  ASSERT_TRUE(weights.ok()) << weights.status();
  using enum TensorRole;
  EXPECT_EQ(weights->model[kEmbedding].tensor->name, "model.embed_tokens.weight");
  EXPECT_EQ(weights->model[kFinalNorm].tensor->name, "model.norm.weight");
  EXPECT_EQ(weights->model[kHead].tensor->name, "lm_head.weight");
  ASSERT_EQ(weights->layers.size(), 2u);
  const RoleViews& layer = weights->layers[1];
  EXPECT_EQ(layer[kAttentionNorm].tensor->name, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(layer[kQ].tensor->name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(layer[kK].tensor->name, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(layer[kV].tensor->name, "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(layer[kO].tensor->name, "model.layers.1.self_attn.o_proj.weight");
  EXPECT_EQ(layer[kMlpNorm].tensor->name, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(layer[kGate].tensor->name, "model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(layer[kUp].tensor->name, "model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(layer[kDown].tensor->name, "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(layer[kQ].tensor->data, folder.checkpoint().Find(layer[kQ].tensor->name)->data);
  for (const TensorRole bias : {kQBias, kKBias, kVBias, kOBias, kGateBias, kUpBias, kDownBias}) {
    EXPECT_EQ(layer.Find(bias), nullptr);
  }
}

TEST(MapWeights, PutsBiasesInTheirPlaces) {
  ModelSpec spec = Spec();
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  const Folder folder(Tensors(/*biases=*/true));
  const auto weights = MapWeights(spec, folder.checkpoint());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const RoleViews& layer = weights->layers[0];
  EXPECT_EQ(layer[TensorRole::kQBias].tensor->name, "model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(layer[TensorRole::kKBias].tensor->name, "model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(layer[TensorRole::kVBias].tensor->name, "model.layers.0.self_attn.v_proj.bias");
  EXPECT_EQ(layer[TensorRole::kOBias].tensor->name, "model.layers.0.self_attn.o_proj.bias");
  EXPECT_EQ(layer[TensorRole::kGateBias].tensor->name, "model.layers.0.mlp.gate_proj.bias");
  EXPECT_EQ(layer[TensorRole::kUpBias].tensor->name, "model.layers.0.mlp.up_proj.bias");
  EXPECT_EQ(layer[TensorRole::kDownBias].tensor->name, "model.layers.0.mlp.down_proj.bias");
}

TEST(MapWeights, TiedHeadIsTheEmbedding) {
  ModelSpec spec = Spec();
  spec.tied_embeddings = true;
  std::vector<PlainTensor> tensors = Tensors();
  const Folder with_copy(tensors);
  auto weights = MapWeights(spec, with_copy.checkpoint());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->model[TensorRole::kHead].tensor, weights->model[TensorRole::kEmbedding].tensor);
  tensors.erase(tensors.begin() + 2);
  const Folder without_copy(tensors);
  weights = MapWeights(spec, without_copy.checkpoint());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->model[TensorRole::kHead].tensor, weights->model[TensorRole::kEmbedding].tensor);
}

TEST(MapWeights, IgnoresRotaryFrequencies) {
  std::vector<PlainTensor> tensors = Tensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {8}});
  tensors.push_back({"model.layers.17.self_attn.rotary_emb.inv_freq", {8}});
  const Folder folder(tensors);
  EXPECT_TRUE(MapWeights(Spec(), folder.checkpoint()).ok());
  EXPECT_THAT(MapWeights(Spec(), folder.checkpoint())->notes, testing::IsEmpty());
}

TEST(MapWeights, RefusesMissingTensors) {
  for (const PlainTensor& tensor : Tensors()) {
    const std::string error = ErrorAfter(Spec(), [&](std::vector<PlainTensor>* tensors) {
      std::erase_if(*tensors, [&](const PlainTensor& other) { return other.name == tensor.name; });
    });
    EXPECT_EQ(error, "FILE: tensor " + tensor.name + " is missing, expected it with shape " + ShowShape(tensor.shape) +
                         (tensor.name == "lm_head.weight"
                              ? " (where the embedding is the head, config.json has \"tie_word_embeddings\": true)"
                              : ""));
  }
}

TEST(MapWeights, RefusesMisshapenTensors) {
  for (const PlainTensor& tensor : Tensors()) {
    std::vector<int64_t> shape = tensor.shape;
    shape.back() += 1;
    const auto with_shape = [&](std::vector<PlainTensor>* tensors) { FindPlain(tensors, tensor.name)->shape = shape; };
    EXPECT_EQ(ErrorAfter(Spec(), with_shape), "FILE: tensor " + tensor.name + ": shape is " + ShowShape(shape) +
                                                  ", expected " + ShowShape(tensor.shape));
    // Right size, wrong rank.
    shape = tensor.shape;
    shape.push_back(1);
    EXPECT_THAT(ErrorAfter(Spec(), with_shape), HasSubstr("tensor " + tensor.name + ": shape is " + ShowShape(shape)));
  }
}

TEST(MapWeights, RefusesUnknownFamily) {
  ModelSpec spec = Spec();
  spec.family = "alpaca";
  const Folder folder(Tensors());
  EXPECT_THAT(std::string(MapWeights(spec, folder.checkpoint()).status().message()),
              HasSubstr("model family is \"alpaca\", expected one of llama, mistral"));
}

// As transformers decide it, whatever config.json says.
TEST(MapWeights, AHeadOfItsOwnCountsAndAMissingOneIsTheEmbedding) {
  ModelSpec spec = Spec();
  const auto without = [](const std::string& name) {
    std::vector<PlainTensor> tensors = Tensors();
    std::erase_if(tensors, [&](const PlainTensor& tensor) { return tensor.name == name; });
    return tensors;
  };
  spec.tied_without_head = true;
  {
    const Folder folder(without("lm_head.weight"));
    const auto weights = MapWeights(spec, folder.checkpoint());
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(weights->tied);
    EXPECT_EQ(weights->model[TensorRole::kHead].tensor->name, "model.embed_tokens.weight");
  }
  spec.tied_embeddings = true;
  {
    const Folder folder(without("model.embed_tokens.weight"));
    const auto weights = MapWeights(spec, folder.checkpoint());
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(weights->tied);
    EXPECT_EQ(weights->model[TensorRole::kEmbedding].tensor->name, "lm_head.weight");
  }
  ScratchDir dir;
  for (const bool equal : {true, false}) {
    std::string text = ZeroSafetensors(Tensors());
    const auto checkpoint_of = [&] {
      dir.Write("model.safetensors", text);
      return *Checkpoint::Open(dir.path());
    };
    if (!equal) {
      const Checkpoint plain = checkpoint_of();
      const TensorView* head = plain.Find("lm_head.weight");
      const TensorView* first = &plain.files()[0].tensors()[0];
      size_t bytes = 0;
      for (const TensorView& tensor : plain.files()[0].tensors()) bytes += tensor.bytes;
      text[text.size() - bytes + static_cast<size_t>(head->data - first->data)] = 1;
    }
    const Checkpoint checkpoint = checkpoint_of();
    const auto weights = MapWeights(spec, checkpoint);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->tied, equal);
    EXPECT_EQ(weights->model[TensorRole::kHead].tensor->name, equal ? "model.embed_tokens.weight" : "lm_head.weight");
  }
}

TEST(MapWeights, FindsATextModelUnderAnyOfItsPrefixes) {
  for (const std::string prefix : {"", "model.language_model.", "language_model.model."}) {
    std::vector<PlainTensor> tensors = Tensors();
    for (PlainTensor& tensor : tensors) {
      if (tensor.name.starts_with("model.")) tensor.name = prefix + tensor.name.substr(6);
    }
    tensors.push_back({"vision_tower.encoder.weight", {4, 4}});
    const Folder folder(tensors);
    const auto weights = MapWeights(Spec(), folder.checkpoint());
    ASSERT_TRUE(weights.ok()) << prefix << ": " << weights.status();
    EXPECT_THAT(weights->skipped, testing::ElementsAre("vision_tower (1 tensor)"));
  }
}

}  // namespace
}  // namespace fastdecode
