#include "engine/text/tokenizer_sections.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"

namespace fastdecode {

using nlohmann::json;

std::string QuoteJson(const std::string& text) { return ShowJson(json(text)); }

void TokenizerSections::Fail(const std::string& message) {
  if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
}

void TokenizerSections::Refuse(const std::string& message) {
  if (error_.ok()) error_ = absl::UnimplementedError(absl::StrCat(file_, ": ", message));
}

JsonFields TokenizerSections::Fields(const json& object, const std::string& field) {
  return JsonFields(object, file_, absl::StrCat(field, "."), &error_);
}

bool TokenizerSections::RequiredBool(JsonFields& fields, const char* name) {
  if (!fields.Has(name)) fields.Fail(name, "true or false");
  return fields.BoolOr(name, false);
}

const json* TokenizerSections::Required(JsonFields& fields, const char* name, json::value_t type) {
  const json* value = fields.Find(name);
  if (value != nullptr && value->type() == type) return value;
  fields.Fail(name, type == json::value_t::array ? "an array" : "an object");
  return nullptr;
}

int32_t TokenizerSections::TokenId(const json& value, const std::string& field) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{TokenizerSpec::kTokenIdLimit}) {
    return value.get<int32_t>();
  }
  Fail(absl::StrFormat("%s is %s, expected an id from 0 to %d", field, ShowJson(value),
                       TokenizerSpec::kTokenIdLimit - 1));
  return -1;
}

// Published tokenizers have at most ten.
constexpr size_t kStepsMax = 64;

void TokenizerSections::Flatten(const json* value, const std::string& field, const char* list_name,
                                std::vector<Part>* parts) {
  if (value == nullptr || value->is_null()) return;
  if (!value->is_object()) return Fail(absl::StrCat(field, " is ", ShowJson(*value), ", expected an object or null"));
  JsonFields fields = Fields(*value, field);
  const std::string type = fields.String("type");
  if (!error_.ok()) return;
  if (type != "Sequence") {
    if (parts->size() == kStepsMax) return Refuse(absl::StrCat(field, " is one step more than ", kStepsMax));
    parts->push_back({value, field, type});
    return;
  }
  const json* list = Required(fields, list_name, json::value_t::array);
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    Flatten(&(*list)[i], absl::StrCat(field, ".", list_name, "[", i, "]"), list_name, parts);
  }
}

std::vector<TokenizerSections::Part> TokenizerSections::Parts(const char* section, const char* list_name) {
  std::vector<Part> parts;
  const auto found = root_.find(section);
  Flatten(found == root_.end() ? nullptr : &*found, section, list_name, &parts);
  return parts;
}

