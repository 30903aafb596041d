#include "engine/start/inspect_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/activation_names.h"
#include "engine/model/checkpoint.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_config.h"
#include "engine/model/tensor_table.h"
#include "engine/model/weights.h"
#include "engine/text/chat/chat_files.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/attention.h"

namespace fastdecode {
namespace {

using Json = nlohmann::ordered_json;

// Of a memory, for weights and KV; the rest is for whatever else there is.
constexpr double kUsableShare = 0.95;
constexpr int kSequenceLengths[] = {512, 2048};

int64_t ParametersOf(const ModelSpec& spec) {
  int64_t parameters = 0;
  for (const ExpectedTensor& tensor : ExpectedTensors(FindFamily(spec.family)->tensors, spec)) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    parameters += elements;
  }
  return parameters;
}

uint64_t KvBytesPerToken(const ModelSpec& spec, KvType type) {
  AttentionShape shape;
  shape.kv_type = type;
  shape.kv_heads = spec.kv_heads;
  shape.group = spec.group();
  shape.head_dim = (spec.head_dim + 15) / 16 * 16;
  return PageBytes(shape) * static_cast<uint64_t>(spec.layers) / kPageTokens;
}

Json PositionsJson(const ModelSpec& spec, int layer) {
  if (spec.learned_positions > 0) return {{"kind", "learned"}};
  if (!spec.kind(layer).rotated) return {{"kind", "none"}};
  const RopeSpec& rope = spec.rope_of(layer);
  Json json = {{"kind", "rope"}, {"theta", rope.theta}, {"scaling", ScalingName(rope.scaling)}};
  if (rope.scaling != RopeSpec::Scaling::kNone && rope.factor != 1.0) json["factor"] = rope.factor;
  if (rope.dims != 0) json["rotated_dims"] = rope.dims;
  return json;
}

// Each kind of layer once, with the numbers of its layers.
Json LayersJson(const ModelSpec& spec) {
  Json kinds = Json::array();
  std::vector<LayerKind> seen;
  for (int layer = 0; layer < spec.layers; ++layer) {
    const LayerKind kind = spec.kind(layer);
    const auto known = std::find(seen.begin(), seen.end(), kind);
    const size_t index = static_cast<size_t>(known - seen.begin());
    if (known == seen.end()) {
      seen.push_back(kind);
      kinds.push_back({{"count", 0},
                       {"window", kind.windowed ? Json(spec.sliding_window) : Json(nullptr)},
                       {"positions", PositionsJson(spec, layer)},
                       {"layers", Json::array()}});
    }
    kinds[index]["count"] = kinds[index]["count"].get<int>() + 1;
    kinds[index]["layers"].push_back(layer);
  }
  return kinds;
}

Json NormJson(const ModelSpec& spec) {
  Json places = Json::array();
  if (spec.norm_before) places.push_back("before");
  if (spec.norm_after) places.push_back("after");
  if (spec.norm_sum) places.push_back("sum");
  const char* qk = spec.qk_norm == ModelSpec::QkNorm::kHead ? "head" : "row";
  return {{"kind", spec.norm.kind == NormSpec::Kind::kRms ? "rms" : "layer"},
          {"places", std::move(places)},
          {"qk", spec.qk_norm == ModelSpec::QkNorm::kNone ? Json(nullptr) : Json(qk)}};
}

void AddSpec(const ModelSpec& spec, uint64_t memory_bytes, Json* out) {
  Json& json = *out;
  json["layers"] = spec.layers;
  json["hidden_size"] = spec.hidden;
  json["heads"] = spec.heads;
  json["kv_heads"] = spec.kv_heads;
  json["head_dim"] = spec.head_dim;
  json["intermediate_size"] = spec.intermediate;
  json["vocab_size"] = spec.vocab;
  json["max_context"] = spec.max_context;
  json["tied_embeddings"] = spec.tied_embeddings;
  json["mlp"] = {{"activation", ActivationName(spec.activation)}, {"gated", spec.gated}};
  json["norm"] = NormJson(spec);
  json["parallel"] = spec.parallel;
  json["layer_kinds"] = LayersJson(spec);
  const int64_t parameters = ParametersOf(spec);
  json["parameters"] = parameters;
  json["weight_bytes"] = {{"f32", 4 * parameters}, {"bf16", 2 * parameters}, {"fp16", 2 * parameters}};
  Json kv = Json::object();
  for (const KvType type : kKvTypes) kv[KvTypeName(type)] = KvBytesPerToken(spec, type);
  json["kv_bytes_per_token"] = std::move(kv);
  if (memory_bytes == 0) return;
  const double usable = kUsableShare * static_cast<double>(memory_bytes) - 2.0 * static_cast<double>(parameters);
  Json fits = Json::object();
  for (const KvType type : kKvTypes) {
    const double bytes = static_cast<double>(KvBytesPerToken(spec, type));
    const int64_t tokens = usable <= 0 ? 0 : static_cast<int64_t>(usable / bytes);
    Json of_type = {{"tokens", tokens}};
    for (const int length : kSequenceLengths) of_type[absl::StrCat("sequences_of_", length)] = tokens / length;
    fits[KvTypeName(type)] = std::move(of_type);
  }
  json["memory"] = {{"bytes", memory_bytes},
                    {"usable_bytes", static_cast<int64_t>(kUsableShare * static_cast<double>(memory_bytes))},
                    {"weight_bytes", 2 * parameters},
                    {"kv_bytes", usable <= 0 ? 0 : static_cast<int64_t>(usable)},
                    {"fits", std::move(fits)}};
}

// The headers of the checkpoint's files. Adds what is wrong with them to `problems`.
Json CheckpointJson(const std::string& model_dir, const std::optional<ModelSpec>& spec, Json* problems, Json* notes) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(model_dir);
  if (!checkpoint.ok()) {
    // A folder may be looked at before its weights are there.
    (absl::IsNotFound(checkpoint.status()) ? notes : problems)->push_back(std::string(checkpoint.status().message()));
    return nullptr;
  }
  std::map<std::string, int64_t> types;
  int64_t tensors = 0, elements = 0;
  for (const SafetensorsFile& file : checkpoint->files()) {
    for (const TensorView& tensor : file.tensors()) {
      types[tensor.dtype_name()] += static_cast<int64_t>(tensor.bytes);
      elements += tensor.elements();
      ++tensors;
    }
  }
  Json json = {{"files", checkpoint->files().size()}, {"tensors", tensors},     {"parameters", elements},
               {"bytes", checkpoint->total_bytes()},  {"bytes_by_type", types}, {"skipped", Json::array()}};
  for (const std::string& note : checkpoint->notes()) notes->push_back(note);
  if (!spec.has_value()) return json;
  const absl::StatusOr<ModelWeights> weights = MapWeights(*spec, *checkpoint);
  if (weights.ok()) {
    json["skipped"] = weights->skipped;
    for (const std::string& note : weights->notes) notes->push_back(note);
  } else {
    problems->push_back(std::string(weights.status().message()));
  }
  return json;
}

