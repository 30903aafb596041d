#include "engine/model/weights.h"

#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// Puts a tensor where its role says.
void Place(const ExpectedTensor& expected, const TensorView& tensor, ModelWeights* weights) {
  const auto layer = [&]() -> LayerWeights& { return weights->layers[static_cast<size_t>(expected.layer)]; };
  switch (expected.role) {
    // clang-format off
    case TensorRole::kEmbedding: weights->embedding = tensor; return;
    case TensorRole::kFinalNorm: weights->final_norm = tensor; return;
    case TensorRole::kHead: weights->head = tensor; return;
    case TensorRole::kAttentionNorm: layer().attention_norm = tensor; return;
    case TensorRole::kQ: layer().q = tensor; return;
    case TensorRole::kK: layer().k = tensor; return;
    case TensorRole::kV: layer().v = tensor; return;
    case TensorRole::kO: layer().o = tensor; return;
    case TensorRole::kMlpNorm: layer().mlp_norm = tensor; return;
    case TensorRole::kGate: layer().gate = tensor; return;
    case TensorRole::kUp: layer().up = tensor; return;
    case TensorRole::kDown: layer().down = tensor; return;
    case TensorRole::kQBias: layer().q_bias = tensor; return;
    case TensorRole::kKBias: layer().k_bias = tensor; return;
    case TensorRole::kVBias: layer().v_bias = tensor; return;
    case TensorRole::kOBias: layer().o_bias = tensor; return;
    case TensorRole::kGateBias: layer().gate_bias = tensor; return;
    case TensorRole::kUpBias: layer().up_bias = tensor; return;
    case TensorRole::kDownBias: layer().down_bias = tensor; return;
      // clang-format on
  }
  FD_CHECK(false, "every role has a place");
}

// Every tensor of the checkpoint is one of `expected`, or known to be harmless.
absl::Status CheckNoneUnexpected(const ModelSpec& spec, const Family& family,
                                 const std::vector<ExpectedTensor>& expected, const Checkpoint& checkpoint) {
  std::unordered_set<std::string> known;
  for (const ExpectedTensor& tensor : expected) known.insert(tensor.name);
  if (spec.tied_embeddings) {
    // Some exports write the head's copy of the embedding.
    for (const TensorName& tensor : family.tensors) {
      if (tensor.role == TensorRole::kHead) known.insert(tensor.pattern);
    }
  }
  for (const SafetensorsFile& file : checkpoint.files()) {
    for (const TensorView& tensor : file.tensors()) {
      if (known.contains(tensor.name) || IsIgnoredTensor(family, tensor.name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", ShowText(tensor.name), " of shape ",
                                                     ShowShape(tensor.shape),
                                                     " is there, expected none of this name in a ", spec.family,
                                                     " model of ", spec.layers, " layers as config.json describes it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelWeights> MapWeights(const ModelSpec& spec, const Checkpoint& checkpoint) {
  const Family* family = FindFamily(spec.family);
  if (family == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model family is \"", spec.family, "\", expected one of ", FamilyNames()));
  }
  const std::vector<ExpectedTensor> expected = ExpectedTensors(*family, spec);
  ModelWeights weights;
  weights.layers.resize(static_cast<size_t>(spec.layers));
  for (const ExpectedTensor& want : expected) {
    const TensorView* tensor = checkpoint.Find(want.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor ", want.name,
                                                     " is missing, expected it with shape ", ShowShape(want.shape)));
    }
    if (tensor->shape != want.shape) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.PathOf(*tensor), ": tensor ", want.name, ": shape is ",
                                                     ShowShape(tensor->shape), ", expected ", ShowShape(want.shape)));
    }
    Place(want, *tensor, &weights);
  }
  if (spec.tied_embeddings) weights.head = weights.embedding;
  const absl::Status status = CheckNoneUnexpected(spec, *family, expected, checkpoint);
  if (!status.ok()) return status;
  return weights;
}

}  // namespace fastdecode
