// Under which names a checkpoint may have a model's tensors, and what is not the model's. What counts is what
// AutoModelForCausalLM.from_pretrained of transformers 5.24 takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/families.h"
#include "engine/model/weights.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelSpec SmallSpec(const Family& family) {
  ModelSpec spec;
  spec.family = family.model_type;
  spec.layers = 2;
  spec.hidden = 32;
  spec.heads = 4;
  spec.kv_heads = family.fields.kv_heads == nullptr ? 4 : 2;
  spec.head_dim = 8;
  spec.intermediate = 48;
  spec.vocab = 10;
  spec.max_context = 64;
  spec.norm = family.traits.norm;
  spec.norm_before = family.traits.norm_before;
  spec.norm_after = family.traits.norm_after;
  spec.qk_norm = family.traits.qk_norm;
  spec.one_norm = family.traits.one_norm;
  spec.gated = family.traits.gated;
  if (family.traits.positions == Positions::kLearned) spec.learned_positions = 64 + family.traits.position_offset;
  return spec;
}

ModelSpec SmallLlama() { return SmallSpec(*FindFamily("llama")); }

// A tensor of a checkpoint, with bytes of its own.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  char fill;
  std::string dtype = "F16";
};

std::vector<NamedTensor> TensorsOf(const ModelSpec& spec) {
  std::vector<NamedTensor> tensors;
  char fill = 1;
  for (const ExpectedTensor& tensor : ExpectedTensors(FindFamily(spec.family)->tensors, spec)) {
    tensors.push_back({tensor.name, tensor.shape, fill++});
  }
  return tensors;
}

// A folder with these tensors, opened and mapped.
class Mapped {
 public:
  Mapped(const ModelSpec& spec, const std::vector<NamedTensor>& tensors, const std::string& metadata = "") {
    std::vector<std::string> entries;
    std::string bytes;
    if (!metadata.empty()) entries.push_back("\"__metadata__\":" + metadata);
    for (const NamedTensor& tensor : tensors) {
      const size_t begin = bytes.size(), element = tensor.dtype == "I64" ? 8 : tensor.dtype == "F16" ? 2 : 1;
      size_t size = element;
      for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
      bytes.append(size, tensor.fill);
      entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"", tensor.dtype, "\",\"shape\":",
                                     ShowShape(tensor.shape), ",\"data_offsets\":[", begin, ",", bytes.size(), "]}"));
    }
    dir_.Write("model.safetensors", SafetensorsText("{" + absl::StrJoin(entries, ",") + "}", bytes));
    checkpoint_ = Checkpoint::Open(dir_.path());
    EXPECT_TRUE(checkpoint_.ok()) << checkpoint_.status();
    weights_ = MapWeights(spec, *checkpoint_);
  }
  bool ok() const { return weights_.ok(); }
  std::string error() const { return std::string(weights_.status().message()).substr(path().size()); }
  const ModelWeights& weights() const { return *weights_; }
  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const std::string& note : weights_->notes) notes.push_back(note.substr(path().size()));
    return notes;
  }
  // The byte that the tensor of a role is filled with.
  char Fill(TensorRole role, int layer = -1) const {
    const RoleViews& views = layer < 0 ? weights_->model : weights_->layers[static_cast<size_t>(layer)];
    return static_cast<char>(views[role].tensor->data[0]);
  }

 private:
  std::string path() const { return dir_.File("model.safetensors"); }

  ScratchDir dir_;
  absl::StatusOr<Checkpoint> checkpoint_ = absl::UnknownError("");
  absl::StatusOr<ModelWeights> weights_ = absl::UnknownError("");
};

NamedTensor* FindIn(std::vector<NamedTensor>* tensors, const std::string& name) {
  const auto found = std::ranges::find(*tensors, name, &NamedTensor::name);
  EXPECT_NE(found, tensors->end()) << name;
  return &*found;
}

void Erase(std::vector<NamedTensor>* tensors, const std::string& name) {
  EXPECT_EQ(std::erase_if(*tensors, [&](const NamedTensor& one) { return one.name == name; }), 1u) << name;
}

