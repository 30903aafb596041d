#include "engine/text/tokenizer_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "engine/text/named_tokens.h"
#include "engine/text/tokenizer_class.h"

namespace fastdecode {
namespace {

using nlohmann::json;

std::string Show(const std::string& text) { return ShowJson(json(text)); }

// config.json, as far as it is there and an object: what is wrong with it is for others to say.
json ModelConfig(const TokenizerFiles& files) {
  const absl::StatusOr<json> config = ParseJsonObject(files.config_json.value_or("{}"), "config.json");
  return config.ok() ? *config : json::object();
}

bool SameFlags(const AddedToken& a, const AddedToken& b) {
  return a.single_word == b.single_word && a.lstrip == b.lstrip && a.rstrip == b.rstrip &&
         a.normalized == b.normalized && a.special == b.special;
}

// Whether the vocabulary's file has a space put before a text that begins with none.
bool PutsSpaceFirst(const TokenizerSpec& spec) {
  for (const NormalizerStep& step : spec.normalizer) {
    if (step.kind == NormalizerStep::Kind::kPrepend) return true;
  }
  for (const PreTokenizerStep& step : spec.pre_tokenizer) {
    if (step.kind == PreTokenizerStep::Kind::kByteLevel && step.add_prefix_space) return true;
    if (step.kind == PreTokenizerStep::Kind::kMetaspace && step.prepend_scheme != PrependScheme::kNever) return true;
  }
  return false;
}

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
    absl::StatusOr<NamedTokens> named = ReadNamedTokens(config_, map_);
    if (!named.ok()) return named.status();
    named_ = *std::move(named);
    class_ = FindTokenizerClass(config_.object, ModelConfig(files_), spec_->IsByteLevel());
    const std::map<int32_t, AddedToken> listed = has_list ? ReadAddedTokensDecoder() : ReadAddedTokensFile();
    if (!error_.ok()) return error_;
    AddDefaultNames(listed);
    for (const NamedToken& named : named_.named) names_.insert(named.token.content);
    if (!has_list && files_.tokenizer_json.has_value()) MarkNamedTokens();
    AddNumbered(listed, has_list ? config_ : added_file_, has_list ? "added_tokens_decoder" : "");
    AddNamesOfVocabulary();
    if (error_.ok()) AddNamedTokens();
    if (!error_.ok()) return error_;
    ReadBosAndEos();
    ReadTemplate();
    ReadMaxLength();
    WarnOfWhatIsNotFollowed();
    return absl::OkStatus();
  }

 private:
  void Parse(const std::optional<std::string>& text, const char* name, ConfigFile* file) {
    if (!error_.ok()) return;
    absl::StatusOr<ConfigFile> read = ReadConfigFile(text, absl::StrCat(files_.dir, "/", name));
    if (read.ok()) {
      *file = *std::move(read);
    } else {
      error_ = read.status();
    }
  }

  // What the tokenizer's class names where these files do not. It may name tokens that neither the vocabulary nor the
  // list has; they are left out.
  void AddDefaultNames(const std::map<int32_t, AddedToken>& listed) {
    const auto add = [&](std::string_view name, std::string_view content) {
      const bool known =
          ids_.contains(std::string(content)) ||
          std::any_of(listed.begin(), listed.end(), [&](const auto& token) { return token.second.content == content; });
      if (named_.Says(name) || !known) return;
      named_.named.push_back({std::string(name), {.content = std::string(content), .special = true}});
    };
    if (class_ == nullptr) return;
    for (const auto& [name, content] : class_->tokens) add(name, content);
  }

  // What the vocabulary's file calls bos and eos, where nobody else does.
  void AddNamesOfVocabulary() {
    for (const auto& [name, id] : {std::pair("bos_token", spec_->bos_id), std::pair("eos_token", spec_->eos_id)}) {
      if (id.has_value() && !named_.Says(name))
        named_.named.push_back({name, {.content = TextOf(*id), .special = true}});
    }
  }

