#include "engine/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// The order of a head's channels in which the pairs that are rotated are (i, i + head_dim / 2): ours, of what a
// checkpoint has. Empty: as they are.
std::vector<int> ChannelOrder(const ModelSpec& spec) {
  const int dims = spec.rope.dims == 0 ? spec.head_dim : spec.rope.dims;
  if (dims == spec.head_dim && !spec.interleaved_rope) return {};
  const int half = spec.head_dim / 2, pairs = dims / 2, others = (spec.head_dim - dims) / 2;
  std::vector<int> order(static_cast<size_t>(spec.head_dim));
  for (int i = 0; i < half; ++i) {
    int low = spec.interleaved_rope ? 2 * i : i, high = spec.interleaved_rope ? 2 * i + 1 : i + pairs;
    if (i >= pairs) {
      low = dims + i - pairs;
      high = low + others;
    }
    order[static_cast<size_t>(i)] = low;
    order[static_cast<size_t>(i + half)] = high;
  }
  return order;
}

bool IsOfHeads(TensorRole role) {
  switch (role) {
    case TensorRole::kQ:
    case TensorRole::kK:
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return true;
    default:
      return false;
  }
}

// Finds a model's tensors in a checkpoint, and says how each role's matrix lies there.
// Thread: the caller's.
class WeightMapper {
 public:
  WeightMapper(const ModelSpec& spec, const Family& family, const Checkpoint& checkpoint)
      : spec_(spec), table_(family.tensors), checkpoint_(checkpoint), channels_(ChannelOrder(spec)) {
    prefix_ = FindPrefix();
    spec_.tied_embeddings = IsTied();
  }