std::string Replaced(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

TEST(WeightNames, EveryFamilyIsFoundWithItsPrefixWithoutAndWithOneMore) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.model_type);
    const ModelSpec spec = SmallSpec(family);
    const std::string own = family.tensors.prefixes[0], first = own.substr(0, own.find('.') + 1);
    const std::vector<NamedTensor> tensors = TensorsOf(spec);
    const Mapped plain(spec, tensors);
    ASSERT_TRUE(plain.ok()) << plain.error();
    EXPECT_THAT(plain.notes(), IsEmpty());
    std::vector<NamedTensor> without = tensors, doubled = tensors, wrapped = tensors, mixed = tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      without[i].name = Replaced(tensors[i].name, first, "");
      doubled[i].name = first + tensors[i].name;
      wrapped[i].name = "module." + tensors[i].name;
      if (i % 2 == 0) mixed[i].name = without[i].name;
    }
    for (const auto& renamed : {without, doubled, wrapped, mixed}) {
      const Mapped mapped(spec, renamed);
      ASSERT_TRUE(mapped.ok()) << mapped.error();
      EXPECT_THAT(mapped.notes(), IsEmpty()) << renamed[0].name;
      EXPECT_EQ(mapped.Fill(TensorRole::kEmbedding), plain.Fill(TensorRole::kEmbedding));
      EXPECT_EQ(mapped.Fill(TensorRole::kHead), plain.Fill(TensorRole::kHead));
      EXPECT_EQ(mapped.Fill(TensorRole::kDown, 1), plain.Fill(TensorRole::kDown, 1));
    }
  }
}

TEST(WeightNames, ATiedModelMayHaveEitherName) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.model_type);
    ModelSpec spec = SmallSpec(family);
    const std::vector<NamedTensor> both = TensorsOf(spec);
    spec.tied_embeddings = true;
    std::string embedding, head;
    for (const ExpectedTensor& tensor : ExpectedTensors(family.tensors, SmallSpec(family))) {
      if (tensor.role() == TensorRole::kEmbedding) embedding = tensor.name;
      if (tensor.role() == TensorRole::kHead) head = tensor.name;
    }
    for (const std::string& missing : {embedding, head}) {
      std::vector<NamedTensor> tensors = both;
      Erase(&tensors, missing);
      const std::string other = missing == head ? embedding : head;
      for (const std::string& metadata : {std::string(), "{\"format\":\"pt\",\"" + missing + "\":\"" + other + "\"}"}) {
        const Mapped mapped(spec, tensors, metadata);
        ASSERT_TRUE(mapped.ok()) << mapped.error();
        EXPECT_TRUE(mapped.weights().tied);
        EXPECT_EQ(mapped.Fill(TensorRole::kHead), FindIn(&tensors, other)->fill);
        EXPECT_EQ(mapped.Fill(TensorRole::kEmbedding), FindIn(&tensors, other)->fill);
        EXPECT_THAT(mapped.notes(), IsEmpty());
      }
    }
    // Both, equal or not.
    std::vector<NamedTensor> tensors = both;
    FindIn(&tensors, head)->fill = FindIn(&tensors, embedding)->fill;
    EXPECT_TRUE(Mapped(spec, tensors).weights().tied);
    EXPECT_THAT(Mapped(spec, tensors).notes(), IsEmpty());
    const Mapped unequal(spec, both);
    EXPECT_FALSE(unequal.weights().tied);
    EXPECT_NE(unequal.Fill(TensorRole::kHead), unequal.Fill(TensorRole::kEmbedding));
    EXPECT_THAT(unequal.notes(),
                ElementsAre(": it has a head that is not its embedding: it counts, though config.json has "
                            "\"tie_word_embeddings\": true, as in transformers"));
  }
}

