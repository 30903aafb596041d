#include "engine/text/tokenizer_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/text/byte_level_bpe.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr char kOnlyByteLevel[] = "; only byte-level BPE can be read";

std::string Quoted(const std::string& text) { return ShowJson(json(text)); }

// One part of a Sequence, or the only one where there is no Sequence.
struct Part {
  const json* value;
  std::string field;  // such as "pre_tokenizer.pretokenizers[1]"
  std::string type;
};

// Reads the sections one after the other. The first error is kept; what runs after it does nothing of use.
class SpecReader {
 public:
  SpecReader(const json& root, std::string file) : root_(root), file_(std::move(file)) {}

  absl::StatusOr<TokenizerSpec> Read() {
    void (SpecReader::*const sections[])() = {
        &SpecReader::CheckKind,        &SpecReader::ReadVocab,         &SpecReader::ReadUnknownToken,
        &SpecReader::ReadMerges,       &SpecReader::ReadAddedTokens,   &SpecReader::ReadNormalizer,
        &SpecReader::ReadPreTokenizer, &SpecReader::ReadPostProcessor, &SpecReader::CheckDecoder};
    for (const auto section : sections) {
      (this->*section)();
      if (!error_.ok()) return error_;
    }
    return std::move(spec_);
  }

 private:
  std::optional<int32_t> FindToken(const std::string& content) const {
    const auto found = id_of_token_.find(content);
    if (found == id_of_token_.end()) return std::nullopt;
    return found->second;
  }

  void Fail(const std::string& message) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
  }

  void Refuse(const std::string& message) {
    if (error_.ok()) error_ = absl::UnimplementedError(absl::StrCat(file_, ": ", message));
  }

  JsonFields Fields(const json& object, const std::string& field) {
    return JsonFields(object, file_, absl::StrCat(field, "."), &error_);
  }

  static bool RequiredBool(JsonFields& fields, const char* name) {
    if (!fields.Has(name)) fields.Fail(name, "true or false");
    return fields.BoolOr(name, false);
  }

  // What `name` holds, if it is an array or object as asked for; null and an error if not.
  const json* Required(JsonFields& fields, const char* name, json::value_t type) {
    const json* value = fields.Find(name);
    if (value != nullptr && value->type() == type) return value;
    fields.Fail(name, type == json::value_t::array ? "an array" : "an object");
    return nullptr;
  }

  // A token id, or -1 and an error.
  int32_t TokenId(const json& value, const std::string& field) {
    if (value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{TokenizerSpec::kTokenIdLimit}) {
      return value.get<int32_t>();
    }
    Fail(absl::StrFormat("%s is %s, expected an id from 0 to %d", field, ShowJson(value),
                         TokenizerSpec::kTokenIdLimit - 1));
    return -1;
  }

  // Lists the parts of a section that is null, one step, or a (nested) Sequence of steps.
  void Flatten(const json* value, const std::string& field, const char* list_name, std::vector<Part>* parts) {
    if (value == nullptr || value->is_null()) return;
    if (!value->is_object()) return Fail(absl::StrCat(field, " is ", ShowJson(*value), ", expected an object or null"));
    JsonFields fields = Fields(*value, field);
    const std::string type = fields.String("type");
    if (!error_.ok()) return;
    if (type != "Sequence") {
      parts->push_back({value, field, type});
      return;
    }
    const json* list = Required(fields, list_name, json::value_t::array);
    if (list == nullptr) return;
    for (size_t i = 0; i < list->size(); ++i) {
      Flatten(&(*list)[i], absl::StrCat(field, ".", list_name, "[", i, "]"), list_name, parts);
    }
  }

  std::vector<Part> Parts(const char* section, const char* list_name) {
    std::vector<Part> parts;
    const auto found = root_.find(section);
    Flatten(found == root_.end() ? nullptr : &*found, section, list_name, &parts);
    return parts;
  }

  void CheckKind();
  void CheckModelOptions(JsonFields& model);
  void ReadVocab();
  void ReadUnknownToken();
  void ReadMerges();
  void ReadMerge(const json& merge, const std::string& field);
  void ReadAddedTokens();
  void NumberAddedToken(const AddedToken& token, const std::string& field);
  void ReadNormalizer();
  void ReadPreTokenizer();
  SplitSpec ReadSplit(const Part& part);
  void ReadPostProcessor();
  void ReadTemplate(const Part& part);
  void ReadTemplateToken(const json& piece, const json& special_tokens, const Part& part, std::vector<int32_t>* ids);
  void CheckDecoder();

  const json& root_;
  const std::string file_;
  const json* model_ = nullptr;
  absl::Status error_;
  TokenizerSpec spec_;
  absl::flat_hash_map<std::string, int32_t> id_of_token_;  // of the model as spelt in the file, then added ones
  absl::flat_hash_set<int32_t> ids_taken_;
  absl::flat_hash_set<std::string> added_contents_;
  int32_t next_added_id_ = 0;
};