  std::string TextOf(int32_t id) const {
    for (const auto& [text, of_text] : ids_) {
      if (of_text == id) return text;
    }
    return "";
  }

  // Takes a token as Hugging Face's add_tokens does: known ones keep their ids and get new flags.
  int32_t Add(AddedToken token) {
    const auto known = ids_.find(token.content);
    if (known == ids_.end() && next_id_ >= TokenizerSpec::kTokenIdLimit) {
      if (error_.ok()) {
        error_ = absl::InvalidArgumentError(absl::StrCat(config_.name, ": there is no id left for the added token ",
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
    token.special |= spec_->added_tokens[place->second].special;  // what was special once, decoding skips
    spec_->added_tokens[place->second] = token;
    return token.id;
  }

  // A token with its flags, of which transformers gives those that are missing a value by its constructor.
  AddedToken ReadFlags(const json& value, const std::string& field) {
    JsonFields fields(value, config_.name, absl::StrCat(field, "."), &error_);
    AddedToken token;
    token.content = fields.String("content");
    token.special = fields.BoolOr("special", false);
    token.single_word = fields.BoolOr("single_word", false);
    token.lstrip = fields.BoolOr("lstrip", false);
    token.rstrip = fields.BoolOr("rstrip", false);
    token.normalized = fields.BoolOr("normalized", !token.special);
    return token;
  }

  std::map<int32_t, AddedToken> ReadAddedTokensDecoder() {
    const json& list = config_.object["added_tokens_decoder"];
    JsonFields fields(config_.object, config_.name, "", &error_);
    std::map<int32_t, AddedToken> tokens;
    if (!list.is_object()) fields.Fail("added_tokens_decoder", "an object");
    if (!list.is_object()) return tokens;
    for (const auto& [key, value] : list.items()) {
      const std::string field = absl::StrCat("added_tokens_decoder[", Show(key), "]");
      int32_t id = -1;
      if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= TokenizerSpec::kTokenIdLimit) {
        error_ = absl::InvalidArgumentError(
            absl::StrCat(config_.name, ": ", field, ": expected an id from 0 to ", TokenizerSpec::kTokenIdLimit - 1));
        return tokens;
      }
      if (!value.is_object()) {
        error_ = absl::InvalidArgumentError(
            absl::StrCat(config_.name, ": ", field, " is ", ShowJson(value), ", expected an object"));
        return tokens;
      }
      AddedToken token = ReadFlags(value, field);
      if (!error_.ok()) return tokens;
      if (!token.content.empty()) tokens[id] = std::move(token);  // Hugging Face's library passes over an empty one
    }
    return tokens;
  }

  void WarnOfLostToken(const std::string& content, int32_t id, const std::string& other) {
    if (std::exchange(warned_of_id_, true)) return;
    spec_->warnings.push_back(absl::StrCat(added_file_.name, ": gives ", Show(content), " id ", id,
                                           ", which is that of ", Show(other),
                                           " in tokenizer.json: that counts, and the token is left out"));
  }

  // {"<|im_end|>": 32000}: what transformers wrote beside vocabularies of SentencePiece.
  std::map<int32_t, AddedToken> ReadAddedTokensFile() {
    std::map<int32_t, AddedToken> tokens;
    const absl::flat_hash_set<std::string> special(named_.of_lists.begin(), named_.of_lists.end());
    absl::flat_hash_map<int32_t, size_t> taken;  // by tokens of tokenizer.json
    for (size_t i = 0; files_.tokenizer_json.has_value() && i < spec_->added_tokens.size(); ++i) {
      taken.emplace(spec_->added_tokens[i].id, i);
    }
    for (const auto& [content, id] : added_file_.object.items()) {
      JsonFields fields(added_file_.object, added_file_.name, "", &error_);
      const auto number = fields.Integer(content.c_str(), 0, TokenizerSpec::kTokenIdLimit - 1);
      if (content.empty()) fields.Fail("", "a token that is not empty");
      if (!error_.ok()) return tokens;
      if (const auto other = taken.find(static_cast<int32_t>(number)); other != taken.end()) {
        const std::string& known = spec_->added_tokens[other->second].content;
        if (known != content) WarnOfLostToken(content, static_cast<int32_t>(number), known);
        continue;
      }
      AddedToken token;
      token.content = content;
      token.special = special.contains(content);
      token.normalized = !token.special;
      tokens[static_cast<int32_t>(number)] = token;
    }
    return tokens;
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
      const bool was_known = known != added_.end();
      AddedToken copy = token;
      copy.special |= names_.contains(token.content);
      if (Rename(id, copy)) continue;
      const int32_t taken = Add(copy);
      if (taken != id) WarnOfId(file, list, token.content, id, taken, was_known);
    }
  }

  // Once: where one token is shifted, all that follow it are.
  void WarnOfId(const ConfigFile& file, const std::string& list, const std::string& content, int32_t id, int32_t taken,
                bool known) {
    if (std::exchange(warned_of_id_, true)) return;
    spec_->warnings.push_back(absl::StrCat(file.name, ": ", list, list.empty() ? "" : " ", "gives ", Show(content),
                                           " id ", id, ", but it gets ", taken,
                                           known ? ", as in the vocabulary" : ", the next free one"));
  }

  // Tokens of tokenizer.json that these files name are special; with a list of added tokens, those of the list alone
  // are.
  void MarkNamedTokens() {
    for (AddedToken& token : spec_->added_tokens) token.special |= names_.contains(token.content);
  }

  // What the lists have not. Where a token is named twice with different flags, the last ones count.
  void AddNamedTokens() {
    std::vector<AddedToken> wanted;
    absl::flat_hash_map<std::string, std::vector<size_t>> places;  // in `wanted`, by content
    const auto want = [&](const AddedToken& token) {
      if (token.content.empty() || added_.contains(token.content)) return;
      std::vector<size_t>& same = places[token.content];
      const bool repeated =
          std::any_of(same.begin(), same.end(), [&](size_t i) { return SameFlags(wanted[i], token); });
      if (repeated) return;
      same.push_back(wanted.size());
      wanted.push_back(token);
    };
    for (const NamedToken& named : named_.named) {
      want(named.token);
      spec_->named_tokens.emplace_back(named.name, named.token.content);
    }
    for (const AddedToken& token : named_.extra) want(token);
    for (const AddedToken& token : wanted) Add(token);
  }

  void ReadBosAndEos() {
    const std::pair<const char*, std::optional<int32_t>*> wanted[] = {{"bos_token", &spec_->bos_id},
                                                                      {"eos_token", &spec_->eos_id}};
    for (const auto& [name, id] : wanted) {
      const AddedToken* const named = named_.Find(name);
      const auto found = named != nullptr ? ids_.find(named->content) : ids_.end();
      if (named_.Says(name)) id->reset();
      if (found != ids_.end()) *id = found->second;
    }
  }

  static bool IsYes(const json& value) { return value.is_boolean() ? value.get<bool>() : value != 0; }  // 1 is True

  // What the class LlamaTokenizer, if it is named, is told to put around a text. transformers 4 then does so whatever
  // tokenizer.json says, and transformers 5 does what tokenizer.json says; so this counts where that puts nothing
  // around a text, and either way a warning is left if it makes a difference. A tokenizer.model says nothing of it: bos
  // is put there, as in transformers 4, unless this file says otherwise.
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
      const bool said = wanted != config_.object.end() && (wanted->is_boolean() || wanted->is_number_integer());
      if (!said && (from_json || side.ids->empty())) continue;
      side.ids->clear();
      if ((!said || IsYes(*wanted)) && side.id.has_value()) side.ids->push_back(*side.id);
      if (said || side.ids->empty() || files_.vocabulary_name != "tokenizer.model") continue;
      spec_->warnings.push_back(absl::StrCat(
          spec_->file, ": bos is put before a text, as in transformers 4; transformers 5 puts none there unless ",
          "tokenizer_config.json has add_bos_token (--no-special-tokens)"));
    }
    if (prefix_ids == spec_->prefix_ids && suffix_ids == spec_->suffix_ids) return;
    if (from_json && (!spec_->prefix_ids.empty() || !spec_->suffix_ids.empty())) {
      spec_->warnings.push_back(absl::StrCat(config_.name, ": add_bos_token and add_eos_token ask for other tokens ",
                                             "around a text than tokenizer.json's post_processor, which is followed"));
      return;
    }
    spec_->prefix_ids = std::move(prefix_ids);
    spec_->suffix_ids = std::move(suffix_ids);
    if (!from_json) return;
    spec_->warnings.push_back(absl::StrCat(
        config_.name, ": add_bos_token and add_eos_token are followed, as in transformers 4, since tokenizer.json's ",
        "post_processor puts no tokens around a text; transformers 5 puts none there (--no-special-tokens)"));
  }