namespace {

using Part = TokenizerSections::Part;

// {"String": ...} or {"Regex": ...}.
TextPattern ReadPattern(const Part& part, TokenizerSections* sections) {
  TextPattern pattern;
  pattern.field = absl::StrCat(part.field, ".pattern");
  JsonFields fields = sections->Fields(*part.value, part.field);
  const json* value = sections->Required(fields, "pattern", json::value_t::object);
  if (value == nullptr) return pattern;
  JsonFields pattern_fields = sections->Fields(*value, pattern.field);
  pattern.is_literal = pattern_fields.Has("String");
  pattern.pattern = pattern_fields.String(pattern.is_literal ? "String" : "Regex");
  return pattern;
}

// A field that holds one character.
std::string ReadCharacter(JsonFields& fields, const char* name) {
  const std::string text = fields.String(name);
  if (text.empty() || NextUtf8(text).bytes != text.size()) fields.Fail(name, "one character");
  return text;
}

SplitBehavior ReadBehavior(JsonFields& fields) {
  const std::string behavior = fields.String("behavior");
  const std::pair<const char*, SplitBehavior> names[] = {{"Isolated", SplitBehavior::kIsolated},
                                                         {"Removed", SplitBehavior::kRemoved},
                                                         {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                                         {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                                         {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, value] : names) {
    if (behavior == name) return value;
  }
  fields.Fail("behavior", "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  return SplitBehavior::kIsolated;
}

// Files of before 2024 have add_prefix_space alone.
PrependScheme ReadPrependScheme(JsonFields& fields) {
  const std::string scheme = fields.StringOr("prepend_scheme", "always");
  const bool prefix = fields.BoolOr("add_prefix_space", true);
  if (scheme == "never") return PrependScheme::kNever;
  if (!prefix && scheme == "always" && !fields.Has("prepend_scheme")) return PrependScheme::kNever;
  if (!prefix) fields.Fail("add_prefix_space", absl::StrCat("true, for prepend_scheme is ", QuoteJson(scheme)));
  if (scheme == "first") return PrependScheme::kFirst;
  if (scheme != "always") fields.Fail("prepend_scheme", "always, first or never");
  return PrependScheme::kAlways;
}

PreTokenizerStep SplitBy(std::string regex, SplitBehavior behavior, const Part& part, bool invert = false) {
  PreTokenizerStep step = {.kind = PreTokenizerStep::Kind::kSplit};
  step.pattern = {std::move(regex), /*is_literal=*/false, part.field};
  step.behavior = behavior;
  step.invert = invert;
  return step;
}

// What Rust's regular expressions, with which Hugging Face's Whitespace cuts, call a word character.
constexpr char kWordCharacters[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
constexpr char kPunctuation[] = "[\\p{P}$+<=>^`|~]";

bool ReadPreTokenizerStep(const Part& part, TokenizerSections* sections, std::vector<PreTokenizerStep>* steps) {
  JsonFields fields = sections->Fields(*part.value, part.field);
  const std::string& type = part.type;
  if (type == "ByteLevel") {
    PreTokenizerStep step = {.kind = PreTokenizerStep::Kind::kByteLevel};
    step.add_prefix_space = TokenizerSections::RequiredBool(fields, "add_prefix_space");
    step.use_regex = fields.BoolOr("use_regex", true);
    steps->push_back(std::move(step));
  } else if (type == "Split") {
    PreTokenizerStep step = {.kind = PreTokenizerStep::Kind::kSplit};
    step.pattern = ReadPattern(part, sections);
    step.invert = TokenizerSections::RequiredBool(fields, "invert");
    step.behavior = ReadBehavior(fields);
    steps->push_back(std::move(step));
  } else if (type == "Digits") {
    const bool individual = TokenizerSections::RequiredBool(fields, "individual_digits");
    steps->push_back(SplitBy("\\p{N}", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, part));
  } else if (type == "Punctuation") {
    const bool given = fields.Has("behavior");
    steps->push_back(SplitBy(kPunctuation, given ? ReadBehavior(fields) : SplitBehavior::kIsolated, part));
  } else if (type == "Whitespace") {
    steps->push_back(SplitBy(absl::StrCat("[", kWordCharacters, "]+|[^", kWordCharacters, "\\s]+"),
                             SplitBehavior::kRemoved, part, /*invert=*/true));
  } else if (type == "WhitespaceSplit") {
    steps->push_back(SplitBy("\\s", SplitBehavior::kRemoved, part));
  } else if (type == "BertPreTokenizer") {
    steps->push_back(SplitBy("\\s", SplitBehavior::kRemoved, part));
    steps->push_back(SplitBy(kPunctuation, SplitBehavior::kIsolated, part));
  } else if (type == "CharDelimiterSplit") {
    PreTokenizerStep step = SplitBy(ReadCharacter(fields, "delimiter"), SplitBehavior::kRemoved, part);
    step.pattern.is_literal = true;
    steps->push_back(std::move(step));
  } else if (type == "Metaspace") {
    PreTokenizerStep step = {.kind = PreTokenizerStep::Kind::kMetaspace};
    step.replacement = ReadCharacter(fields, "replacement");
    step.prepend_scheme = ReadPrependScheme(fields);
    step.split = fields.BoolOr("split", true);
    steps->push_back(std::move(step));
  } else {
    return false;
  }
  return true;
}

bool ReadNormalizerStep(const Part& part, TokenizerSections* sections, NormalizerStep* step) {
  using Kind = NormalizerStep::Kind;
  const std::pair<const char*, Kind> kinds[] = {{"NFC", Kind::kNfc},         {"NFD", Kind::kNfd},
                                                {"NFKC", Kind::kNfkc},       {"NFKD", Kind::kNfkd},
                                                {"Strip", Kind::kStrip},     {"StripAccents", Kind::kStripAccents},
                                                {"Prepend", Kind::kPrepend}, {"Lowercase", Kind::kLowercase},
                                                {"Replace", Kind::kReplace}, {"ByteLevel", Kind::kByteLevel}};
  bool found = false;
  for (const auto& [name, kind] : kinds) {
    if (part.type != name) continue;
    step->kind = kind;
    found = true;
  }
  if (!found) return false;
  JsonFields fields = sections->Fields(*part.value, part.field);
  if (step->kind == Kind::kStrip) {
    step->left = TokenizerSections::RequiredBool(fields, "strip_left");
    step->right = TokenizerSections::RequiredBool(fields, "strip_right");
  } else if (step->kind == Kind::kPrepend) {
    step->content = fields.String("prepend");
  } else if (step->kind == Kind::kReplace) {
    step->pattern = ReadPattern(part, sections);
    step->content = fields.String("content");
  }
  return true;
}

bool ReadDecoderStep(const Part& part, TokenizerSections* sections, DecoderStep* step) {
  using Kind = DecoderStep::Kind;
  JsonFields fields = sections->Fields(*part.value, part.field);
  step->field = part.field;
  if (part.type == "ByteLevel") {
    step->kind = Kind::kByteLevel;
  } else if (part.type == "Replace") {
    step->kind = Kind::kReplace;
    step->pattern = ReadPattern(part, sections);
    step->content = fields.String("content");
  } else if (part.type == "ByteFallback") {
    step->kind = Kind::kByteFallback;
  } else if (part.type == "Fuse") {
    step->kind = Kind::kFuse;
  } else if (part.type == "Strip") {
    constexpr int kCopiesMax = 1 << 16;
    step->kind = Kind::kStrip;
    step->content = ReadCharacter(fields, "content");
    step->start = static_cast<int>(fields.Integer("start", 0, kCopiesMax));
    step->stop = static_cast<int>(fields.Integer("stop", 0, kCopiesMax));
  } else if (part.type == "Metaspace") {
    step->kind = Kind::kMetaspace;
    step->content = ReadCharacter(fields, "replacement");
    step->prepend_scheme = ReadPrependScheme(fields);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void ReadNormalizer(TokenizerSections* sections, TokenizerSpec* spec) {
  for (const Part& part : sections->Parts("normalizer", "normalizers")) {
    NormalizerStep step = {};
    const bool known = ReadNormalizerStep(part, sections, &step);
    if (!known) {
      sections->Refuse(absl::StrCat(part.field, ".type is ", QuoteJson(part.type),
                                    ", not built; NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, "
                                    "Replace and ByteLevel are"));
    }
    if (!sections->ok()) return;
    spec->normalizer.push_back(std::move(step));
  }
}

void ReadPreTokenizer(TokenizerSections* sections, TokenizerSpec* spec) {
  bool byte_level = false;
  for (const NormalizerStep& step : spec->normalizer) byte_level |= step.kind == NormalizerStep::Kind::kByteLevel;
  for (const Part& part : sections->Parts("pre_tokenizer", "pretokenizers")) {
    const bool known = ReadPreTokenizerStep(part, sections, &spec->pre_tokenizer);
    if (!known) {
      sections->Refuse(absl::StrCat(part.field, ".type is ", QuoteJson(part.type),
                                    ", not built; ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                                    "BertPreTokenizer, CharDelimiterSplit and Metaspace are"));
    }
    if (byte_level && (part.type == "ByteLevel" || part.type == "Metaspace")) {
      sections->Refuse(absl::StrCat(part.field, ".type is ", QuoteJson(part.type), " after a ByteLevel: not built"));
    }
    if (!sections->ok()) return;
    byte_level |= part.type == "ByteLevel";
  }
}

void ReadDecoder(TokenizerSections* sections, TokenizerSpec* spec) {
  spec->spaces_between_tokens = !sections->Root().Has("decoder");
  for (const Part& part : sections->Parts("decoder", "decoders")) {
    DecoderStep step = {};
    const bool known = ReadDecoderStep(part, sections, &step);
    if (!known) {
      sections->Refuse(absl::StrCat(part.field, ".type is ", QuoteJson(part.type),
                                    ", not built; ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace are"));
    }
    if (!sections->ok()) return;
    spec->decoder.push_back(std::move(step));
  }
}

}  // namespace fastdecode
