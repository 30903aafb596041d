#include "engine/text/tokenizer_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

std::string Show(const std::string& text) { return ShowJson(json(text)); }

bool SameFlags(const AddedToken& a, const AddedToken& b) {
  return a.single_word == b.single_word && a.lstrip == b.lstrip && a.rstrip == b.rstrip &&
         a.normalized == b.normalized && a.special == b.special;
}

// One of the files beside the vocabulary; an empty object if it is not there.
struct ConfigFile {
  std::string name;  // with its folder
  json object = json::object();
};

// Reads the files one after the other into the spec. The first error is kept; what runs after it does nothing of use.
//
// Owns: their documents. The files and the spec outlive it. Thread: one.
class ConfigReader {
 public:
  ConfigReader(const TokenizerFiles& files, TokenizerSpec* spec) : files_(files), spec_(spec) {
    for (const VocabEntry& entry : spec->vocab) {
      ids_.emplace(entry.key, entry.id);
      next_id_ = std::max(next_id_, entry.id + 1);
    }
    for (size_t i = 0; i < spec->added_tokens.size(); ++i) {
      ids_.emplace(spec->added_tokens[i].content, spec->added_tokens[i].id);
      added_.emplace(spec->added_tokens[i].content, i);
      next_id_ = std::max(next_id_, spec->added_tokens[i].id + 1);
    }
  }

  absl::Status Read() {
    Parse(files_.tokenizer_config_json, "tokenizer_config.json", &config_);
    const bool has_list = config_.object.contains("added_tokens_decoder");
    if (!has_list) {  // else transformers does not open them
      Parse(files_.special_tokens_map_json, "special_tokens_map.json", &map_);
      Parse(files_.added_tokens_json, "added_tokens.json", &added_file_);
    }
    if (!error_.ok()) return error_;
    ReadNamedTokens();
    if (error_.ok() && has_list) ReadAddedTokensDecoder();
    if (error_.ok() && !has_list) ReadAddedTokensFile();
    if (error_.ok()) AddNamedTokens();
    if (error_.ok()) ReadBosAndEos();
    if (error_.ok()) ReadTemplate();
    return error_;
  }

 private:
  void Parse(const std::optional<std::string>& text, const char* name, ConfigFile* file) {
    file->name = absl::StrCat(files_.dir, "/", name);
    if (!text.has_value() || !error_.ok()) return;
    absl::StatusOr<json> object = ParseJsonObject(*text, file->name);
    if (object.ok()) {
      file->object = *std::move(object);
    } else {
      error_ = object.status();
    }
  }

  // A token with its flags, of which transformers gives those that are missing a value by its constructor.
  AddedToken ReadToken(const json& value, const ConfigFile& file, const std::string& field, bool named) {
    JsonFields fields(value, file.name, absl::StrCat(field, "."), &error_);
    AddedToken token;
    token.content = fields.String("content");
    if (token.content.empty()) fields.Fail("content", "a string that is not empty");
    token.special = named || fields.BoolOr("special", false);
    token.single_word = fields.BoolOr("single_word", false);
    token.lstrip = fields.BoolOr("lstrip", false);
    token.rstrip = fields.BoolOr("rstrip", false);
    token.normalized = fields.BoolOr("normalized", !token.special);
    return token;
  }

  // A named token is a string or {"content": ...}; it is special.
  std::optional<AddedToken> ReadNamedToken(const json& value, const ConfigFile& file, const std::string& field) {
    if (value.is_object()) return ReadToken(value, file, field, /*named=*/true);
    if (value.is_null()) return std::nullopt;
    if (!value.is_string()) {
      if (error_.ok()) {
        error_ = absl::InvalidArgumentError(
            absl::StrCat(file.name, ": ", field, " is ", ShowJson(value), ", expected a string or an object"));
      }
      return std::nullopt;
    }
    AddedToken token;
    token.content = value.get<std::string>();
    token.special = true;
    return token.content.empty() ? std::nullopt : std::optional(std::move(token));
  }

  static bool IsNamedField(const std::string& name) {
    return std::find(std::begin(kNamedTokens), std::end(kNamedTokens), name) != std::end(kNamedTokens);
  }

