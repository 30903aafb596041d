#include "engine/model/generation_config.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

constexpr size_t kStopTokensMax = 64;

// Reads how tokens are drawn. Each value that is wrong is noted, and does not count.
class SamplingReader {
 public:
  SamplingReader(const nlohmann::json& config, const std::string& path, ModelSpec* spec)
      : config_(config), path_(path), spec_(spec) {}

  void Read() {
    SamplingDefaults& sampling = spec_->sampling;
    sampling.temperature = Number("temperature", 0, 100);
    sampling.top_k = Integer("top_k", 0, INT32_MAX);
    sampling.top_p = Number("top_p", 1e-6, 1);
    sampling.min_p = Number("min_p", 0, 1);
    sampling.repetition_penalty = Number("repetition_penalty", 0.01, 100);
    if (Flag("do_sample").value_or(true)) return;
    sampling.temperature = 0.0f;
  }

 private:
  // What `read` gives of a field that is there and right.
  template <class Value, class Read>
  std::optional<Value> ValueOf(const char* name, const Read& read) const {
    absl::Status wrong;
    JsonFields fields(config_, path_, "", &wrong);
    if (!fields.Has(name)) return std::nullopt;
    const Value value = static_cast<Value>(read(&fields));
    if (wrong.ok()) return value;
    spec_->notes.push_back(absl::StrCat(std::string(wrong.message()), ": it does not count"));
    return std::nullopt;
  }
  std::optional<float> Number(const char* name, double min, double max) const {
    return ValueOf<float>(name, [&](JsonFields* fields) { return fields->Number(name, min, max); });
  }
  std::optional<int> Integer(const char* name, int64_t min, int64_t max) const {
    return ValueOf<int>(name, [&](JsonFields* fields) { return fields->Integer(name, min, max); });
  }
  std::optional<bool> Flag(const char* name) const {
    return ValueOf<bool>(name, [&](JsonFields* fields) { return fields->BoolOr(name, false); });
  }

  const nlohmann::json& config_;
  const std::string& path_;
  ModelSpec* const spec_;
};

}  // namespace

std::vector<int> ReadTokenIds(JsonFields* fields, const char* name, ModelSpec* spec) {
  const nlohmann::json* value = fields->Find(name);
  if (value == nullptr) return {};
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  std::vector<int> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || ids.size() == kStopTokensMax) {
      fields->Fail(name,
                   absl::StrCat("a token id from 0 to ", spec->vocab - 1, " or a list of at most ", kStopTokensMax));
      return {};
    }
    const bool is_token = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(spec->vocab);
    if (is_token) {
      ids.push_back(static_cast<int>(id.get<int64_t>()));
    } else {
      spec->notes.push_back(absl::StrCat(fields->file(), ": ", name, " ", ShowJson(id), " is none of the model's ",
                                         spec->vocab, " tokens: it does not count"));
    }
  }
  return ids;
}

absl::Status ReadGenerationConfig(const absl::StatusOr<std::string>& file, const std::string& path, ModelSpec* spec) {
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  const absl::StatusOr<nlohmann::json> config = file.ok() ? ParseJsonObject(*file, path) : file.status();
  if (!config.ok()) {
    spec->notes.push_back(absl::StrCat(std::string(config.status().message()),
                                       ": the file does not count; where to stop is what config.json says"));
    return absl::OkStatus();
  }
  absl::Status error;
  JsonFields fields(*config, path, "", &error);
  const std::vector<int> eos = ReadTokenIds(&fields, "eos_token_id", spec);
  if (!error.ok()) return error;
  if (!eos.empty()) {
    spec->eos_token_ids = eos;
  } else if (fields.Has("eos_token_id") && config->at("eos_token_id").empty()) {
    spec->notes.push_back(absl::StrCat(path, ": eos_token_id is []: where to stop is what config.json says"));
  }
  SamplingReader(*config, path, spec).Read();
  return absl::OkStatus();
}

}  // namespace fastdecode