// Names a tokenizer of another kind as what it is, before anything in it could look broken.
void SpecReader::CheckKind() {
  JsonFields root(root_, file_, "", &error_);
  model_ = Required(root, "model", json::value_t::object);
  if (model_ == nullptr) return;
  JsonFields model = Fields(*model_, "model");
  const std::string type = model.StringOr("type", model.Has("merges") ? "BPE" : "");
  if (type.empty()) return model.Fail("type", "\"BPE\"");
  if (type != "BPE") {
    return Refuse(
        absl::StrCat("model.type is ", Quoted(type), type == "Unigram" ? " (SentencePiece)" : "", kOnlyByteLevel));
  }
  if (model.BoolOr("byte_fallback", false)) {
    return Refuse(
        absl::StrCat("model.byte_fallback is true: a byte-fallback BPE (SentencePiece style)", kOnlyByteLevel));
  }
  CheckModelOptions(model);
  for (const Part& part : Parts("normalizer", "normalizers")) {
    if (part.type != "Prepend" && part.type != "Replace") continue;
    return Refuse(
        absl::StrCat(part.field, ".type is ", Quoted(part.type), ": a SentencePiece-style BPE", kOnlyByteLevel));
  }
  bool has_byte_level = false;
  for (const Part& part : Parts("pre_tokenizer", "pretokenizers")) {
    if (part.type == "Metaspace") {
      return Refuse(absl::StrCat(part.field, ".type is \"Metaspace\": a SentencePiece-style BPE", kOnlyByteLevel));
    }
    has_byte_level |= part.type == "ByteLevel";
  }
  if (!has_byte_level) Refuse(absl::StrCat("pre_tokenizer has no ByteLevel: a BPE over characters", kOnlyByteLevel));
}

void SpecReader::CheckModelOptions(JsonFields& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string value = model.StringOr(name, "");
    if (!value.empty())
      Refuse(absl::StrCat("model.", name, " is ", Quoted(value), ": not byte-level BPE", kOnlyByteLevel));
  }
  if (model.NumberOr("dropout", 0, 1, 0) > 0) Refuse("model.dropout is not 0: encodings would be random");
  spec_.ignore_merges = model.BoolOr("ignore_merges", false);
}

void SpecReader::ReadVocab() {
  JsonFields model = Fields(*model_, "model");
  const json* vocab = Required(model, "vocab", json::value_t::object);
  if (vocab == nullptr) return;
  for (const auto& [key, value] : vocab->items()) {
    const int32_t id = TokenId(value, absl::StrCat("model.vocab[", Quoted(key), "]"));
    if (!error_.ok()) return;
    if (!ids_taken_.insert(id).second) {
      return Fail(absl::StrCat("model.vocab[", Quoted(key), "] is ", id, ", the id of another token too"));
    }
    spec_.vocab.push_back({key, id});
    id_of_token_.emplace(key, id);
  }
}

// A model without some bytes may name a token for them that it lacks, too: then Hugging Face's library fails at the
// first text that has such a byte, so that such a tokenizer is refused.
void SpecReader::ReadUnknownToken() {
  JsonFields model = Fields(*model_, "model");
  spec_.fuse_unknown = model.BoolOr("fuse_unk", false);
  if (!model.Has("unk_token")) return;
  const std::string content = model.String("unk_token");
  spec_.unknown_id = FindToken(content);
  if (spec_.unknown_id.has_value()) return;
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (!in_utf8 || FindToken(ByteLevelCharacter(static_cast<uint8_t>(byte))).has_value()) continue;
    return Refuse(absl::StrFormat("model.unk_token is %s, which is not in model.vocab, nor is a token for byte 0x%02X",
                                  Quoted(content), byte));
  }
}