  void ReadNamedTokens() {
    for (const ConfigFile* file : {&config_, &map_}) {
      for (const char* name : kNamedTokens) {
        const auto value = file->object.find(name);
        if (value == file->object.end()) continue;
        if (std::optional<AddedToken> token = ReadNamedToken(*value, *file, name)) named_[name] = *std::move(token);
      }
      // A model's own, such as image_token.
      for (const auto& [name, value] : file->object.items()) {
        if (name.ends_with("_token") && !IsNamedField(name) && value.is_string()) AddExtra(value, *file, name);
      }
    }
    for (const ConfigFile* file : {&config_, &map_}) {
      const auto extra = file->object.find("extra_special_tokens");
      if (extra == file->object.end() || !extra->is_object()) continue;
      for (const auto& [name, value] : extra->items()) {
        AddExtra(value, *file, absl::StrCat("extra_special_tokens.", name));
      }
    }
    const size_t own = extra_.size();
    ReadExtraList(config_, "extra_special_tokens");
    if (extra_.size() == own) ReadExtraList(config_, "additional_special_tokens");  // the older name
    ReadExtraList(map_, "extra_special_tokens");
    if (extra_.size() == own) ReadExtraList(map_, "additional_special_tokens");
  }

  void AddExtra(const json& value, const ConfigFile& file, const std::string& field) {
    if (std::optional<AddedToken> token = ReadNamedToken(value, file, field)) extra_.push_back(*std::move(token));
  }

  void ReadExtraList(const ConfigFile& file, const char* name) {
    const auto list = file.object.find(name);
    if (list == file.object.end() || !list->is_array()) return;
    for (size_t i = 0; i < list->size(); ++i) AddExtra((*list)[i], file, absl::StrCat(name, "[", i, "]"));
  }

  // Takes a token as Hugging Face's add_tokens does: known ones keep their ids and get new flags.
  int32_t Add(AddedToken token) {
    const auto known = ids_.find(token.content);
    if (known == ids_.end() && next_id_ >= TokenizerSpec::kTokenIdLimit) {
      if (error_.ok()) {
        error_ = absl::InvalidArgumentError(absl::StrCat(files_.dir, ": there is no id left for the added token ",
                                                         Show(token.content), " below ", TokenizerSpec::kTokenIdLimit));
      }
      return -1;
    }
    token.id = known != ids_.end() ? known->second : next_id_++;
    ids_.emplace(token.content, token.id);
    const auto [place, is_new] = added_.try_emplace(token.content, spec_->added_tokens.size());
    if (is_new) {
      spec_->added_tokens.push_back(std::move(token));
      return spec_->added_tokens.back().id;
    }
    spec_->added_tokens[place->second] = token;
    return token.id;
  }

