#include "engine/text/named_tokens.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

bool IsNamedField(const std::string& name) {
  return std::find(std::begin(kNamedTokens), std::end(kNamedTokens), name) != std::end(kNamedTokens);
}

// The names in the object `parent` of a document, or in the document itself if that is empty, in the order of the text.
// `text` is known to be JSON.
std::vector<std::string> FieldOrder(std::string_view text, const std::string& parent) {
  std::vector<std::string> names;
  const int wanted_depth = parent.empty() ? 1 : 2;
  int depth = 0;
  std::string top;  // the last name at depth 1
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] != '"') continue;
    const size_t begin = i;
    for (++i; i < text.size() && text[i] != '"'; ++i) {
      if (text[i] == '\\') ++i;
    }
    const size_t after = text.find_first_not_of(" \t\r\n", i + 1);
    if (depth > wanted_depth || after == std::string_view::npos || text[after] != ':') continue;
    const json name = json::parse(text.substr(begin, i + 1 - begin), nullptr, /*allow_exceptions=*/false);
    if (!name.is_string()) continue;
    if (depth == 1) top = name.get<std::string>();
    if (depth == wanted_depth && (parent.empty() || top == parent)) names.push_back(name.get<std::string>());
  }
  return names;
}

// What Python takes for true.
bool IsTrue(const json* value) {
  if (value == nullptr || value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return *value != 0;
  return value->is_string() ? !value->get_ref<const std::string&>().empty() : !value->empty();
}

// Reads the files one after the other. The first error is kept; what runs after it does nothing of use.
//
// Owns: what it has read. The files outlive it. Thread: one.
class NamedTokenReader {
 public:
  NamedTokenReader(const ConfigFile& config, const ConfigFile& map) : config_(config), map_(map) {}

  absl::StatusOr<NamedTokens> Read() {
    ReadKnown();
    ReadOwn();
    ReadLists();
    if (!error_.ok()) return error_;
    for (const char* name : kNamedTokens) {
      const auto known = known_.find(name);
      if (known == known_.end()) continue;
      if (known->second.has_value()) {
        tokens_.named.push_back({name, *known->second});
        tokens_.of_lists.push_back(known->second->content);
      } else {
        tokens_.unnamed.push_back(name);
      }
    }
    for (NamedToken& own : own_) tokens_.named.push_back(std::move(own));
    return std::move(tokens_);
  }

 private:
  struct Value {
    const json* value = nullptr;
    const ConfigFile* file = nullptr;
  };

  void Fail(const ConfigFile& file, const std::string& field, const json& value, const char* expected) {
    if (!error_.ok()) return;
    error_ = absl::InvalidArgumentError(
        absl::StrCat(file.name, ": ", field, " is ", ShowJson(value), ", expected ", expected));
  }

  static Value Field(const ConfigFile& file, const char* name) {
    const auto found = file.object.find(name);
    return found == file.object.end() ? Value{} : Value{&*found, &file};
  }

  // A token is a string or {"content": ...}, of which transformers gives missing flags a value by its constructor.
  AddedToken ReadToken(const json& value, const ConfigFile& file, const std::string& field, bool special) {
    AddedToken token;
    token.special = special;
    if (value.is_string()) {
      token.content = value.get<std::string>();
    } else if (value.is_object()) {
      JsonFields fields(value, file.name, absl::StrCat(field, "."), &error_);
      token.content = fields.String("content");
      token.special = special || fields.BoolOr("special", false);
      token.single_word = fields.BoolOr("single_word", false);
      token.lstrip = fields.BoolOr("lstrip", false);
      token.rstrip = fields.BoolOr("rstrip", false);
      token.normalized = fields.BoolOr("normalized", !token.special);
    } else {
      Fail(file, field, value, "a string or an object");
    }
    return token;
  }

  // bos_token and the like.
  void ReadKnown() {
    for (const ConfigFile* file : {&config_, &map_}) {
      for (const char* name : kNamedTokens) {
        const Value field = Field(*file, name);
        if (field.value == nullptr) continue;
        std::optional<AddedToken>& token = known_[name];
        token.reset();
        if (!field.value->is_null()) token = ReadToken(*field.value, *file, name, /*special=*/true);
      }
    }
  }

  void SetOwn(const std::string& name, AddedToken token) {
    const auto [place, is_new] = own_places_.try_emplace(name, own_.size());
    if (is_new) own_.push_back({name, {}});
    own_[place->second].token = std::move(token);
  }

  // A model's own, such as image_token: the configuration's objects and what the map has, then the configuration's
  // texts, which count more. What is no token keeps its place for the map.
  void ReadOwn() {
    std::vector<std::pair<std::string, std::optional<AddedToken>>> others;
    absl::flat_hash_map<std::string, size_t> places;
    for (const ConfigFile* file : {&config_, &map_}) {
      for (const std::string& name : FieldOrder(file->text, "")) {
        const json& value = file->object.at(name);
        const bool of_map = file == &map_;
        if (!name.ends_with("_token") || IsNamedField(name) || (!of_map && value.is_string())) continue;
        const bool typed = value.is_object() && value.contains("content") &&
                           (of_map || (value.contains("__type") && value["__type"] == "AddedToken"));
        const auto [place, is_new] = places.try_emplace(name, others.size());
        if (is_new) others.emplace_back(name, std::nullopt);
        std::optional<AddedToken>& token = others[place->second].second;
        token.reset();
        if (typed || value.is_string()) token = ReadToken(value, *file, name, /*special=*/true);
      }
    }
    for (const auto& [name, token] : others) {
      if (token.has_value()) SetOwn(name, *token);
    }
    for (const std::string& name : FieldOrder(config_.text, "")) {
      if (!name.ends_with("_token") || IsNamedField(name) || !config_.object.at(name).is_string()) continue;
      SetOwn(name, ReadToken(config_.object.at(name), config_, name, /*special=*/true));
    }
  }

  // Tokens by names of the model's own.
  void ReadExtraObject(const Value& object) {
    for (const std::string& name : FieldOrder(object.file->text, "extra_special_tokens")) {
      const auto value = object.value->find(name);
      if (value == object.value->end()) continue;  // of an object that a later one of this name replaces
      SetOwn(name, ReadToken(*value, *object.file, absl::StrCat("extra_special_tokens.", name), /*special=*/true));
    }
  }

  void ReadExtraList(const Value& list, const char* name) {
    if (list.value == nullptr || list.value->is_null()) return;
    if (!list.value->is_array()) return Fail(*list.file, name, *list.value, "a list of tokens");
    for (size_t i = 0; i < list.value->size(); ++i) {
      const json& value = (*list.value)[i];
      // Only a token of the configuration says itself that it is not special.
      const bool typed = list.file == &config_ && value.is_object() && value.contains("__type");
      tokens_.extra.push_back(ReadToken(value, *list.file, absl::StrCat(name, "[", i, "]"), !typed));
    }
  }

  void ReadLists() {
    static constexpr char kNewer[] = "extra_special_tokens", kOlder[] = "additional_special_tokens";
    Value newer = Field(config_, kNewer), older = Field(config_, kOlder), newer_of_map = Field(map_, kNewer);
    const char* newer_name = kNewer;
    if (older.value != nullptr && !IsTrue(newer.value)) {
      newer = std::exchange(older, Value{});
      newer_name = kOlder;
    }
    if (newer.value != nullptr && newer.value->is_object()) ReadExtraObject(std::exchange(newer, Value{}));
    if (newer_of_map.value != nullptr && !newer_of_map.value->is_array()) {  // it takes the place of the other
      newer = std::exchange(newer_of_map, Value{});
      newer_name = kNewer;
      if (newer.value->is_object()) ReadExtraObject(std::exchange(newer, Value{}));
    }
    if (const Value of_map = Field(map_, kOlder); of_map.value != nullptr) older = of_map;
    ReadExtraList(newer, newer_name);
    ReadExtraList(newer_of_map, kNewer);
    for (const AddedToken& token : tokens_.extra) tokens_.of_lists.push_back(token.content);
    if (newer.value == nullptr && newer_of_map.value == nullptr) ReadExtraList(older, kOlder);
  }

  const ConfigFile& config_;
  const ConfigFile& map_;
  absl::Status error_;
  std::map<std::string, std::optional<AddedToken>> known_;
  std::vector<NamedToken> own_;
  absl::flat_hash_map<std::string, size_t> own_places_;  // by name
  NamedTokens tokens_;
};

}  // namespace

absl::StatusOr<ConfigFile> ReadConfigFile(const std::optional<std::string>& text, const std::string& name) {
  ConfigFile file = {.name = name, .text = {}};
  if (!text.has_value()) return file;
  absl::StatusOr<json> object = ParseJsonObject(*text, name);
  if (!object.ok()) return object.status();
  file.text = *text;
  file.object = *std::move(object);
  return file;
}

bool NamedTokens::Says(std::string_view name) const {
  return Find(name) != nullptr || std::find(unnamed.begin(), unnamed.end(), name) != unnamed.end();
}

const AddedToken* NamedTokens::Find(std::string_view name) const {
  const auto found =
      std::find_if(named.begin(), named.end(), [&](const NamedToken& token) { return token.name == name; });
  return found == named.end() ? nullptr : &found->token;
}

absl::StatusOr<NamedTokens> ReadNamedTokens(const ConfigFile& config, const ConfigFile& map) {
  return NamedTokenReader(config, map).Read();
}

}  // namespace fastdecode
