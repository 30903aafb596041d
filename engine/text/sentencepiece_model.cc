#include "engine/text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/protobuf_reader.h"
#include "engine/text/token_splits.h"
#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // ▁, which stands for a space in pieces

// SentencePiece.Type
enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct ModelPiece {
  std::string_view text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

// The fields of a ModelProto that encoding or decoding depends on, with protobuf's defaults for those that are absent.
struct ModelProto {
  std::vector<ModelPiece> pieces;
  // trainer_spec
  int model_type = 1;
  bool treat_whitespace_as_suffix = false;
  bool byte_fallback = false;
  std::string_view bos_piece = "<s>";
  std::string_view eos_piece = "</s>";
  // normalizer_spec and denormalizer_spec
  size_t charsmap_bytes = 0;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  size_t denormalizer_charsmap_bytes = 0;
};

// Reads the messages. The first error is kept; what runs after it does nothing of use.
class ModelReader {
 public:
  explicit ModelReader(const std::string& file) : file_(file) {}

  absl::StatusOr<ModelProto> Read(std::string_view bytes) {
    WireReader reader(bytes);
    WireField field;
    while (error_.ok() && reader.Next(&field)) {
      if (field.number == 1) ReadPiece(field);
      if (field.number == 2) ReadTrainerSpec(field);
      if (field.number == 3) ReadNormalizerSpec(field);
      if (field.number == 5) ReadDenormalizerSpec(field);
    }
    CheckEnd(reader, "the file is no SentencePiece model");
    if (!error_.ok()) return error_;
    return std::move(model_);
  }

 private:
  void Fail(const std::string& message) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
  }

  void CheckEnd(const WireReader& reader, const std::string& name) {
    if (!reader.error().empty()) Fail(absl::StrCat(name, ": ", reader.error()));
  }

  bool HasType(const WireField& field, WireType type, const std::string& name) {
    if (field.type == type) return true;
    Fail(absl::StrCat(name, " has wire type ", static_cast<int>(field.type), ", expected ", static_cast<int>(type)));
    return false;
  }

  void ReadBool(const WireField& field, const std::string& name, bool* out) {
    if (HasType(field, WireType::kVarint, name)) *out = field.value != 0;
  }

  std::optional<int> ReadEnum(const WireField& field, const std::string& name, int max) {
    if (!HasType(field, WireType::kVarint, name)) return std::nullopt;
    if (field.value >= 1 && field.value <= static_cast<uint64_t>(max)) return static_cast<int>(field.value);
    Fail(absl::StrCat(name, " is ", field.value, ", expected a number from 1 to ", max));
    return std::nullopt;
  }

  void ReadText(const WireField& field, const std::string& name, std::string_view* out) {
    if (!HasType(field, WireType::kBytes, name)) return;
    if (!IsValidUtf8(field.bytes)) {
      Fail(absl::StrCat(name, " is \"", ShowText(field.bytes), "\", which is no UTF-8"));
    }
    *out = field.bytes;
  }

  void ReadLength(const WireField& field, const std::string& name, size_t* out) {
    if (HasType(field, WireType::kBytes, name)) *out = field.bytes.size();
  }

  void ReadPiece(const WireField& message);
  void ReadTrainerSpec(const WireField& message);
  void ReadNormalizerSpec(const WireField& message);
  void ReadDenormalizerSpec(const WireField& message);

  const std::string& file_;
  absl::Status error_;
  ModelProto model_;
};

void ModelReader::ReadPiece(const WireField& message) {
  const std::string name = absl::StrCat("pieces[", model_.pieces.size(), "]");
  if (model_.pieces.size() >= size_t{TokenizerSpec::kTokenIdLimit}) {
    return Fail(absl::StrCat(name, " is one too many, expected at most ", TokenizerSpec::kTokenIdLimit, " pieces"));
  }
  if (!HasType(message, WireType::kBytes, name)) return;
  ModelPiece piece;
  WireReader reader(message.bytes);
  WireField field;
  while (error_.ok() && reader.Next(&field)) {
    if (field.number == 1) ReadText(field, absl::StrCat(name, ".piece"), &piece.text);
    if (field.number == 2 && HasType(field, WireType::kFixed32, absl::StrCat(name, ".score"))) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
      if (std::isnan(piece.score)) Fail(absl::StrCat(name, ".score is NaN, expected a number"));
    }
    if (field.number == 3) {
      piece.type =
          PieceType(ReadEnum(field, absl::StrCat(name, ".type"), static_cast<int>(PieceType::kByte)).value_or(1));
    }
  }
  CheckEnd(reader, name);
  if (piece.text.empty()) Fail(absl::StrCat(name, ".piece is empty, expected a text"));
  model_.pieces.push_back(piece);
}