  void ReadAddedTokensDecoder() {
    const json& list = config_.object["added_tokens_decoder"];
    JsonFields fields(config_.object, config_.name, "", &error_);
    if (!list.is_object()) return fields.Fail("added_tokens_decoder", "an object");
    std::map<int32_t, AddedToken> tokens;
    for (const auto& [key, value] : list.items()) {
      const std::string field = absl::StrCat("added_tokens_decoder[", Show(key), "]");
      int32_t id = -1;
      if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= TokenizerSpec::kTokenIdLimit) {
        error_ = absl::InvalidArgumentError(
            absl::StrCat(config_.name, ": ", field, ": expected an id from 0 to ", TokenizerSpec::kTokenIdLimit - 1));
        return;
      }
      if (!value.is_object()) {
        error_ = absl::InvalidArgumentError(
            absl::StrCat(config_.name, ": ", field, " is ", ShowJson(value), ", expected an object"));
        return;
      }
      if (value.contains("content") && value["content"] == "") continue;  // Hugging Face's library passes over it
      tokens[id] = ReadToken(value, config_, field, /*named=*/false);
      if (!error_.ok()) return;
    }
    AddNumbered(tokens, config_, "added_tokens_decoder");
  }

  // {"<|im_end|>": 32000}: what transformers wrote beside vocabularies of SentencePiece.
  void ReadAddedTokensFile() {
    std::map<int32_t, AddedToken> tokens;
    for (const auto& [content, id] : added_file_.object.items()) {
      JsonFields fields(added_file_.object, added_file_.name, "", &error_);
      const auto number = fields.Integer(content.c_str(), 0, TokenizerSpec::kTokenIdLimit - 1);
      if (content.empty()) fields.Fail("", "a token that is not empty");
      if (!error_.ok()) return;
      if (added_.contains(content)) continue;  // the vocabulary's own flags count
      AddedToken token;
      token.content = content;
      token.special = IsNamed(content);
      token.normalized = !token.special;
      tokens[static_cast<int32_t>(number)] = token;
    }
    AddNumbered(tokens, added_file_, "");
  }

  // Files of tiktoken ranks leave the names of special tokens to tokenizer_config.json (Kimi K2): those that the reader
  // made up give way.
  bool Rename(int32_t id, const AddedToken& token) {
    if (files_.tokenizer_json.has_value() || ids_.contains(token.content)) return false;
    const auto place = std::find_if(spec_->added_tokens.begin(), spec_->added_tokens.end(),
                                    [&](const AddedToken& known) { return known.id == id; });
    if (place == spec_->added_tokens.end()) return false;
    ids_.erase(place->content);
    added_.erase(place->content);
    *place = token;
    place->id = id;
    ids_.emplace(token.content, id);
    added_.emplace(token.content, place - spec_->added_tokens.begin());
    return true;
  }

  void AddNumbered(const std::map<int32_t, AddedToken>& tokens, const ConfigFile& file, const std::string& list) {
    for (const auto& [id, token] : tokens) {
      const auto known = added_.find(token.content);
      if (known != added_.end() && SameFlags(spec_->added_tokens[known->second], token)) continue;
      AddedToken copy = token;
      copy.special |= IsNamed(token.content);
      if (Rename(id, copy)) continue;
      const int32_t taken = Add(copy);
      if (taken == id || !spec_->warning.empty()) continue;
      spec_->warning = absl::StrCat(file.name, ": ", list, list.empty() ? "" : " ", "gives ", Show(token.content),
                                    " id ", id, ", but it gets ", taken,
                                    known != added_.end() ? ", as in the vocabulary" : ", the next free one");
    }
  }

  bool IsNamed(const std::string& content) const {
    return std::any_of(named_.begin(), named_.end(),
                       [&](const auto& named) { return named.second.content == content; });
  }

  void AddNamedTokens() {
    for (const char* name : kNamedTokens) {
      const auto named = named_.find(name);
      if (named != named_.end() && !added_.contains(named->second.content)) Add(named->second);
    }
    for (const AddedToken& token : extra_) {
      if (!added_.contains(token.content)) Add(token);
    }
  }

  void ReadBosAndEos() {
    const std::pair<const char*, std::optional<int32_t>*> wanted[] = {{"bos_token", &spec_->bos_id},
                                                                      {"eos_token", &spec_->eos_id}};
    for (const auto& [name, id] : wanted) {
      const auto named = named_.find(name);
      const auto found = named != named_.end() ? ids_.find(named->second.content) : ids_.end();
      if (found != ids_.end()) *id = found->second;
    }
  }

  // What the class LlamaTokenizer, if it is named, is told to put around a text. transformers 4 then does so whatever
  // tokenizer.json says, and transformers 5 does what tokenizer.json says; so this counts where that puts nothing
  // around a text, and where it puts something else, a warning is left. A tokenizer.model says nothing of it.
  void ReadTemplate() {
    const auto given = config_.object.find("tokenizer_class");
    const std::string name = given != config_.object.end() && given->is_string() ? given->get<std::string>() : "";
    const bool from_json = files_.tokenizer_json.has_value();
    if (from_json && name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return;
    std::vector<int32_t> prefix_ids = spec_->prefix_ids;
    std::vector<int32_t> suffix_ids = spec_->suffix_ids;
    const struct {
      const char* field;
      std::optional<int32_t> id;
      std::vector<int32_t>* ids;
    } sides[] = {{"add_bos_token", spec_->bos_id, &prefix_ids}, {"add_eos_token", spec_->eos_id, &suffix_ids}};
    for (const auto& side : sides) {
      const auto wanted = config_.object.find(side.field);
      if (wanted == config_.object.end() || (!wanted->is_boolean() && !wanted->is_number_integer())) continue;
      side.ids->clear();
      const bool add = wanted->is_boolean() ? wanted->get<bool>() : *wanted != 0;  // 1 is True in Python
      if (add && side.id.has_value()) side.ids->push_back(*side.id);
    }
    if (prefix_ids == spec_->prefix_ids && suffix_ids == spec_->suffix_ids) return;
    if (!from_json || (spec_->prefix_ids.empty() && spec_->suffix_ids.empty())) {
      spec_->prefix_ids = std::move(prefix_ids);
      spec_->suffix_ids = std::move(suffix_ids);
    } else {
      spec_->warning =
          absl::StrCat(config_.name, ": add_bos_token and add_eos_token ask for other tokens around a text than ",
                       "tokenizer.json's post_processor, which is followed");
    }
  }

  const TokenizerFiles& files_;
  TokenizerSpec* spec_;
  absl::Status error_;
  ConfigFile config_, map_, added_file_;
  std::map<std::string, AddedToken> named_;  // by kNamedTokens
  std::vector<AddedToken> extra_;
  absl::flat_hash_map<std::string, int32_t> ids_;   // of the vocabulary, then of added tokens
  absl::flat_hash_map<std::string, size_t> added_;  // index into the spec's added_tokens
  int32_t next_id_ = 0;
};

}  // namespace

absl::Status ApplyTokenizerConfig(const TokenizerFiles& files, TokenizerSpec* spec) {
  return ConfigReader(files, spec).Read();
}

}  // namespace fastdecode