  absl::StatusOr<ModelWeights> Map() {
    ModelWeights weights;
    weights.layers.resize(static_cast<size_t>(spec_.layers));
    for (const ExpectedTensor& want : ExpectedTensors(table_, spec_)) {
      const TensorRow* row = want.row;
      const TensorView* tensor = FindTensor(want, &row);
      if (tensor == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint_.path(), ": tensor ",
                                                       TensorNameFor(want.row->pattern, prefix_, want.layer),
                                                       " is missing, expected it with shape ", ShowShape(want.shape)));
      }
      if (tensor->shape != want.shape) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint_.PathOf(*tensor), ": tensor ", tensor->name,
                                                       ": shape is ", ShowShape(tensor->shape), ", expected ",
                                                       ShowShape(want.shape)));
      }
      known_.insert(tensor->name);
      RoleViews& views = want.layer < 0 ? weights.model : weights.layers[static_cast<size_t>(want.layer)];
      for (size_t part = 0; part < row->parts().size(); ++part) {
        views.Set(row->roles[part], ViewOf(*row, *tensor, static_cast<int>(part)));
      }
    }
    weights.tied = spec_.tied_embeddings;
    if (spec_.tied_embeddings) weights.model.Set(TensorRole::kHead, weights.model[TensorRole::kEmbedding]);
    if (spec_.embedding_width != 0) TakeProjections(&weights.model);
    if (absl::Status bad = CheckNoneUnexpected(&weights); !bad.ok()) return bad;
    return weights;
  }

 private:
  // What stands before the text model's tensors: that of the first tensor that is there.
  std::string FindPrefix() const {
    for (const char* prefix : table_.prefixes) {
      for (const TensorRow& row : table_.pieces[0]) {
        if (row.roles[0] != TensorRole::kEmbedding) continue;
        if (checkpoint_.Find(TensorNameFor(row.pattern, prefix, -1)) != nullptr) return prefix;
      }
    }
    return table_.prefixes[0];
  }

  const TensorView* FindRole(TensorRole role) const {
    for (const auto piece : table_.pieces) {
      for (const TensorRow& row : piece) {
        if (row.roles[0] != role) continue;
        const TensorView* tensor = checkpoint_.Find(TensorNameFor(row.pattern, prefix_, -1));
        if (tensor != nullptr) return tensor;
      }
    }
    return nullptr;
  }

  // This follows transformers: a checkpoint's own head is none if it is the embedding once more. Either of the two may
  // be missing where they are one.
  bool IsTied() const {
    const TensorView* head = FindRole(TensorRole::kHead);
    if (head == nullptr) return spec_.tied_embeddings || spec_.tied_without_head;
    if (!spec_.tied_embeddings) return false;
    const TensorView* embedding = FindRole(TensorRole::kEmbedding);
    return embedding == nullptr || (embedding->dtype == head->dtype && embedding->shape == head->shape &&
                                    std::memcmp(embedding->data, head->data, head->bytes) == 0);
  }

  // Under any of the names that the tensor's role has; `row` becomes the one that it was found by.
  const TensorView* FindTensor(const ExpectedTensor& want, const TensorRow** row) const {
    const TensorView* tensor = checkpoint_.Find(TensorNameFor(want.row->pattern, prefix_, want.layer));
    if (tensor != nullptr) return tensor;
    for (const auto piece : table_.pieces) {
      for (const TensorRow& other : piece) {
        if (other.roles != want.row->roles || other.role_count != want.row->role_count) continue;
        tensor = checkpoint_.Find(TensorNameFor(other.pattern, prefix_, want.layer));
        if (tensor == nullptr) continue;
        *row = &other;
        return tensor;
      }
    }
    if (want.role() == TensorRole::kEmbedding && spec_.tied_embeddings) return FindRole(TensorRole::kHead);
    return nullptr;
  }

  WeightView ViewOf(const TensorRow& row, const TensorView& tensor, int part) const {
    const TensorRole role = row.roles[static_cast<size_t>(part)];
    const std::vector<int64_t> shape = ShapeOf(spec_, role);
    WeightView view;
    view.tensor = &tensor;
    view.rows = shape[0];
    view.columns = shape.size() == 2 ? shape[1] : 1;
    view.transposed = row.layout == TensorLayout::kTransposed;
    for (int before = 0; before < part; ++before) {
      view.first += row.layout == TensorLayout::kPerHead ? spec_.head_dim
                                                         : ShapeOf(spec_, row.roles[static_cast<size_t>(before)])[0];
    }
    const bool reorders = IsOfHeads(role) && !channels_.empty();
    if (row.layout == TensorLayout::kPerHead || reorders) {
      view.head_rows = spec_.head_dim;
      view.head_stride = (row.layout == TensorLayout::kPerHead ? row.role_count : 1) * int64_t{spec_.head_dim};
      if (reorders) view.channels = channels_;
    }
    return view;
  }

  // The embedding times the matrix that leads to hidden; and the head times the one that leads from there.
  void TakeProjections(RoleViews* model) const {
    const auto widened = [&](TensorRole role, std::vector<float> factor) {
      WeightView view = (*model)[role];
      view.columns = spec_.hidden;
      view.factor = std::make_shared<const std::vector<float>>(std::move(factor));
      model->Set(role, std::move(view));
    };
    const std::vector<float> in = ReadF32((*model)[TensorRole::kProjectIn]);  // [hidden, width]
    const int64_t hidden = spec_.hidden, width = spec_.embedding_width;
    std::vector<float> transposed(in.size());
    for (int64_t i = 0; i < hidden; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        transposed[static_cast<size_t>(j * hidden + i)] = in[static_cast<size_t>(i * width + j)];
      }
    }
    widened(TensorRole::kEmbedding, std::move(transposed));
    widened(TensorRole::kHead, ReadF32((*model)[TensorRole::kProjectOut]));
  }

  // Every tensor of the checkpoint is one of the model's, or known to be of no meaning for it.
  absl::Status CheckNoneUnexpected(ModelWeights* weights) const {
    std::map<std::string, int> skipped;
    for (const SafetensorsFile& file : checkpoint_.files()) {
      for (const TensorView& tensor : file.tensors()) {
        if (known_.contains(tensor.name) || IsHeadOfTied(tensor.name)) continue;
        if (IsIgnoredTensor(table_, tensor.name)) {
          if (!MatchesTensorName(table_, "@layers.**", tensor.name)) ++skipped[PartOf(tensor.name)];
          continue;
        }
        return absl::InvalidArgumentError(
            absl::StrCat(file.path(), ": tensor ", ShowText(tensor.name), " of shape ", ShowShape(tensor.shape),
                         " is there, expected none of this name in a ", spec_.family, " model of ", spec_.layers,
                         " layers as config.json describes it"));
      }
    }
    for (const auto& [part, tensors] : skipped) {
      weights->skipped.push_back(absl::StrCat(part, " (", tensors, tensors == 1 ? " tensor)" : " tensors)"));
    }
    return absl::OkStatus();
  }

  // Some exports write the head's copy of the embedding.
  bool IsHeadOfTied(const std::string& name) const {
    if (!spec_.tied_embeddings) return false;
    for (const auto piece : table_.pieces) {
      for (const TensorRow& row : piece) {
        if (row.roles[0] == TensorRole::kHead && MatchesTensorName(table_, row.pattern, name)) return true;
      }
    }
    return false;
  }

  // Such as "vision_tower" of "model.vision_tower.encoder.weight".
  static std::string PartOf(std::string_view name) {
    if (name.starts_with("model.")) name.remove_prefix(6);
    return std::string(name.substr(0, name.find('.')));
  }

  ModelSpec spec_;  // tied as the checkpoint has it
  const TensorTable& table_;
  const Checkpoint& checkpoint_;
  const std::vector<int> channels_;
  std::string prefix_;
  std::unordered_set<std::string> known_;
};