void SpecReader::ReadMerges() {
  JsonFields model = Fields(*model_, "model");
  const json* merges = Required(model, "merges", json::value_t::array);
  if (merges == nullptr) return;
  for (size_t i = 0; i < merges->size() && error_.ok(); ++i) {
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
    return Fail(absl::StrCat(field, " is ", ShowJson(merge), ", expected two tokens"));
  }
  int32_t ids[3];
  const std::string tokens[3] = {left, right, left + right};
  for (int i = 0; i < 3; ++i) {
    const std::optional<int32_t> id = FindToken(tokens[i]);
    if (!id.has_value()) {
      return Fail(absl::StrCat(field, " is ", ShowJson(merge), ": ", Quoted(tokens[i]), " is not in model.vocab"));
    }
    ids[i] = *id;
  }
  spec_.merges.push_back({ids[0], ids[1], ids[2]});
}

void SpecReader::ReadAddedTokens() {
  JsonFields root(root_, file_, "", &error_);
  if (!root.Has("added_tokens")) return;
  const json* list = Required(root, "added_tokens", json::value_t::array);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    const json& value = (*list)[i];
    const std::string field = absl::StrCat("added_tokens[", i, "]");
    if (!value.is_object()) return Fail(absl::StrCat(field, " is ", ShowJson(value), ", expected an object"));
    JsonFields fields = Fields(value, field);
    AddedToken token;
    token.id = static_cast<int32_t>(fields.Integer("id", 0, TokenizerSpec::kTokenIdLimit - 1));
    token.content = fields.String("content");
    if (token.content.empty()) fields.Fail("content", "a string that is not empty");
    token.single_word = RequiredBool(fields, "single_word");
    token.lstrip = RequiredBool(fields, "lstrip");
    token.rstrip = RequiredBool(fields, "rstrip");
    token.normalized = RequiredBool(fields, "normalized");
    token.special = RequiredBool(fields, "special");
    if (!error_.ok()) return;
    NumberAddedToken(token, field);
    if (!error_.ok()) return;
    spec_.added_tokens.push_back(std::move(token));
  }
}

// Hugging Face's library numbers added tokens itself: as in the vocabulary, or on from its end. A file that says
// otherwise would get other ids here than there, so it is refused.
void SpecReader::NumberAddedToken(const AddedToken& token, const std::string& field) {
  if (!added_contents_.insert(token.content).second) {
    return Fail(absl::StrCat(field, ".content is ", Quoted(token.content), ", which was added before"));
  }
  const std::optional<int32_t> in_vocab = FindToken(token.content);
  next_added_id_ = std::max(next_added_id_, static_cast<int32_t>(spec_.vocab.size()));
  const int32_t expected = in_vocab.value_or(next_added_id_);
  if (token.id != expected) {
    return Fail(absl::StrCat(field, ".id is ", token.id, ", expected ", expected, " for ", Quoted(token.content),
                             in_vocab.has_value() ? ", as in model.vocab" : ", the next free id"));
  }
  if (!in_vocab.has_value() && !ids_taken_.insert(token.id).second) {
    return Fail(absl::StrCat(field, ".id is ", token.id, ", the id of another token too"));
  }
  next_added_id_ = std::max(next_added_id_, token.id + 1);
  id_of_token_.emplace(token.content, token.id);
}

void SpecReader::ReadNormalizer() {
  for (const Part& part : Parts("normalizer", "normalizers")) {
    if (part.type != "NFC")
      return Refuse(absl::StrCat(part.field, ".type is ", Quoted(part.type), ", not built; NFC is"));
    spec_.nfc = true;
  }
}

void SpecReader::ReadPreTokenizer() {
  const std::vector<Part> parts = Parts("pre_tokenizer", "pretokenizers");
  PreTokenizerSpec& out = spec_.pre_tokenizer;
  for (size_t i = 0; i < parts.size() && error_.ok(); ++i) {
    const Part& part = parts[i];
    JsonFields fields = Fields(*part.value, part.field);
    if (part.type == "ByteLevel") {
      if (i + 1 < parts.size()) return Refuse(absl::StrCat(part.field, ": a ByteLevel that is not last is not built"));
      out.add_prefix_space = RequiredBool(fields, "add_prefix_space");
      out.byte_level_regex = fields.BoolOr("use_regex", true);
    } else if (part.type == "Split") {
      out.splits.push_back(ReadSplit(part));
    } else if (part.type == "Digits") {
      const bool individual = RequiredBool(fields, "individual_digits");
      out.splits.push_back({.pattern = "\\p{N}",
                            .behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                            .field = part.field});
    } else {
      Refuse(absl::StrCat(part.field, ".type is ", Quoted(part.type), ", not built; Split, Digits and ByteLevel are"));
    }
  }
}

