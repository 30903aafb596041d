#include "engine/text/tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr int64_t kFileBytesMax = 128 << 20;  // the largest published ones have some 35 MB

std::optional<int32_t> FindToken(const TokenizerSpec& spec, const std::string& content) {
  for (const AddedToken& token : spec.added_tokens) {
    if (token.content == content) return token.id;
  }
  for (const VocabEntry& entry : spec.vocab) {
    if (entry.key == content) return entry.id;
  }
  return std::nullopt;
}

// The text of a token that tokenizer_config.json or special_tokens_map.json gives as a string or as {"content": ...}.
absl::StatusOr<std::optional<std::string>> ReadNamedToken(const json& object, const char* name,
                                                          const std::string& file) {
  absl::Status error;
  JsonFields fields(object, file, "", &error);
  const json* value = fields.Find(name);
  if (value == nullptr) return std::optional<std::string>();
  if (value->is_string()) return std::optional<std::string>(value->get<std::string>());
  if (!value->is_object()) {
    fields.Fail(name, "a string or an object");
    return error;
  }
  std::string content = JsonFields(*value, file, absl::StrCat(name, "."), &error).String("content");
  if (!error.ok()) return error;
  return std::optional<std::string>(std::move(content));
}

// Fills bos_id and eos_id where they are not known yet.
absl::Status ReadNamedTokens(const std::string& text, const std::string& file, TokenizerSpec* spec) {
  const absl::StatusOr<json> object = ParseJsonObject(text, file);
  if (!object.ok()) return object.status();
  const std::pair<const char*, std::optional<int32_t>*> wanted[] = {{"bos_token", &spec->bos_id},
                                                                    {"eos_token", &spec->eos_id}};
  for (const auto& [name, id] : wanted) {
    if (id->has_value()) continue;
    const absl::StatusOr<std::optional<std::string>> content = ReadNamedToken(*object, name, file);
    if (!content.ok()) return content.status();
    if (!content->has_value()) continue;
    *id = FindToken(*spec, **content);
    if (!id->has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", name, " is ", ShowJson(json(**content)), ", which is no token of tokenizer.json"));
    }
  }
  return absl::OkStatus();
}

// What the class LlamaTokenizer, if it is named, is told to put around a text. transformers 4 then does so whatever
// tokenizer.json says, and transformers 5 does what tokenizer.json says; so this counts where that puts nothing around
// a text, and where it puts something else, a warning is left.
absl::Status ReadLlamaTemplate(const std::string& text, const std::string& file, TokenizerSpec* spec) {
  const absl::StatusOr<json> object = ParseJsonObject(text, file);
  if (!object.ok()) return object.status();
  absl::Status error;
  JsonFields fields(*object, file, "", &error);
  const std::string name = fields.StringOr("tokenizer_class", "");
  if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return error;
  std::vector<int32_t> prefix_ids = spec->prefix_ids;
  std::vector<int32_t> suffix_ids = spec->suffix_ids;
  const struct {
    const char* field;
    std::optional<int32_t> id;
    std::vector<int32_t>* ids;
  } sides[] = {{"add_bos_token", spec->bos_id, &prefix_ids}, {"add_eos_token", spec->eos_id, &suffix_ids}};
  for (const auto& side : sides) {
    if (!fields.Has(side.field)) continue;
    side.ids->clear();
    if (fields.BoolOr(side.field, false) && side.id.has_value()) side.ids->push_back(*side.id);
  }
  if (!error.ok() || (prefix_ids == spec->prefix_ids && suffix_ids == spec->suffix_ids)) return error;
  if (spec->prefix_ids.empty() && spec->suffix_ids.empty()) {
    spec->prefix_ids = std::move(prefix_ids);
    spec->suffix_ids = std::move(suffix_ids);
  } else {
    spec->warning = absl::StrCat(file, ": add_bos_token and add_eos_token ask for other tokens around a text than ",
                                 "tokenizer.json's post_processor, which is followed");
  }
  return absl::OkStatus();
}

// Leaves *text empty if there is no such file.
absl::Status ReadOptionalFile(const std::string& path, std::optional<std::string>* text) {
  absl::StatusOr<std::string> read = ReadTextFile(path, kFileBytesMax);
  if (read.ok()) *text = *std::move(read);
  return absl::IsNotFound(read.status()) ? absl::OkStatus() : read.status();
}

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir) {
  TokenizerFiles files;
  files.dir = model_dir;
  absl::StatusOr<std::string> tokenizer = ReadTextFile(absl::StrCat(model_dir, "/tokenizer.json"), kFileBytesMax);
  if (!tokenizer.ok()) return tokenizer.status();
  files.tokenizer_json = *std::move(tokenizer);
  absl::Status status =
      ReadOptionalFile(absl::StrCat(model_dir, "/tokenizer_config.json"), &files.tokenizer_config_json);
  if (status.ok()) {
    status = ReadOptionalFile(absl::StrCat(model_dir, "/special_tokens_map.json"), &files.special_tokens_map_json);
  }
  if (!status.ok()) return status;
  return files;
}

absl::StatusOr<TokenizerSpec> ParseTokenizerSpec(const TokenizerFiles& files) {
  const std::string file = absl::StrCat(files.dir, "/tokenizer.json");
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(files.tokenizer_json, file);
  if (!spec.ok()) return spec;
  const std::pair<const std::optional<std::string>*, const char*> more[] = {
      {&files.tokenizer_config_json, "/tokenizer_config.json"},
      {&files.special_tokens_map_json, "/special_tokens_map.json"}};
  for (const auto& [text, name] : more) {
    if (!text->has_value()) continue;
    const absl::Status status = ReadNamedTokens(**text, absl::StrCat(files.dir, name), &*spec);
    if (!status.ok()) return status;
  }
  if (files.tokenizer_config_json.has_value()) {
    const absl::Status status =
        ReadLlamaTemplate(*files.tokenizer_config_json, absl::StrCat(files.dir, "/tokenizer_config.json"), &*spec);
    if (!status.ok()) return status;
  }
  return spec;
}

}  // namespace fastdecode
