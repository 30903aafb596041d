#ifndef FASTDECODE_ENGINE_MODEL_TENSOR_TABLE_H_
#define FASTDECODE_ENGINE_MODEL_TENSOR_TABLE_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_spec.h"

namespace fastdecode {

// What a tensor of a checkpoint, or a part of one, is for.
enum class TensorRole {
  kEmbedding,          // [vocab, embedding_width]
  kProjectIn,          // [hidden, embedding_width]
  kPositions,          // [learned_positions, hidden]
  kAttentionNorm,      // [hidden], as all norms but those of q and k
  kAttentionNormBias,  // [hidden]
  kQ,                  // [heads * head_dim, hidden]
  kK,                  // [kv_heads * head_dim, hidden]
  kV,                  // [kv_heads * head_dim, hidden]
  kQBias,              // biases: [outputs of the matrix]
  kKBias,
  kVBias,
  kQNorm,  // [head_dim], or of a whole row of q [heads * head_dim]
  kKNorm,
  kO,  // [hidden, heads * head_dim]
  kOBias,
  kAttentionAfterNorm,  // of what the attention adds
  kMlpNorm,
  kMlpNormBias,
  kGate,  // [intermediate, hidden]
  kUp,    // [intermediate, hidden]
  kGateBias,
  kUpBias,
  kDown,  // [hidden, intermediate]
  kDownBias,
  kMlpAfterNorm,  // of what the MLP adds
  kFinalNorm,
  kFinalNormBias,
  kProjectOut,  // [embedding_width, hidden]
  kHead,        // [vocab, embedding_width]
};

// How the parts of a tensor lie in it.
enum class TensorLayout {
  kRows,        // one after another: [outputs of all parts, inputs]
  kPerHead,     // of each head q, k and v: [heads][q, k, v][head_dim] rows
  kTransposed,  // [inputs, outputs of all parts]
};

// A tensor of a family's checkpoints: one role, or several whose matrices it holds. In its name '*' stands for the
// layer's number, and a leading '@' for what stands before the names of the text model's tensors.
struct TensorRow {
  const char* pattern;
  std::array<TensorRole, 3> roles;
  int role_count;
  TensorLayout layout;

  constexpr TensorRow(const char* name, TensorRole role, TensorLayout where = TensorLayout::kRows)
      : pattern(name), roles{role, role, role}, role_count(1), layout(where) {}
  constexpr TensorRow(const char* name, TensorRole first, TensorRole second, TensorLayout where = TensorLayout::kRows)
      : pattern(name), roles{first, second, second}, role_count(2), layout(where) {}
  constexpr TensorRow(const char* name, TensorRole q, TensorRole k, TensorRole v,
                      TensorLayout where = TensorLayout::kRows)
      : pattern(name), roles{q, k, v}, role_count(3), layout(where) {}

  std::span<const TensorRole> parts() const { return std::span(roles).first(static_cast<size_t>(role_count)); }
};

// The tensors of a family, in pieces that families have in common, and how they are named elsewhere. Where two rows
// have the same role, a checkpoint has either.
struct TensorTable {
  std::array<std::span<const TensorRow>, 5> pieces = {};
  // What '@' may stand for; the first is how the family itself writes it.
  std::span<const char* const> prefixes = {};
  std::span<const char* const> ignored = {};  // patterns: may be there, are not read
};

// A tensor that a checkpoint of a model of a given spec must have.
struct ExpectedTensor {
  const TensorRow* row = nullptr;
  int layer = -1;  // -1 for those outside of the layers
  std::string name;
  std::vector<int64_t> shape;

  TensorRole role() const { return row->roles[0]; }
};

// The shape of a role's matrix, [outputs, inputs], or vector.
std::vector<int64_t> ShapeOf(const ModelSpec& spec, TensorRole role);
// Whether a model of this spec has it.
bool HasRole(const ModelSpec& spec, TensorRole role);

// Every tensor of the model under its own family's names, in the order of a forward pass.
std::vector<ExpectedTensor> ExpectedTensors(const TensorTable& table, const ModelSpec& spec);
// Whether it is added to something, so that zeros do for it.
bool IsBias(TensorRole role);
// The name of a tensor, where '@' of its pattern stands for `prefix`.
std::string TensorNameFor(std::string_view pattern, std::string_view prefix, int layer);
// What a whole model's name may stand in front of its tensors' names, its own included or not: "", then the first part
// of the family's own prefix, which transformers put there and take away, and what wrappers of training loops leave.
std::vector<std::string> OuterPrefixes(const TensorTable& table);
// Whether a name is one that the pattern stands for, with any of the prefixes.
bool MatchesTensorName(const TensorTable& table, std::string_view pattern, std::string_view name);
// True for names that the family's checkpoints may hold without meaning for the text model.
bool IsIgnoredTensor(const TensorTable& table, std::string_view name);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_TENSOR_TABLE_H_