SplitSpec SpecReader::ReadSplit(const Part& part) {
  JsonFields fields = Fields(*part.value, part.field);
  SplitSpec split;
  split.field = absl::StrCat(part.field, ".pattern");
  const json* pattern = Required(fields, "pattern", json::value_t::object);
  if (pattern != nullptr) {
    JsonFields pattern_fields = Fields(*pattern, split.field);
    split.is_literal = pattern_fields.Has("String");
    split.pattern = pattern_fields.String(split.is_literal ? "String" : "Regex");
  }
  split.invert = RequiredBool(fields, "invert");
  const std::string behavior = fields.String("behavior");
  const std::pair<const char*, SplitBehavior> names[] = {{"Isolated", SplitBehavior::kIsolated},
                                                         {"Removed", SplitBehavior::kRemoved},
                                                         {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                                         {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                                         {"Contiguous", SplitBehavior::kContiguous}};
  bool found = false;
  for (const auto& [name, value] : names) {
    if (behavior != name) continue;
    split.behavior = value;
    found = true;
  }
  if (!found) fields.Fail("behavior", "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  return split;
}

void SpecReader::ReadPostProcessor() {
  bool has_template = false;
  for (const Part& part : Parts("post_processor", "processors")) {
    if (part.type == "ByteLevel") continue;  // trims offsets, which nobody asks for here
    if (part.type == "TemplateProcessing" && has_template) {
      Refuse(absl::StrCat(part.field, ": a second TemplateProcessing is not built"));
    } else if (part.type == "TemplateProcessing") {
      has_template = true;
      ReadTemplate(part);
    } else {
      Refuse(absl::StrCat(part.field, ".type is ", Quoted(part.type),
                          ", not built; TemplateProcessing and ByteLevel are"));
    }
    if (!error_.ok()) return;
  }
}

// The template of a single text: special tokens around one "A".
void SpecReader::ReadTemplate(const Part& part) {
  JsonFields fields = Fields(*part.value, part.field);
  const json* single = Required(fields, "single", json::value_t::array);
  const json* special_tokens = Required(fields, "special_tokens", json::value_t::object);
  if (single == nullptr || special_tokens == nullptr) return;
  bool has_text = false;
  for (const json& piece : *single) {
    const bool is_text = piece.is_object() && piece.contains("Sequence");
    if (is_text && has_text) return Fail(absl::StrCat(part.field, ".single has more than one Sequence"));
    if (is_text) {
      has_text = true;
    } else {
      ReadTemplateToken(piece, *special_tokens, part, has_text ? &spec_.suffix_ids : &spec_.prefix_ids);
    }
    if (!error_.ok()) return;
  }
  if (!has_text) Fail(absl::StrCat(part.field, ".single has no Sequence"));
}

void SpecReader::ReadTemplateToken(const json& piece, const json& special_tokens, const Part& part,
                                   std::vector<int32_t>* ids) {
  const std::string field = absl::StrCat(part.field, ".single");
  if (!piece.is_object() || !piece.contains("SpecialToken") || !piece["SpecialToken"].is_object()) {
    return Fail(absl::StrCat(field, " has ", ShowJson(piece), ", expected a SpecialToken or a Sequence"));
  }
  const std::string name = Fields(piece["SpecialToken"], absl::StrCat(field, ".SpecialToken")).String("id");
  if (!error_.ok()) return;
  const auto found = special_tokens.find(name);
  if (found == special_tokens.end() || !found->is_object() || !found->contains("ids") || !(*found)["ids"].is_array()) {
    return Fail(absl::StrCat(part.field, ".special_tokens[", Quoted(name), "] has no array ids"));
  }
  for (const json& value : (*found)["ids"]) {
    const std::string id_field = absl::StrCat(part.field, ".special_tokens[", Quoted(name), "].ids");
    const int32_t id = TokenId(value, id_field);
    if (!error_.ok()) return;
    if (!ids_taken_.contains(id)) return Fail(absl::StrCat(id_field, " has ", id, ", the id of no token"));
    ids->push_back(id);
  }
}

void SpecReader::CheckDecoder() {
  const std::vector<Part> parts = Parts("decoder", "decoders");
  if (error_.ok() && parts.empty()) return Refuse("decoder is null, not built; ByteLevel is");
  for (const Part& part : parts) {
    if (part.type == "ByteLevel" && parts.size() == 1) continue;
    return Refuse(absl::StrCat(part.field, ".type is ", Quoted(part.type), ", not built; one ByteLevel is"));
  }
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text, const std::string& file) {
  const absl::StatusOr<json> root = ParseJsonObject(text, file);
  if (!root.ok()) return root.status();
  return SpecReader(*root, file).Read();
}

}  // namespace fastdecode