// transformers would make a random head; the metadata know better.
TEST(WeightNames, AnUntiedHeadMayBeTheEmbeddingByTheMetadata) {
  std::vector<NamedTensor> tensors = TensorsOf(SmallLlama());
  Erase(&tensors, "lm_head.weight");
  EXPECT_THAT(Mapped(SmallLlama(), tensors).error(), HasSubstr("tensor lm_head.weight is missing"));
  const Mapped mapped(SmallLlama(), tensors, R"({"lm_head.weight":"model.embed_tokens.weight"})");
  ASSERT_TRUE(mapped.ok()) << mapped.error();
  EXPECT_EQ(mapped.Fill(TensorRole::kHead), mapped.Fill(TensorRole::kEmbedding));
  EXPECT_THAT(mapped.notes(), ElementsAre(HasSubstr("it has no head of its own: the embedding is the head")));
}

TEST(WeightNames, TensorsThatNobodyNeedsAreNamedAndNotRead) {
  const std::vector<NamedTensor> tensors = TensorsOf(SmallLlama());
  const std::vector<NamedTensor> odd = {{"v_head.summary.weight", {1, 32}, 1},
                                        {"model.position_ids", {64}, 0, "I64"},
                                        {"model.layers.0.self_attn.mask", {4, 4}, 1, "BOOL"},
                                        {"model.layers.1.self_attn.k_scale", {}, 1, "F8_E4M3"},
                                        {"model.layers.1.mlp.router.weight", {4, 32}, 1},
                                        {"model.layers.x.self_attn.rotary_emb.inv_freq", {4}, 1},
                                        {"model.layers.0.self_attn.q_proj.bias", {32}, 1}};
  for (const NamedTensor& one : odd) {
    std::vector<NamedTensor> more = tensors;
    more.push_back(one);
    const Mapped mapped(SmallLlama(), more);
    ASSERT_TRUE(mapped.ok()) << mapped.error();
    EXPECT_THAT(mapped.notes(),
                ElementsAre(": the llama model that config.json describes has no such tensors, and they "
                            "are not read, as in transformers: " +
                            one.name));
  }
  std::vector<NamedTensor> many = tensors;
  for (int i = 0; i < 20; ++i) many.push_back({absl::StrCat("extra.", i), {1}, 1});
  EXPECT_THAT(Mapped(SmallLlama(), many).notes(), ElementsAre(testing::EndsWith(" and 12 more")));
  std::vector<NamedTensor> old = tensors;
  old.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", {4}, 1});
  EXPECT_THAT(Mapped(SmallLlama(), old).notes(), IsEmpty()) << "which follow from the config";
}

TEST(WeightNames, LayersBeyondThoseOfConfigAreNotRead) {
  ModelSpec spec = SmallLlama();
  spec.layers = 4;
  const std::vector<NamedTensor> four = TensorsOf(spec);
  spec.layers = 3;
  const Mapped fewer(spec, four);
  ASSERT_TRUE(fewer.ok()) << fewer.error();
  EXPECT_EQ(fewer.weights().layers.size(), 3u);
  EXPECT_THAT(fewer.notes(),
              ElementsAre(": it has tensors of layers up to number 3, but config.json speaks of 3 layers: the "
                          "others are not read, as in transformers"));
  spec.layers = 5;
  EXPECT_EQ(Mapped(spec, four).error(),
            ": tensor model.layers.4.input_layernorm.weight is missing, expected it with shape [32]");
}

