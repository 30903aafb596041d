#include "engine/text/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/tokenizer_sections.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Part = TokenizerSections::Part;

// Reads the sections one after the other. The first error is kept; what runs after it does nothing of use.
class SpecReader {
 public:
  SpecReader(const json& root, const std::string& file) : in_(root, file) { spec_.file = file; }

  absl::StatusOr<TokenizerSpec> Read() {
    void (SpecReader::*const sections[])() = {&SpecReader::CheckKind,        &SpecReader::ReadVocab,
                                              &SpecReader::ReadUnknownToken, &SpecReader::ReadMerges,
                                              &SpecReader::ReadAddedTokens,  &SpecReader::ReadPostProcessor};
    for (const auto section : sections) {
      (this->*section)();
      if (!in_.ok()) return in_.error();
    }
    ReadDecoder(&in_, &spec_);
    if (!in_.ok()) return in_.error();
    return std::move(spec_);
  }

 private:
  std::optional<int32_t> FindToken(const std::string& content) const {
    const auto found = id_of_token_.find(content);
    if (found == id_of_token_.end()) return std::nullopt;
    return found->second;
  }

  void CheckKind();
  void CheckModelOptions(JsonFields& model);
  void ReadVocab();
  void ReadUnknownToken();
  bool HasAllBytes() const;
  void ReadMerges();
  void ReadMerge(const json& merge, const std::string& field);
  void ReadAddedTokens();
  void NumberAddedToken(const std::string& field, int64_t id, AddedToken* token);
  void ReadPostProcessor();
  void ReadTemplate(const Part& part);
  void ReadTemplateToken(const json& piece, const json& special_tokens, const Part& part, std::vector<int32_t>* ids);
  void ReadClsAndSep(const Part& part);

  TokenizerSections in_;
  const json* model_ = nullptr;
  TokenizerSpec spec_;
  absl::flat_hash_map<std::string, int32_t> id_of_token_;  // of the model as spelt in the file, then added ones
  absl::flat_hash_set<int32_t> ids_taken_;
  absl::flat_hash_map<std::string, size_t> added_contents_;  // index into spec_.added_tokens
  int32_t next_added_id_ = 0;
  bool warned_of_id_ = false;
};

// Names a tokenizer of another kind as what it is, before anything in it could look broken.
void SpecReader::CheckKind() {
  JsonFields root = in_.Root();
  model_ = in_.Required(root, "model", json::value_t::object);
  if (model_ == nullptr) return;
  JsonFields model = in_.Fields(*model_, "model");
  const std::string type = model.StringOr("type", model.Has("merges") ? "BPE" : "");
  if (type.empty()) return model.Fail("type", "\"BPE\"");
  if (type != "BPE") {
    return in_.Refuse(absl::StrCat("model.type is ", QuoteJson(type), type == "Unigram" ? " (SentencePiece)" : "",
                                   "; only BPE can be read"));
  }
  CheckModelOptions(model);
  if (in_.ok()) ReadNormalizer(&in_, &spec_);
  if (in_.ok()) ReadPreTokenizer(&in_, &spec_);
}

void SpecReader::CheckModelOptions(JsonFields& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string value = model.StringOr(name, "");
    if (!value.empty()) in_.Refuse(absl::StrCat("model.", name, " is ", QuoteJson(value), ", not built"));
  }
  if (model.NumberOr("dropout", 0, 1, 0) > 0) in_.Refuse("model.dropout is not 0: encodings would be random");
  spec_.ignore_merges = model.BoolOr("ignore_merges", false);
  spec_.byte_fallback = model.BoolOr("byte_fallback", false);
}

void SpecReader::ReadVocab() {
  JsonFields model = in_.Fields(*model_, "model");
  const json* vocab = in_.Required(model, "vocab", json::value_t::object);
  if (vocab == nullptr) return;
  for (const auto& [key, value] : vocab->items()) {
    const int32_t id = in_.TokenId(value, absl::StrCat("model.vocab[", QuoteJson(key), "]"));
    if (!in_.ok()) return;
    if (!ids_taken_.insert(id).second) {
      return in_.Fail(absl::StrCat("model.vocab[", QuoteJson(key), "] is ", id, ", the id of another token too"));
    }
    spec_.vocab.push_back({key, id});
    id_of_token_.emplace(key, id);
  }
}

// A model that lacks some bytes or characters may name a token for them that it lacks, too: then Hugging Face's library
// fails at the first text that has such a one, so that such a tokenizer is refused.
void SpecReader::ReadUnknownToken() {
  JsonFields model = in_.Fields(*model_, "model");
  spec_.fuse_unknown = model.BoolOr("fuse_unk", false);
  if (spec_.IsByteLevel() && spec_.byte_fallback && !HasAllBytes()) {
    return in_.Refuse("model.byte_fallback is true in a byte-level vocabulary without all bytes: not built");
  }
  if (spec_.IsByteLevel()) spec_.byte_fallback = false;  // every byte is a token
  if (!model.Has("unk_token")) return;
  const std::string content = model.String("unk_token");
  spec_.unknown_id = FindToken(content);
  if (spec_.unknown_id.has_value() || HasAllBytes()) return;
  in_.Refuse(absl::StrCat("model.unk_token is ", QuoteJson(content),
                          ", which is not in model.vocab, nor is a token for each byte"));
}