void ModelReader::ReadTrainerSpec(const WireField& message) {
  if (!HasType(message, WireType::kBytes, "trainer_spec")) return;
  WireReader reader(message.bytes);
  WireField field;
  while (error_.ok() && reader.Next(&field)) {
    switch (field.number) {
      case 3:
        model_.model_type = ReadEnum(field, "trainer_spec.model_type", 4).value_or(1);
        break;
      case 24:
        ReadBool(field, "trainer_spec.treat_whitespace_as_suffix", &model_.treat_whitespace_as_suffix);
        break;
      case 35:
        ReadBool(field, "trainer_spec.byte_fallback", &model_.byte_fallback);
        break;
      case 46:
        ReadText(field, "trainer_spec.bos_piece", &model_.bos_piece);
        break;
      case 47:
        ReadText(field, "trainer_spec.eos_piece", &model_.eos_piece);
        break;
      default:
        break;  // how it was trained; unk_id, bos_id and eos_id, too: SentencePiece goes by the pieces
    }
  }
  CheckEnd(reader, "trainer_spec");
}

void ModelReader::ReadNormalizerSpec(const WireField& message) {
  if (!HasType(message, WireType::kBytes, "normalizer_spec")) return;
  WireReader reader(message.bytes);
  WireField field;
  while (error_.ok() && reader.Next(&field)) {
    switch (field.number) {
      case 2:
        ReadLength(field, "normalizer_spec.precompiled_charsmap", &model_.charsmap_bytes);
        break;
      case 3:
        ReadBool(field, "normalizer_spec.add_dummy_prefix", &model_.add_dummy_prefix);
        break;
      case 4:
        ReadBool(field, "normalizer_spec.remove_extra_whitespaces", &model_.remove_extra_whitespaces);
        break;
      case 5:
        ReadBool(field, "normalizer_spec.escape_whitespaces", &model_.escape_whitespaces);
        break;
      default:
        break;  // the table's name and its source
    }
  }
  CheckEnd(reader, "normalizer_spec");
}

void ModelReader::ReadDenormalizerSpec(const WireField& message) {
  if (!HasType(message, WireType::kBytes, "denormalizer_spec")) return;
  WireReader reader(message.bytes);
  WireField field;
  while (error_.ok() && reader.Next(&field)) {
    if (field.number != 2) continue;
    ReadLength(field, "denormalizer_spec.precompiled_charsmap", &model_.denormalizer_charsmap_bytes);
  }
  CheckEnd(reader, "denormalizer_spec");
}

// Makes a spec of a model. The first error is kept.
class SpecBuilder {
 public:
  SpecBuilder(const ModelProto& model, const std::string& file) : model_(model), file_(file) {}

  absl::StatusOr<TokenizerSpec> Build() {
    void (SpecBuilder::*const parts[])() = {&SpecBuilder::CheckKind,  &SpecBuilder::IndexPieces,
                                            &SpecBuilder::CheckBytes, &SpecBuilder::AddMerges,
                                            &SpecBuilder::AddTokens,  &SpecBuilder::AddPipeline};
    spec_.file = file_;
    for (const auto part : parts) {
      (this->*part)();
      if (!error_.ok()) return error_;
    }
    return std::move(spec_);
  }

 private:
  void Fail(const std::string& message) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
  }

  void Refuse(const std::string& message) {
    if (error_.ok()) error_ = absl::UnimplementedError(absl::StrCat(file_, ": ", message));
  }

  static std::string Name(size_t id) { return absl::StrCat("pieces[", id, "]"); }

  static std::string Quoted(std::string_view text) { return absl::StrCat("\"", ShowText(text), "\""); }

  std::optional<int32_t> FindControl(std::string_view text) const {
    const auto found = id_of_piece_.find(text);
    if (found == id_of_piece_.end() || model_.pieces[found->second].type != PieceType::kControl) return std::nullopt;
    return found->second;
  }

  void CheckKind();
  void IndexPieces();
  void CheckBytes();
  void AddMerges();
  void WarnOfLostMerges();
  void AddTokens();
  void AddReplace(const char* pattern, bool is_literal, const char* content);
  void AddMetaspace(const char* replacement, PrependScheme scheme);
  DecoderStep& AddDecoder(DecoderStep::Kind kind);
  void AddPipeline();

  const ModelProto& model_;
  const std::string& file_;
  absl::Status error_;
  TokenizerSpec spec_;
  absl::flat_hash_map<std::string_view, int32_t> id_of_piece_;
};