Json TokenizerJson(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer, const std::optional<ModelSpec>& spec,
                   Json* notes) {
  if (!tokenizer.ok()) {
    notes->push_back(
        absl::StrCat(std::string(tokenizer.status().message()), ": texts cannot be read or written; token ids can"));
    return nullptr;
  }
  Json json = {{"file", (*tokenizer)->file()}, {"tokens", (*tokenizer)->vocab_size()}};
  for (const std::string& warning : (*tokenizer)->warnings()) notes->push_back(warning);
  if (spec.has_value() && (*tokenizer)->vocab_size() > spec->vocab) {
    notes->push_back(absl::StrCat((*tokenizer)->file(), ": it has ", (*tokenizer)->vocab_size(),
                                  " tokens, the model has ", spec->vocab));
  }
  return json;
}

Json TemplateJson(const std::string& model_dir, const Tokenizer* tokenizer, Json* notes) {
  const absl::StatusOr<ChatFiles> files = ReadChatFiles(model_dir, "");
  if (!files.ok()) {
    if (!absl::IsNotFound(files.status())) notes->push_back(std::string(files.status().message()));
    return nullptr;
  }
  for (const std::string& warning : files->warnings) notes->push_back(warning);
  if (tokenizer != nullptr) {
    const auto made = ChatTemplate::Create(*files, *tokenizer);
    if (!made.ok()) notes->push_back(absl::StrCat(std::string(made.status().message()), ": chats are refused"));
    if (made.ok()) {
      for (const std::string& warning : (*made)->warnings()) notes->push_back(warning);
    }
  }
  Json names = Json::array();
  for (const ChatTemplateSource& source : files->templates) names.push_back(source.name);
  return {{"file", files->templates.empty() ? "" : files->templates[0].file}, {"names", std::move(names)}};
}

// What config.json says by itself, whatever it is.
void AddNames(const nlohmann::json& config, Json* out) {
  const auto text = [&config](const char* name) -> Json {
    const auto found = config.find(name);
    return found != config.end() && found->is_string() ? Json(*found) : Json(nullptr);
  };
  (*out)["model_type"] = text("model_type");
  const auto architectures = config.find("architectures");
  const bool named = architectures != config.end() && architectures->is_array() && !architectures->empty() &&
                     architectures->front().is_string();
  (*out)["architecture"] = named ? Json(architectures->front()) : Json(nullptr);
}

}  // namespace

absl::StatusOr<std::string> InspectModel(const std::string& model_dir, uint64_t memory_bytes) {
  const std::string path = (std::filesystem::path(model_dir) / "config.json").string();
  const absl::StatusOr<std::string> text = ReadConfigFile(model_dir);
  if (!text.ok()) return text.status();
  const absl::StatusOr<nlohmann::json> config = ParseJsonObject(*text, path);
  if (!config.ok()) return config.status();
  Json out = {{"model", model_dir}};
  AddNames(*config, &out);
  Json problems = Json::array(), notes = Json::array();
  const absl::StatusOr<ModelSpec> read = ReadModelSpec(model_dir);
  std::optional<ModelSpec> spec;
  if (read.ok()) {
    spec = *read;
  } else {
    problems.push_back(std::string(read.status().message()));
  }
  out["supported"] = false;  // its place
  if (spec.has_value()) AddSpec(*spec, memory_bytes, &out);
  out["checkpoint"] = CheckpointJson(model_dir, spec, &problems, &notes);
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(model_dir);
  out["tokenizer"] = TokenizerJson(tokenizer, spec, &notes);
  out["chat_template"] = TemplateJson(model_dir, tokenizer.ok() ? tokenizer->get() : nullptr, &notes);
  if (spec.has_value()) {
    for (const std::string& note : spec->notes) notes.push_back(note);
  }
  out["supported"] = problems.empty();
  out["problems"] = std::move(problems);
  out["notes"] = std::move(notes);
  // Names of files are bytes.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fastdecode