// Whether every text is spelt in known tokens.
bool SpecReader::HasAllBytes() const {
  if (!spec_.IsByteLevel() && !spec_.byte_fallback) return false;
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    const auto code = static_cast<uint8_t>(byte);
    const std::string token = spec_.IsByteLevel() ? ByteLevelCharacter(code) : ByteFallbackToken(code);
    if (in_utf8 && !FindToken(token).has_value()) return false;
  }
  return true;
}

void SpecReader::ReadMerges() {
  JsonFields model = in_.Fields(*model_, "model");
  const json* merges = in_.Required(model, "merges", json::value_t::array);
  if (merges == nullptr) return;
  for (size_t i = 0; i < merges->size() && in_.ok(); ++i) {
    ReadMerge((*merges)[i], absl::StrCat("model.merges[", i, "]"));
  }
}

// "a b" as older files write it, or ["a", "b"].
void SpecReader::ReadMerge(const json& merge, const std::string& field) {
  std::string left, right;
  bool is_pair = false;
  if (merge.is_string()) {
    const std::string text = merge.get<std::string>();
    if (text.starts_with("#version")) return;  // merges.txt's first line, which some converters kept
    const size_t space = text.find(' ');
    is_pair = space != std::string::npos && text.find(' ', space + 1) == std::string::npos;
    left = text.substr(0, space);
    right = is_pair ? text.substr(space + 1) : "";
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    is_pair = true;
    left = merge[0].get<std::string>();
    right = merge[1].get<std::string>();
  }
  if (!is_pair || left.empty() || right.empty()) {
    return in_.Fail(absl::StrCat(field, " is ", ShowJson(merge), ", expected two tokens"));
  }
  int32_t ids[3];
  const std::string tokens[3] = {left, right, left + right};
  for (int i = 0; i < 3; ++i) {
    const std::optional<int32_t> id = FindToken(tokens[i]);
    if (!id.has_value()) {
      return in_.Fail(
          absl::StrCat(field, " is ", ShowJson(merge), ": ", QuoteJson(tokens[i]), " is not in model.vocab"));
    }
    ids[i] = *id;
  }
  spec_.merges.push_back({ids[0], ids[1], ids[2]});
}

void SpecReader::ReadAddedTokens() {
  JsonFields root = in_.Root();
  if (in_.root().find("added_tokens") == in_.root().end()) return;
  const json* list = in_.Required(root, "added_tokens", json::value_t::array);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    const json& value = (*list)[i];
    const std::string field = absl::StrCat("added_tokens[", i, "]");
    if (!value.is_object()) return in_.Fail(absl::StrCat(field, " is ", ShowJson(value), ", expected an object"));
    JsonFields fields = in_.Fields(value, field);
    AddedToken token;
    const int64_t id = fields.Integer("id", 0, std::numeric_limits<uint32_t>::max());
    token.content = fields.String("content");
    token.single_word = in_.RequiredBool(fields, "single_word");
    token.lstrip = in_.RequiredBool(fields, "lstrip");
    token.rstrip = in_.RequiredBool(fields, "rstrip");
    token.normalized = in_.RequiredBool(fields, "normalized");
    token.special = in_.RequiredBool(fields, "special");
    if (!in_.ok()) return;
    if (token.content.empty()) continue;  // Hugging Face's library passes over it
    const auto [place, is_new] = added_contents_.try_emplace(token.content, spec_.added_tokens.size());
    if (is_new) {
      NumberAddedToken(field, id, &token);
      if (!in_.ok()) return;
      spec_.added_tokens.push_back(std::move(token));
    } else {  // the last flags count, but what was special once, decoding skips
      token.id = spec_.added_tokens[place->second].id;
      token.special |= spec_.added_tokens[place->second].special;
      spec_.added_tokens[place->second] = std::move(token);
    }
  }
}

// Hugging Face's library numbers added tokens itself: as in the vocabulary, or on from its end. Where a file says
// otherwise, it warns and keeps its own number.
void SpecReader::NumberAddedToken(const std::string& field, int64_t id, AddedToken* token) {
  const std::optional<int32_t> in_vocab = FindToken(token->content);
  next_added_id_ = std::max(next_added_id_, static_cast<int32_t>(spec_.vocab.size()));
  const int32_t number = in_vocab.value_or(next_added_id_);
  if (number >= TokenizerSpec::kTokenIdLimit) return in_.Fail(absl::StrCat(field, ": there is no id left for it"));
  if (id != number && !std::exchange(warned_of_id_, true)) {  // where one is shifted, all that follow it are
    spec_.warnings.push_back(absl::StrCat(spec_.file, ": ", field, ".id is ", id, ", but ", QuoteJson(token->content),
                                          " gets ", number,
                                          in_vocab.has_value() ? ", as in model.vocab" : ", the next free id"));
  }
  token->id = number;
  if (!in_vocab.has_value() && !ids_taken_.insert(number).second) {
    return in_.Fail(
        absl::StrCat(field, ": id ", number, " for ", QuoteJson(token->content), " is the id of another token too"));
  }
  next_added_id_ = std::max(next_added_id_, number + 1);
  id_of_token_.emplace(token->content, number);
}

