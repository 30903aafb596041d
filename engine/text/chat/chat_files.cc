#include "engine/text/chat/chat_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_folder.h"
#include "engine/text/named_tokens.h"

namespace fastdecode {

namespace {

using nlohmann::json;

constexpr int64_t kTemplateBytesMax = 4 << 20;
constexpr int64_t kConfigBytesMax = 64 << 20;
constexpr size_t kGuessedBytes = 512;

// A JSON object of the folder; empty if the file is missing. `text` holds what it refers to.
absl::StatusOr<ConfigFile> ReadObject(const std::string& path, std::optional<std::string>* text) {
  absl::StatusOr<std::string> read = ReadTextFile(path, kConfigBytesMax);
  if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
  if (read.ok()) *text = *std::move(read);
  return ReadConfigFile(*text, path);
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
  const std::string guess = text->empty() ? "" : GuessContent(std::string_view(*text).substr(0, kGuessedBytes));
  if (!guess.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", guess));
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

// Says of templates that are not used, since `used` count before them, if they are others.
void WarnOfUnused(const std::vector<ChatTemplateSource>& used, const std::vector<ChatTemplateSource>& unused,
                  ChatFiles* files) {
  for (const ChatTemplateSource& source : unused) {
    const bool same = std::any_of(used.begin(), used.end(),
                                  [&](const ChatTemplateSource& other) { return other.text == source.text; });
    if (same) continue;
    files->warnings.push_back(absl::StrCat(source.file, ": not used, since ", used.front().file, " counts before it"));
    return;
  }
}

absl::Status AddFolderTemplates(const std::string& dir, const ConfigFile& config, ChatFiles* files) {
  std::error_code error;
  const std::string main = dir + "/chat_template.jinja";
  if (std::filesystem::exists(std::filesystem::symlink_status(main, error))) {
    if (absl::Status added = AddFile(main, "default", &files->templates); !added.ok()) return added;
  }
  if (absl::Status added = AddFurtherFiles(dir + "/additional_chat_templates", &files->templates); !added.ok())
    return added;
  std::vector<ChatTemplateSource> configured, older;
  absl::Status added = AddTemplates(config.object, config.name, &configured);
  if (files->templates.empty() && !added.ok()) return added;
  if (files->templates.empty()) {
    files->templates = std::move(configured);
  } else {
    WarnOfUnused(files->templates, configured, files);
  }
  std::optional<std::string> text;
  const absl::StatusOr<ConfigFile> object = ReadObject(dir + "/chat_template.json", &text);
  added = object.ok() ? AddTemplates(object->object, object->name, &older) : object.status();
  if (files->templates.empty() && !added.ok()) return added;
  if (files->templates.empty()) {
    files->templates = std::move(older);
  } else {
    WarnOfUnused(files->templates, older, files);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatFiles> ReadChatFiles(const std::string& model_dir, const std::string& given) {
  ChatFiles files;
  std::optional<std::string> config_text, map_text;
  const absl::StatusOr<ConfigFile> config = ReadObject(model_dir + "/tokenizer_config.json", &config_text);
  if (!config.ok()) return config.status();
  absl::StatusOr<ConfigFile> map = ConfigFile();
  if (!config->object.contains("added_tokens_decoder")) {  // else transformers does not open it
    map = ReadObject(model_dir + "/special_tokens_map.json", &map_text);
    if (!map.ok()) return map.status();
  }
  const absl::StatusOr<NamedTokens> tokens = ReadNamedTokens(*config, *map);
  if (!tokens.ok()) return tokens.status();
  for (const NamedToken& named : tokens->named) files.special_tokens.emplace_back(named.name, named.token.content);
  if (absl::Status added = AddControlTokens(config->object, config->name, &files); !added.ok()) return added;
  const absl::Status added =
      given.empty() ? AddFolderTemplates(model_dir, *config, &files) : AddFile(given, "default", &files.templates);
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
