#include "engine/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
      : spec_(spec),
        table_(family.tensors),
        checkpoint_(checkpoint),
        channels_(ChannelOrder(spec)),
        says_tied_(spec.tied_embeddings) {
    ListPrefixes();
    spec_.tied_embeddings = IsTied();
  }

  absl::StatusOr<ModelWeights> Map() {
    ModelWeights weights;
    weights.layers.resize(static_cast<size_t>(spec_.layers));
    for (const ExpectedTensor& want : ExpectedTensors(table_, spec_)) {
      const TensorRow* row = want.row;
      const TensorView* tensor = FindTensor(want, &row);
      if (tensor == nullptr && IsBias(want.role())) {
        zeros_.push_back(NameOf(want));
        continue;
      }
      if (tensor == nullptr) return Missing(want);
      if (tensor->shape != want.shape) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint_.PathOf(*tensor), ": tensor ", tensor->name,
                                                       ": shape is ", ShowShape(tensor->shape), ", expected ",
                                                       ShowShape(want.shape)));
      }
      if (tensor->dtype == DType::kOther) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint_.PathOf(*tensor), ": tensor ", tensor->name,
                                                       ": dtype is \"", ShowText(tensor->other_dtype),
                                                       "\", expected F32, F16, BF16 or F64"));
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
    NoteHead(&weights);
    NoteZeros(&weights);
    NoteUnexpected(&weights);
    return weights;
  }

 private:
  // All that may stand before the text model's tensors, that of its embedding or head first.
  void ListPrefixes() {
    const std::vector<std::string> outers = OuterPrefixes(table_);
    for (const std::string& outer : outers) {
      for (const char* prefix : table_.prefixes) prefixes_.push_back({outer, outer + prefix});
    }
    const auto has_ends = [this](const Prefix& prefix) {
      for (const TensorRole role : {TensorRole::kEmbedding, TensorRole::kHead}) {
        for (const auto piece : table_.pieces) {
          for (const TensorRow& row : piece) {
            if (row.roles[0] == role && row.pattern[0] == '@' &&
                checkpoint_.Find(TensorNameFor(row.pattern, prefix.inner, -1)) != nullptr) {
              return true;
            }
          }
        }
      }
      return false;
    };
    std::stable_partition(prefixes_.begin(), prefixes_.end(), has_ends);
  }

  // The name that a checkpoint has for the tensor if its other names have the first prefix.
  std::string NameOf(const ExpectedTensor& want) const {
    return TensorNameFor(want.row->pattern, prefixes_[0].inner, want.layer);
  }

  absl::Status Missing(const ExpectedTensor& want) const {
    std::string error = absl::StrCat(checkpoint_.path(), ": tensor ", NameOf(want),
                                     " is missing, expected it with shape ", ShowShape(want.shape));
    if (want.role() == TensorRole::kHead) {
      absl::StrAppend(&error, " (where the embedding is the head, config.json has \"tie_word_embeddings\": true)");
    }
    const std::string pattern = want.row->pattern, stem = pattern.substr(0, pattern.rfind('.'));
    for (const char* packed : {".qweight", ".weight_packed", ".weight_scale", ".base_layer.weight"}) {
      const std::string name = TensorNameFor(stem + packed, prefixes_[0].inner, want.layer);
      if (checkpoint_.Find(name) == nullptr) continue;
      absl::StrAppend(&error, "; ", name, " is there: quantised weights and adapters are not supported");
      break;
    }
    return absl::InvalidArgumentError(error);
  }

  const TensorView* FindPattern(std::string_view pattern, int layer) const {
    for (const Prefix& prefix : prefixes_) {
      const std::string name = pattern.starts_with('@') ? TensorNameFor(pattern, prefix.inner, layer)
                                                        : prefix.outer + TensorNameFor(pattern, "", layer);
      if (const TensorView* tensor = checkpoint_.Find(name); tensor != nullptr) return tensor;
    }
    return nullptr;
  }

  const TensorView* FindRole(TensorRole role) const {
    for (const auto piece : table_.pieces) {
      for (const TensorRow& row : piece) {
        if (row.roles[0] != role) continue;
        const TensorView* tensor = FindPattern(row.pattern, -1);
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
    const TensorView* tensor = FindPattern(want.row->pattern, want.layer);
    if (tensor != nullptr) return tensor;
    for (const auto piece : table_.pieces) {
      for (const TensorRow& other : piece) {
        if (other.roles != want.row->roles || other.role_count != want.row->role_count) continue;
        tensor = FindPattern(other.pattern, want.layer);
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

  // The number of a tensor's layer, by the first part of its name that is one; -1: it has none.
  static int LayerOf(std::string_view name) {
    for (size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1)) {
      const std::string_view rest = name.substr(at + 1);
      const std::string_view digits = rest.substr(0, rest.find_first_not_of("0123456789"));
      constexpr size_t kDigitsMax = 4;
      if (digits.empty() || digits.size() > kDigitsMax || !rest.substr(digits.size()).starts_with('.')) continue;
      return std::stoi(std::string(digits));
    }
    return -1;
  }

  // "a, b, c and 5 more"
  static std::string Listed(const std::vector<std::string>& names) {
    constexpr size_t kNamedMax = 8;
    const std::span<const std::string> named(names.data(), std::min(names.size(), kNamedMax));
    const size_t others = names.size() - named.size();
    return absl::StrCat(absl::StrJoin(named, ", "), others == 0 ? "" : absl::StrCat(" and ", others, " more"));
  }

  // Where the checkpoint and config.json differ about whether the head is the embedding.
  void NoteHead(ModelWeights* weights) const {
    const RoleViews& model = weights->model;
    const bool is_embedding = model[TensorRole::kHead].tensor == model[TensorRole::kEmbedding].tensor;
    if (says_tied_ == is_embedding) return;
    weights->notes.push_back(absl::StrCat(
        checkpoint_.path(),
        is_embedding ? ": it has no head of its own: the embedding is the head, though config.json says otherwise"
                     : ": it has a head that is not its embedding: it counts, though config.json has "
                       "\"tie_word_embeddings\": true, as in transformers"));
  }

  void NoteZeros(ModelWeights* weights) const {
    if (zeros_.empty()) return;
    weights->notes.push_back(absl::StrCat(checkpoint_.path(),
                                          ": biases that config.json promises are not there, and "
                                          "count as zeros, as in transformers: ",
                                          Listed(zeros_)));
  }

  // Says which tensors of the checkpoint are not the model's, unless they are known to be of no meaning for it.
  void NoteUnexpected(ModelWeights* weights) const {
    std::map<std::string, int> skipped;
    std::vector<std::string> unexpected;
    int last_layer = -1;
    for (const SafetensorsFile& file : checkpoint_.files()) {
      for (const TensorView& tensor : file.tensors()) {
        if (known_.contains(tensor.name) || IsHeadOfTied(tensor.name)) continue;
        if (!IsIgnoredTensor(table_, tensor.name)) {
          const int layer = LayerOf(tensor.name);
          if (layer >= spec_.layers) {
            last_layer = std::max(last_layer, layer);
          } else {
            unexpected.push_back(ShowText(tensor.name));
          }
        } else if (!MatchesTensorName(table_, "@layers.**", tensor.name)) {
          ++skipped[PartOf(tensor.name)];
        }
      }
    }
    for (const auto& [part, tensors] : skipped) {
      weights->skipped.push_back(absl::StrCat(part, " (", tensors, tensors == 1 ? " tensor)" : " tensors)"));
    }
    if (last_layer >= 0) {
      weights->notes.push_back(absl::StrCat(checkpoint_.path(), ": it has tensors of layers up to number ", last_layer,
                                            ", but config.json speaks of ", spec_.layers,
                                            " layers: the others are not read, as in transformers"));
    }
    if (unexpected.empty()) return;
    weights->notes.push_back(absl::StrCat(checkpoint_.path(), ": the ", spec_.family,
                                          " model that config.json describes has no such tensors, and they are not "
                                          "read, as in transformers: ",
                                          Listed(unexpected)));
  }

  // Some exports write the head's copy of the embedding.
  bool IsHeadOfTied(const std::string& name) const {
    if (!spec_.tied_embeddings) return false;
    const TensorView* head = FindRole(TensorRole::kHead);
    return head != nullptr && head->name == name;
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
  const bool says_tied_;  // config.json
  struct Prefix {
    std::string outer;  // before names that are not the text model's own, such as lm_head.weight
    std::string inner;  // before the others
  };
  std::vector<Prefix> prefixes_;  // the likeliest first
  std::unordered_set<std::string> known_;
  std::vector<std::string> zeros_;  // biases that are missing
};

std::vector<float> Read(const RoleViews& views, TensorRole role) {
  const WeightView* view = views.Find(role);
  return view == nullptr ? std::vector<float>() : ReadF32(*view);
}

// Zeros where the model has a bias that the checkpoint lacks.
std::vector<float> ReadBias(const ModelSpec& spec, const RoleViews& views, TensorRole role) {
  std::vector<float> bias = Read(views, role);
  if (bias.empty() && HasRole(spec, role)) bias.resize(static_cast<size_t>(ShapeOf(spec, role)[0]));
  return bias;
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
  absl::StatusOr<ModelWeights> weights = WeightMapper(spec, *family, checkpoint).Map();
  if (weights.ok() || spec.notes.empty()) return weights;
  // What was taken for a missing field may be the cause.
  return absl::Status(weights.status().code(), absl::StrCat(std::string(weights.status().message()), " (",
                                                            absl::StrJoin(spec.notes, "; "), ")"));
}

ModelVectors ReadVectors(const ModelSpec& spec, const ModelWeights& weights) {
  ModelVectors vectors;
  for (const RoleViews& from : weights.layers) {
    LayerVectors& to = vectors.layers.emplace_back();
    to.attention_norm.weight = ReadNormWeight(spec, from, TensorRole::kAttentionNorm);
    to.attention_norm.bias = ReadBias(spec, from, TensorRole::kAttentionNormBias);
    to.mlp_norm.weight = ReadNormWeight(spec, from, TensorRole::kMlpNorm);
    to.mlp_norm.bias = ReadBias(spec, from, TensorRole::kMlpNormBias);
    if (spec.one_norm) to.mlp_norm = to.attention_norm;
    to.attention_after_norm = ReadNormWeight(spec, from, TensorRole::kAttentionAfterNorm);
    to.mlp_after_norm = ReadNormWeight(spec, from, TensorRole::kMlpAfterNorm);
    to.q_norm = ReadNormWeight(spec, from, TensorRole::kQNorm);
    to.k_norm = ReadNormWeight(spec, from, TensorRole::kKNorm);
    for (const TensorRole role : {TensorRole::kQBias, TensorRole::kKBias, TensorRole::kVBias}) {
      const std::vector<float> values = ReadBias(spec, from, role);
      to.qkv_bias.insert(to.qkv_bias.end(), values.begin(), values.end());
    }
    to.o_bias = ReadBias(spec, from, TensorRole::kOBias);
    to.gate_bias = ReadBias(spec, from, TensorRole::kGateBias);
    to.up_bias = ReadBias(spec, from, TensorRole::kUpBias);
    to.down_bias = ReadBias(spec, from, TensorRole::kDownBias);
    if (spec.parallel) AddBias(&to.o_bias, &to.down_bias);
  }
  vectors.final_norm.weight = ReadNormWeight(spec, weights.model, TensorRole::kFinalNorm);
  if (vectors.final_norm.weight.empty() && spec.logit_scale != 1.0) {
    vectors.final_norm.weight.assign(static_cast<size_t>(spec.hidden), 1.0f);
  }
  vectors.final_norm.bias = ReadBias(spec, weights.model, TensorRole::kFinalNormBias);
  Scale(spec.logit_scale, &vectors.final_norm.weight);
  Scale(spec.logit_scale, &vectors.final_norm.bias);
  vectors.positions = Read(weights.model, TensorRole::kPositions);
  return vectors;
}

}  // namespace fastdecode