void SpecBuilder::CheckKind() {
  if (model_.pieces.empty()) return Fail("pieces is missing, expected those of a SentencePiece model");
  static constexpr const char* kTypes[] = {"UNIGRAM", "BPE", "WORD", "CHAR"};
  if (model_.model_type != 2) {
    return Refuse(absl::StrCat("trainer_spec.model_type is ", kTypes[model_.model_type - 1],
                               "; of SentencePiece's models, only BPE can be read"));
  }
  if (model_.charsmap_bytes > 0) {
    return Refuse(absl::StrCat("normalizer_spec.precompiled_charsmap has ", model_.charsmap_bytes,
                               " bytes: normalization by a table of characters is not built"));
  }
  if (model_.denormalizer_charsmap_bytes > 0) {
    return Refuse(absl::StrCat("denormalizer_spec.precompiled_charsmap has ", model_.denormalizer_charsmap_bytes,
                               " bytes: normalization by a table of characters is not built"));
  }
  if (model_.treat_whitespace_as_suffix) {
    return Refuse("trainer_spec.treat_whitespace_as_suffix is true: spaces at the ends of words are not built");
  }
  if (!model_.escape_whitespaces) {
    Refuse("normalizer_spec.escape_whitespaces is false: pieces with spaces as they are are not built");
  }
}

void SpecBuilder::IndexPieces() {
  for (size_t i = 0; i < model_.pieces.size(); ++i) {
    const ModelPiece& piece = model_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    const auto [found, inserted] = id_of_piece_.emplace(piece.text, id);
    if (!inserted) {
      return Fail(absl::StrCat(Name(i), ".piece is ", Quoted(piece.text), ", as is ", Name(found->second), ".piece"));
    }
    spec_.vocab.push_back({std::string(piece.text), id});
    if (piece.type != PieceType::kUnknown) continue;
    if (spec_.unknown_id.has_value()) {
      return Fail(absl::StrCat(Name(i), ".type is UNKNOWN, as is ", Name(*spec_.unknown_id), ".type"));
    }
    spec_.unknown_id = id;
  }
  if (!spec_.unknown_id.has_value()) Fail("pieces has none of type UNKNOWN, expected one");
}

// SentencePiece wants all bytes or none.
void SpecBuilder::CheckBytes() {
  absl::flat_hash_set<std::string_view> found;
  for (size_t i = 0; i < model_.pieces.size(); ++i) {
    const ModelPiece& piece = model_.pieces[i];
    if (piece.type != PieceType::kByte) continue;
    if (!model_.byte_fallback) {
      return Fail(absl::StrCat(Name(i), ".type is BYTE, but trainer_spec.byte_fallback is false"));
    }
    found.insert(piece.text);
  }
  for (int byte = 0; byte < 256 && model_.byte_fallback; ++byte) {
    const std::string name = absl::StrFormat("<0x%02X>", byte);
    if (found.erase(name) > 0) continue;
    return Fail(absl::StrCat("trainer_spec.byte_fallback is true, but pieces has no ", name, " of type BYTE"));
  }
  if (!found.empty()) {
    const std::string_view text = *std::min_element(found.begin(), found.end());
    return Fail(absl::StrCat(Name(id_of_piece_.at(text)), ".piece is ", Quoted(text),
                             ", expected a byte such as \"<0x0A>\", since its type is BYTE"));
  }
  spec_.byte_fallback = model_.byte_fallback;
  spec_.fuse_unknown = true;
}

void SpecBuilder::AddMerges() {
  std::vector<std::string_view> texts(model_.pieces.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const PieceType type = model_.pieces[i].type;
    if (type == PieceType::kNormal || type == PieceType::kUnused) texts[i] = model_.pieces[i].text;
  }
  std::optional<std::vector<BpeMerge>> merges = FindTokenSplits(texts, kTokenSplitsMax);
  if (!merges.has_value())
    return Fail(absl::StrCat("pieces has more than ", kTokenSplitsMax, " pairs that make a piece"));
  for (const BpeMerge& merge : *merges) {
    if (model_.pieces[merge.merged].type != PieceType::kUnused) continue;
    return Refuse(absl::StrCat(Name(merge.merged), ".type is UNUSED: a piece that is merged and taken apart again (",
                               Quoted(texts[merge.merged]), ") is not built"));
  }
  std::stable_sort(merges->begin(), merges->end(), [&](const BpeMerge& a, const BpeMerge& b) {
    return model_.pieces[a.merged].score > model_.pieces[b.merged].score;
  });
  spec_.merges = *std::move(merges);
  WarnOfLostMerges();
}

