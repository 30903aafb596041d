#include "engine/text/chat/chat_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {

namespace {

using nlohmann::json;

constexpr int64_t kTemplateBytesMax = 4 << 20;
constexpr int64_t kConfigBytesMax = 64 << 20;

// A JSON object of the folder; empty if the file is missing.
absl::StatusOr<json> ReadObject(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kConfigBytesMax);
  if (absl::IsNotFound(text.status())) return json::object();
  if (!text.ok()) return text.status();
  return ParseJsonObject(*text, path);
}

absl::Status BadTemplateField(const std::string& file) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": chat_template is neither a text nor a list of objects with name and template, both texts"));
}

// The templates of a configuration's field chat_template.
absl::Status AddTemplates(const json& config, const std::string& file, std::vector<ChatTemplateSource>* out) {
  const auto field = config.find("chat_template");
  if (field == config.end() || field->is_null()) return absl::OkStatus();
  if (field->is_string()) {
    out->push_back({absl::StrCat(file, ": chat_template"), "default", field->get<std::string>()});
    return absl::OkStatus();
  }
  // transformers 4 wrote a list, and some tools an object of names and texts.
  if (field->is_object()) {
    for (const auto& [name, text] : field->items()) {
      if (!text.is_string()) return BadTemplateField(file);
      out->push_back({absl::StrCat(file, ": chat_template ", name), name, text.get<std::string>()});
    }
    return absl::OkStatus();
  }
  if (!field->is_array()) return BadTemplateField(file);
  for (const json& each : *field) {
    const bool complete = each.is_object() && each.contains("name") && each["name"].is_string() &&
                          each.contains("template") && each["template"].is_string();
    if (!complete) return BadTemplateField(file);
    const auto name = each["name"].get<std::string>();
    out->push_back({absl::StrCat(file, ": chat_template ", name), name, each["template"].get<std::string>()});
  }
  return absl::OkStatus();
}

absl::Status AddFile(const std::string& path, const std::string& name, std::vector<ChatTemplateSource>* out) {
  absl::StatusOr<std::string> text = ReadTextFile(path, kTemplateBytesMax);
  if (!text.ok()) return text.status();
  out->push_back({path, name, *std::move(text)});
  return absl::OkStatus();
}

// Templates beside chat_template.jinja.
absl::Status AddFurtherFiles(const std::string& dir, std::vector<ChatTemplateSource>* out) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::filesystem::path& path : paths) {
    if (absl::Status added = AddFile(path.string(), path.stem().string(), out); !added.ok()) return added;
  }
  return absl::OkStatus();
}

// A token is a text, or an object whose content is one.
std::optional<std::string> TokenText(const json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return std::nullopt;
  if (field->is_string()) return field->get<std::string>();
  if (field->is_object() && field->contains("content") && (*field)["content"].is_string()) {
    return (*field)["content"].get<std::string>();
  }
  return std::nullopt;
}

// What the map says of a token counts before what the configuration says, as for the tokenizer.
void AddSpecialTokens(const json& config, const json& map, ChatFiles* files) {
  for (const char* const name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    std::optional<std::string> text = TokenText(map, name);
    if (!text) text = TokenText(config, name);
    if (text) files->special_tokens.emplace_back(name, *std::move(text));
  }
}

absl::Status AddControlTokens(const json& config, const std::string& file, ChatFiles* files) {
  const auto field = config.find("chat_control_tokens");
  if (field == config.end() || field->is_null()) return absl::OkStatus();
  const bool texts =
      field->is_array() && std::all_of(field->begin(), field->end(), [](const json& each) { return each.is_string(); });
  if (!texts) return absl::InvalidArgumentError(absl::StrCat(file, ": chat_control_tokens is no list of texts"));
  files->control_tokens = field->get<std::vector<std::string>>();
  files->has_control_tokens = true;
  return absl::OkStatus();
}

absl::Status AddFolderTemplates(const std::string& dir, const json& config, const std::string& config_file,
                                ChatFiles* files) {
  std::error_code error;
  const std::string main = dir + "/chat_template.jinja";
  if (std::filesystem::exists(std::filesystem::symlink_status(main, error))) {
    if (absl::Status added = AddFile(main, "default", &files->templates); !added.ok()) return added;
  }
  if (absl::Status added = AddFurtherFiles(dir + "/additional_chat_templates", &files->templates); !added.ok())
    return added;
  if (!files->templates.empty()) return absl::OkStatus();
  if (absl::Status added = AddTemplates(config, config_file, &files->templates); !added.ok()) return added;
  if (!files->templates.empty()) return absl::OkStatus();
  const std::string older = dir + "/chat_template.json";
  const absl::StatusOr<json> object = ReadObject(older);
  if (!object.ok()) return object.status();
  return AddTemplates(*object, older, &files->templates);
}

}  // namespace

absl::StatusOr<ChatFiles> ReadChatFiles(const std::string& model_dir, const std::string& given) {
  ChatFiles files;
  const std::string config_file = model_dir + "/tokenizer_config.json";
  const absl::StatusOr<json> config = ReadObject(config_file);
  if (!config.ok()) return config.status();
  absl::StatusOr<json> map = json::object();
  if (!config->contains("added_tokens_decoder")) {  // else transformers does not open it
    map = ReadObject(model_dir + "/special_tokens_map.json");
    if (!map.ok()) return map.status();
  }
  AddSpecialTokens(*config, *map, &files);
  if (absl::Status added = AddControlTokens(*config, config_file, &files); !added.ok()) return added;
  const absl::Status added = given.empty() ? AddFolderTemplates(model_dir, *config, config_file, &files)
                                           : AddFile(given, "default", &files.templates);
  if (!added.ok()) return added;
  if (files.templates.empty()) {
    return absl::NotFoundError(absl::StrCat(
        model_dir,
        " has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); pass one with "
        "--chat-template FILE, or use plain completions"));
  }
  return files;
}

}  // namespace fastdecode
