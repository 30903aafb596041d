#include "engine/model/tensor_table.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr std::string_view kAnything = "**";  // at a pattern's end

bool IsLayerPattern(std::string_view pattern) { return pattern.find('*') != std::string_view::npos; }

// Tensors outside of the layers come before or behind them.
bool IsBehindLayers(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kFinalNormBias:
    case TensorRole::kProjectOut:
    case TensorRole::kHead:
      return true;
    default:
      return false;
  }
}

// True if '*' of the pattern stands for one or more digits of the name, and a last '**' for anything.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.ends_with(kAnything)) {
    pattern.remove_suffix(kAnything.size());
    return name.starts_with(pattern);
  }
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view tail = pattern.substr(star + 1);
  if (name.size() <= star + tail.size() || !name.starts_with(pattern.substr(0, star)) || !name.ends_with(tail)) {
    return false;
  }
  const std::string_view digits = name.substr(star, name.size() - star - tail.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// The tensor that a row stands for in a layer; several parts have one after another.
std::vector<int64_t> ShapeOfRow(const ModelSpec& spec, const TensorRow& row) {
  std::vector<int64_t> shape = ShapeOf(spec, row.roles[0]);
  for (const TensorRole role : row.parts().subspan(1)) shape[0] += ShapeOf(spec, role)[0];
  if (row.layout == TensorLayout::kTransposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

}  // namespace

bool HasRole(const ModelSpec& spec, TensorRole role) {
  const bool norm_bias = spec.norm.weight && spec.norm.bias;
  const bool layer_norms = spec.norm_before || spec.norm_sum;
  switch (role) {
    case TensorRole::kProjectIn:
    case TensorRole::kProjectOut:
      return spec.embedding_width != 0;
    case TensorRole::kPositions:
      return spec.learned_positions > 0;
    case TensorRole::kAttentionNorm:
      return layer_norms && spec.norm.weight;
    case TensorRole::kAttentionNormBias:
      return layer_norms && norm_bias;
    case TensorRole::kMlpNorm:
      return layer_norms && spec.norm.weight && !spec.one_norm;
    case TensorRole::kMlpNormBias:
      return layer_norms && norm_bias && !spec.one_norm;
    case TensorRole::kAttentionAfterNorm:
    case TensorRole::kMlpAfterNorm:
      return spec.norm_after && spec.norm.weight;
    case TensorRole::kFinalNorm:
      return spec.final_norm && spec.norm.weight;
    case TensorRole::kFinalNormBias:
      return spec.final_norm && norm_bias;
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return spec.qk_norm != ModelSpec::QkNorm::kNone;
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return spec.attention_bias;
    case TensorRole::kOBias:
      return spec.attention_output_bias;
    case TensorRole::kGate:
      return spec.gated;
    case TensorRole::kGateBias:
      return spec.gated && spec.mlp_bias;
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return spec.mlp_bias;
    case TensorRole::kHead:
      return !spec.tied_embeddings;
    default:
      return true;
  }
}

std::vector<int64_t> ShapeOf(const ModelSpec& spec, TensorRole role) {
  const int64_t hidden = spec.hidden;
  const int64_t embedding = spec.embedding_width == 0 ? hidden : spec.embedding_width;
  const int64_t q_width = int64_t{spec.heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  const bool row_norm = spec.qk_norm == ModelSpec::QkNorm::kRow;
  switch (role) {
    case TensorRole::kEmbedding:
    case TensorRole::kHead:
      return {spec.vocab, embedding};
    case TensorRole::kProjectIn:
      return {hidden, embedding};
    case TensorRole::kProjectOut:
      return {embedding, hidden};
    case TensorRole::kPositions:
      return {spec.learned_positions, hidden};
    case TensorRole::kAttentionNorm:
    case TensorRole::kAttentionNormBias:
    case TensorRole::kAttentionAfterNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kMlpNormBias:
    case TensorRole::kMlpAfterNorm:
    case TensorRole::kFinalNorm:
    case TensorRole::kFinalNormBias:
    case TensorRole::kOBias:
    case TensorRole::kDownBias:
      return {hidden};
    case TensorRole::kQ:
      return {q_width, hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {kv_width, hidden};
    case TensorRole::kO:
      return {hidden, q_width};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {spec.intermediate, hidden};
    case TensorRole::kDown:
      return {hidden, spec.intermediate};
    case TensorRole::kQBias:
      return {q_width};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return {kv_width};
    case TensorRole::kQNorm:
      return {row_norm ? q_width : spec.head_dim};
    case TensorRole::kKNorm:
      return {row_norm ? kv_width : spec.head_dim};
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
      return {spec.intermediate};
  }
  FD_CHECK(false, "every role has a shape");
  return {};
}

bool IsBias(TensorRole role) {
  switch (role) {
    case TensorRole::kAttentionNormBias:
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
    case TensorRole::kOBias:
    case TensorRole::kMlpNormBias:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
    case TensorRole::kFinalNormBias:
      return true;
    default:
      return false;
  }
}

std::vector<std::string> OuterPrefixes(const TensorTable& table) {
  const std::string_view own = table.prefixes[0];
  return {"", std::string(own.substr(0, own.find('.') + 1)), "module.", "_orig_mod.", "base_model.model."};
}

std::string TensorNameFor(std::string_view pattern, std::string_view prefix, int layer) {
  std::string name;
  if (pattern.starts_with('@')) {
    name = prefix;
    pattern.remove_prefix(1);
  }
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name + std::string(pattern);
  name += pattern.substr(0, star);
  name += std::to_string(layer);
  name += pattern.substr(star + 1);
  return name;
}

std::vector<ExpectedTensor> ExpectedTensors(const TensorTable& table, const ModelSpec& spec) {
  std::vector<const TensorRow*> before, in_layer, behind;
  std::vector<TensorRole> found;
  for (const std::span<const TensorRow> piece : table.pieces) {
    for (const TensorRow& row : piece) {
      const TensorRole role = row.roles[0];
      if (!HasRole(spec, role) || std::find(found.begin(), found.end(), role) != found.end()) continue;
      found.insert(found.end(), row.parts().begin(), row.parts().end());
      (IsLayerPattern(row.pattern) ? in_layer : IsBehindLayers(role) ? behind : before).push_back(&row);
    }
  }
  std::stable_sort(in_layer.begin(), in_layer.end(),
                   [](const TensorRow* a, const TensorRow* b) { return a->roles[0] < b->roles[0]; });
  std::vector<ExpectedTensor> tensors;
  const auto add = [&](const TensorRow* row, int layer) {
    tensors.push_back({row, layer, TensorNameFor(row->pattern, table.prefixes[0], layer), ShapeOfRow(spec, *row)});
  };
  for (const TensorRow* row : before) add(row, -1);
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const TensorRow* row : in_layer) add(row, layer);
  }
  for (const TensorRow* row : behind) add(row, -1);
  return tensors;
}

bool MatchesTensorName(const TensorTable& table, std::string_view pattern, std::string_view name) {
  if (!pattern.starts_with('@')) return Matches(pattern, name);
  pattern.remove_prefix(1);
  return std::ranges::any_of(table.prefixes, [&](std::string_view prefix) {
    return name.starts_with(prefix) && Matches(pattern, name.substr(prefix.size()));
  });
}

bool IsIgnoredTensor(const TensorTable& table, std::string_view name) {
  return std::ranges::any_of(table.ignored,
                             [&](const char* pattern) { return MatchesTensorName(table, pattern, name); });
}

}  // namespace fastdecode