std::vector<float> Read(const RoleViews& views, TensorRole role) {
  const WeightView* view = views.Find(role);
  return view == nullptr ? std::vector<float>() : ReadF32(*view);
}

void Scale(double scale, std::vector<float>* values) {
  if (scale == 1.0) return;
  for (float& value : *values) value = static_cast<float>(value * scale);
}

// Moves one bias into another.
void AddBias(std::vector<float>* from, std::vector<float>* to) {
  to->resize(std::max(from->size(), to->size()));
  for (size_t i = 0; i < from->size(); ++i) (*to)[i] += (*from)[i];
  from->clear();
}

// In f32 one more than what the checkpoint has is exact enough: what is lost lies below the weight's own rounding.
std::vector<float> ReadNormWeight(const ModelSpec& spec, const RoleViews& views, TensorRole role) {
  std::vector<float> weight = Read(views, role);
  if (spec.norm.one_plus) {
    for (float& value : weight) value += 1.0f;
  }
  return weight;
}

}  // namespace

const WeightView* RoleViews::Find(TensorRole role) const {
  const auto it = views_.find(role);
  return it == views_.end() ? nullptr : &it->second;
}

const WeightView& RoleViews::operator[](TensorRole role) const {
  const WeightView* const view = Find(role);
  FD_CHECK(view != nullptr, "the model has weights of this role");
  return *view;
}

absl::StatusOr<ModelWeights> MapWeights(const ModelSpec& spec, const Checkpoint& checkpoint) {
  const Family* family = FindFamily(spec.family);
  if (family == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model family is \"", spec.family, "\", expected one of ", FamilyNames()));
  }
  return WeightMapper(spec, *family, checkpoint).Map();
}

ModelVectors ReadVectors(const ModelSpec& spec, const ModelWeights& weights) {
  ModelVectors vectors;
  for (const RoleViews& from : weights.layers) {
    LayerVectors& to = vectors.layers.emplace_back();
    to.attention_norm.weight = ReadNormWeight(spec, from, TensorRole::kAttentionNorm);
    to.attention_norm.bias = Read(from, TensorRole::kAttentionNormBias);
    to.mlp_norm.weight = ReadNormWeight(spec, from, TensorRole::kMlpNorm);
    to.mlp_norm.bias = Read(from, TensorRole::kMlpNormBias);
    if (spec.one_norm) to.mlp_norm = to.attention_norm;
    to.attention_after_norm = ReadNormWeight(spec, from, TensorRole::kAttentionAfterNorm);
    to.mlp_after_norm = ReadNormWeight(spec, from, TensorRole::kMlpAfterNorm);
    to.q_norm = ReadNormWeight(spec, from, TensorRole::kQNorm);
    to.k_norm = ReadNormWeight(spec, from, TensorRole::kKNorm);
    for (const TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
      const std::vector<float> values = Read(from, role);
      to.qkv_bias.insert(to.qkv_bias.end(), values.begin(), values.end());
    }
    to.o_bias = Read(from, TensorRole::kOBias);
    to.gate_bias = Read(from, TensorRole::kGateBias);
    to.up_bias = Read(from, TensorRole::kUpBias);
    to.down_bias = Read(from, TensorRole::kDownBias);
    if (spec.parallel) AddBias(&to.o_bias, &to.down_bias);
  }
  vectors.final_norm.weight = ReadNormWeight(spec, weights.model, TensorRole::kFinalNorm);
  if (vectors.final_norm.weight.empty() && spec.logit_scale != 1.0) {
    vectors.final_norm.weight.assign(static_cast<size_t>(spec.hidden), 1.0f);
  }
  vectors.final_norm.bias = Read(weights.model, TensorRole::kFinalNormBias);
  Scale(spec.logit_scale, &vectors.final_norm.weight);
  Scale(spec.logit_scale, &vectors.final_norm.bias);
  vectors.positions = Read(weights.model, TensorRole::kPositions);
  return vectors;
}

}  // namespace fastdecode