// torch makes a bias that is not there of zeros, and transformers say so.
TEST(WeightNames, BiasesThatAreMissingAreZeros) {
  ModelSpec spec = SmallLlama();
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = true;
  const std::vector<NamedTensor> all = TensorsOf(spec);
  std::vector<NamedTensor> tensors = all;
  for (const std::string layer : {"0", "1"}) Erase(&tensors, "model.layers." + layer + ".self_attn.o_proj.bias");
  const Mapped mapped(spec, tensors);
  ASSERT_TRUE(mapped.ok()) << mapped.error();
  EXPECT_THAT(mapped.notes(), ElementsAre(": biases that config.json promises are not there, and count as zeros, as in "
                                          "transformers: model.layers.0.self_attn.o_proj.bias, "
                                          "model.layers.1.self_attn.o_proj.bias"));
  const ModelVectors vectors = ReadVectors(spec, mapped.weights());
  EXPECT_EQ(vectors.layers[1].o_bias, std::vector<float>(32, 0.0f));
  EXPECT_NE(vectors.layers[1].qkv_bias[0], 0.0f);

  Erase(&tensors, "model.layers.0.self_attn.k_proj.bias");
  const Mapped without_k(spec, tensors);
  ASSERT_TRUE(without_k.ok()) << without_k.error();
  const std::vector<float> qkv = ReadVectors(spec, without_k.weights()).layers[0].qkv_bias;  // 32, 16 and 16
  ASSERT_EQ(qkv.size(), 64u);
  EXPECT_NE(qkv[31], 0.0f);
  EXPECT_EQ(std::vector<float>(qkv.begin() + 32, qkv.begin() + 48), std::vector<float>(16, 0.0f));
  EXPECT_NE(qkv[48], 0.0f);

  tensors = all;
  std::erase_if(tensors, [](const NamedTensor& one) { return one.name.ends_with(".bias"); });
  const Mapped none(spec, tensors);
  ASSERT_TRUE(none.ok()) << none.error();
  const LayerVectors layer = ReadVectors(spec, none.weights()).layers[0];
  EXPECT_EQ(layer.qkv_bias, std::vector<float>(64, 0.0f));
  EXPECT_EQ(layer.gate_bias, std::vector<float>(48, 0.0f));
  EXPECT_EQ(layer.up_bias, std::vector<float>(48, 0.0f));
  EXPECT_EQ(layer.down_bias, std::vector<float>(32, 0.0f));

  // Biases of norms may be missing, too, and those of a tensor that has q, k and v.
  const ModelSpec neox = SmallSpec(*FindFamily("gpt_neox"));
  ModelSpec with_biases = neox;
  with_biases.attention_bias = true;
  tensors = TensorsOf(with_biases);
  std::erase_if(tensors, [](const NamedTensor& one) { return one.name.ends_with(".bias"); });
  const Mapped fused(with_biases, tensors);
  ASSERT_TRUE(fused.ok()) << fused.error();
  EXPECT_EQ(ReadVectors(with_biases, fused.weights()).layers[0].qkv_bias, std::vector<float>(96, 0.0f));
  EXPECT_EQ(ReadVectors(with_biases, fused.weights()).layers[0].mlp_norm.bias, std::vector<float>(32, 0.0f));
  EXPECT_EQ(ReadVectors(with_biases, fused.weights()).final_norm.bias, std::vector<float>(32, 0.0f));
}

TEST(WeightNames, AnErrorSaysWhatWasTakenForMissingFields) {
  ModelSpec spec = SmallLlama();
  const std::vector<NamedTensor> tensors = TensorsOf(spec);
  spec.vocab = 32000;
  spec.notes = {"config.json: vocab_size (32000)", "more"};
  EXPECT_EQ(Mapped(spec, tensors).error(),
            ": tensor model.embed_tokens.weight: shape is [10, 32], expected [32000, 32] "
            "(config.json: vocab_size (32000); more)");
}

TEST(WeightNames, WhatIsNeededMustBeOfATypeThatIsRead) {
  std::vector<NamedTensor> tensors = TensorsOf(SmallLlama());
  FindIn(&tensors, "model.layers.1.mlp.up_proj.weight")->dtype = "F8_E4M3";
  EXPECT_EQ(Mapped(SmallLlama(), tensors).error(),
            ": tensor model.layers.1.mlp.up_proj.weight: dtype is \"F8_E4M3\", expected F32, F16, BF16 or F64");
  tensors = TensorsOf(SmallLlama());
  FindIn(&tensors, "model.layers.0.mlp.up_proj.weight")->name = "model.layers.0.mlp.up_proj.qweight";
  EXPECT_THAT(
      Mapped(SmallLlama(), tensors).error(),
      HasSubstr("model.layers.0.mlp.up_proj.qweight is there: quantised weights and adapters are not supported"));
}

}  // namespace
}  // namespace fastdecode