  // A number beyond all bounds stands for none.
  void ReadMaxLength() {
    const auto given = config_.object.find("model_max_length");
    if (given == config_.object.end() || !given->is_number()) return;
    const auto length = given->get<double>();
    if (length >= 1 && length < 1e9) spec_->model_max_length = static_cast<int64_t>(length);
  }

  bool Says(const char* name) const {
    const auto given = config_.object.find(name);
    return given != config_.object.end() && given->is_boolean() && given->get<bool>();
  }

  void WarnOfWhatIsNotFollowed() {
    const auto warn = [&](auto... message) { spec_->warnings.push_back(absl::StrCat(config_.name, ": ", message...)); };
    if (Says("split_special_tokens")) {
      warn("split_special_tokens is true, which is not followed: the names of special tokens in a prompt become their ",
           "ids (--plain takes them as text)");
    }
    if (Says("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")) {
      warn("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output is true, which is not followed");
    }
    const auto versions = config_.object.find("fast_tokenizer_files");
    if (files_.tokenizer_json.has_value() && versions != config_.object.end() && versions->is_array() &&
        std::any_of(versions->begin(), versions->end(), [](const json& name) { return name != "tokenizer.json"; })) {
      warn("fast_tokenizer_files is ", ShowJson(*versions), ", which is not followed: tokenizer.json is read");
    }
    const auto prefix = config_.object.find("add_prefix_space");
    if (class_ == nullptr || !class_->puts_spaces || prefix == config_.object.end() || !prefix->is_boolean()) return;
    if (prefix->get<bool>() == PutsSpaceFirst(*spec_)) return;
    warn("add_prefix_space is ", ShowJson(*prefix), ", but ", spec_->file, " puts ",
         PutsSpaceFirst(*spec_) ? "a" : "no", " space before a text, which is followed; transformers 5's ",
         std::string(class_->name), " follows add_prefix_space");
  }

  const TokenizerFiles& files_;
  TokenizerSpec* spec_;
  absl::Status error_;
  ConfigFile config_, map_, added_file_;
  const TokenizerClass* class_ = nullptr;  // null: it knows nothing beside the files
  NamedTokens named_;
  absl::flat_hash_set<std::string> names_;  // the contents of named tokens
  bool warned_of_id_ = false;
  absl::flat_hash_map<std::string, int32_t> ids_;   // of the vocabulary, then of added tokens
  absl::flat_hash_map<std::string, size_t> added_;  // index into the spec's added_tokens
  int32_t next_id_ = 0;
};

}  // namespace

absl::Status ApplyTokenizerConfig(const TokenizerFiles& files, TokenizerSpec* spec) {
  return ConfigReader(files, spec).Read();
}

}  // namespace fastdecode