void SpecReader::ReadPostProcessor() {
  bool has_template = false;
  for (const Part& part : in_.Parts("post_processor", "processors")) {
    if (part.type == "ByteLevel") continue;  // trims offsets, which nobody asks for here
    if (part.type != "TemplateProcessing" && part.type != "RobertaProcessing" && part.type != "BertProcessing") {
      in_.Refuse(absl::StrCat(part.field, ".type is ", QuoteJson(part.type),
                              ", not built; TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel are"));
    } else if (has_template) {
      in_.Refuse(absl::StrCat(part.field, ": a second ", part.type, " is not built"));
    } else if (part.type == "TemplateProcessing") {
      ReadTemplate(part);
    } else {
      ReadClsAndSep(part);
    }
    if (!in_.ok()) return;
    has_template = true;
  }
}

// RobertaProcessing and BertProcessing name one token before the text and one after it: "cls": ["<s>", 0].
void SpecReader::ReadClsAndSep(const Part& part) {
  JsonFields fields = in_.Fields(*part.value, part.field);
  const std::pair<const char*, std::vector<int32_t>*> sides[] = {{"cls", &spec_.prefix_ids},
                                                                 {"sep", &spec_.suffix_ids}};
  for (const auto& [name, ids] : sides) {
    const json* pair = in_.Required(fields, name, json::value_t::array);
    if (pair == nullptr) return;
    if (pair->size() != 2 || !(*pair)[0].is_string()) return fields.Fail(name, "a token and its id");
    const std::string field = absl::StrCat(part.field, ".", name, "[1]");
    const int32_t id = in_.TokenId((*pair)[1], field);
    if (!in_.ok()) return;
    if (!ids_taken_.contains(id)) return in_.Fail(absl::StrCat(field, " is ", id, ", the id of no token"));
    ids->push_back(id);
  }
}

// The template of a single text: special tokens around one "A".
void SpecReader::ReadTemplate(const Part& part) {
  JsonFields fields = in_.Fields(*part.value, part.field);
  const json* single = in_.Required(fields, "single", json::value_t::array);
  const json* special_tokens = in_.Required(fields, "special_tokens", json::value_t::object);
  if (single == nullptr || special_tokens == nullptr) return;
  bool has_text = false;
  for (const json& piece : *single) {
    const bool is_text = piece.is_object() && piece.contains("Sequence");
    if (is_text && has_text) return in_.Fail(absl::StrCat(part.field, ".single has more than one Sequence"));
    if (is_text) {
      has_text = true;
    } else {
      ReadTemplateToken(piece, *special_tokens, part, has_text ? &spec_.suffix_ids : &spec_.prefix_ids);
    }
    if (!in_.ok()) return;
  }
  if (!has_text) in_.Fail(absl::StrCat(part.field, ".single has no Sequence"));
}

void SpecReader::ReadTemplateToken(const json& piece, const json& special_tokens, const Part& part,
                                   std::vector<int32_t>* ids) {
  const std::string field = absl::StrCat(part.field, ".single");
  if (!piece.is_object() || !piece.contains("SpecialToken") || !piece["SpecialToken"].is_object()) {
    return in_.Fail(absl::StrCat(field, " has ", ShowJson(piece), ", expected a SpecialToken or a Sequence"));
  }
  const std::string name = in_.Fields(piece["SpecialToken"], absl::StrCat(field, ".SpecialToken")).String("id");
  if (!in_.ok()) return;
  const auto found = special_tokens.find(name);
  if (found == special_tokens.end() || !found->is_object() || !found->contains("ids") || !(*found)["ids"].is_array()) {
    return in_.Fail(absl::StrCat(part.field, ".special_tokens[", QuoteJson(name), "] has no array ids"));
  }
  for (const json& value : (*found)["ids"]) {
    const std::string id_field = absl::StrCat(part.field, ".special_tokens[", QuoteJson(name), "].ids");
    const int32_t id = in_.TokenId(value, id_field);
    if (!in_.ok()) return;
    if (!ids_taken_.contains(id)) return in_.Fail(absl::StrCat(id_field, " has ", id, ", the id of no token"));
    ids->push_back(id);
  }
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text, const std::string& file) {
  const absl::StatusOr<json> root = ParseJsonObject(text, file);
  if (!root.ok()) return root.status();
  return ParseTokenizerDocument(*root, file);
}

absl::StatusOr<TokenizerSpec> ParseTokenizerDocument(const json& root, const std::string& file) {
  return SpecReader(root, file).Read();
}

}  // namespace fastdecode