// SentencePiece merges texts, whether both are pieces or not; a merge of the spec takes two tokens. The difference
// shows only if a piece has a character that is none, which a vocabulary as it was trained does not have.
void SpecBuilder::WarnOfLostMerges() {
  for (size_t i = 0; i < model_.pieces.size(); ++i) {
    if (model_.pieces[i].type != PieceType::kNormal) continue;
    for (std::string_view rest = model_.pieces[i].text; !rest.empty();) {
      const std::string_view character = rest.substr(0, NextUtf8(rest).bytes);
      rest.remove_prefix(character.size());
      if (id_of_piece_.contains(character)) continue;
      spec_.warnings.push_back(
          absl::StrCat(file_, ": ", Name(i), ".piece has ", Quoted(character),
                       ", which is no piece itself: text with it may get other tokens than SentencePiece's"));
      return;
    }
  }
}

void SpecBuilder::AddTokens() {
  for (size_t i = 0; i < model_.pieces.size(); ++i) {
    const ModelPiece& piece = model_.pieces[i];
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (!special && piece.type != PieceType::kUserDefined) continue;
    AddedToken token{.id = static_cast<int32_t>(i), .content = std::string(piece.text), .special = special};
    if (!special && model_.remove_extra_whitespaces) {
      return Refuse(
          absl::StrCat(Name(i), ".type is USER_DEFINED (", Quoted(piece.text),
                       ") and normalizer_spec.remove_extra_whitespaces is true: both together are not built"));
    }
    // A user-defined piece of spaces is spelt with what stands for them, so it is found only after they are replaced.
    token.normalized = !special && piece.text.find(kSpaceSymbol) != std::string_view::npos;
    spec_.added_tokens.push_back(std::move(token));
  }
  spec_.bos_id = FindControl(model_.bos_piece);
  spec_.eos_id = FindControl(model_.eos_piece);
  if (spec_.bos_id.has_value()) spec_.prefix_ids.push_back(*spec_.bos_id);
}

void SpecBuilder::AddReplace(const char* pattern, bool is_literal, const char* content) {
  spec_.normalizer.push_back({.kind = NormalizerStep::Kind::kReplace,
                              .pattern = {pattern, is_literal, "normalizer_spec"},
                              .content = content});
}

void SpecBuilder::AddMetaspace(const char* replacement, PrependScheme scheme) {
  PreTokenizerStep& step = spec_.pre_tokenizer.emplace_back();
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  step.replacement = replacement;
  step.prepend_scheme = scheme;
  step.split = false;
}

DecoderStep& SpecBuilder::AddDecoder(DecoderStep::Kind kind) {
  DecoderStep& step = spec_.decoder.emplace_back();
  step.kind = kind;
  return step;
}

void SpecBuilder::AddPipeline() {
  if (model_.remove_extra_whitespaces) {
    // SentencePiece does the end last, when spaces are replaced already, so that ▁ of the text itself goes along.
    AddReplace("\\A +|[ \xE2\x96\x81]+\\z", false, "");
    AddReplace(" {2,}", false, " ");
  }
  AddReplace(" ", true, kSpaceSymbol);
  if (model_.add_dummy_prefix && model_.remove_extra_whitespaces) {
    // Hugging Face's library does not take text for the start of a prompt any more once spaces before it are left out.
    spec_.normalizer.push_back({.kind = NormalizerStep::Kind::kPrepend, .pattern = {}, .content = kSpaceSymbol});
  } else if (model_.add_dummy_prefix) {
    // A Metaspace prepends only to what does not begin with its replacement, but SentencePiece to every text. There are
    // no spaces any more, so one is prepended always, and the second step replaces it.
    AddMetaspace(" ", PrependScheme::kFirst);
    AddMetaspace(kSpaceSymbol, PrependScheme::kNever);
  }
  AddDecoder(DecoderStep::Kind::kReplace).pattern = {kSpaceSymbol, true, "normalizer_spec"};
  spec_.decoder.back().content = " ";
  if (model_.byte_fallback) AddDecoder(DecoderStep::Kind::kByteFallback);
  AddDecoder(DecoderStep::Kind::kFuse);
  if (model_.add_dummy_prefix || model_.remove_extra_whitespaces) {
    DecoderStep& strip = AddDecoder(DecoderStep::Kind::kStrip);
    strip.content = " ";
    strip.start = 1;
  }
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const std::string& file) {
  const absl::StatusOr<ModelProto> model = ModelReader(file).Read(bytes);
  if (!model.ok()) return model.status();
  return SpecBuilder(*model, file).Build();
}

}  // namespace fastdecode
