#include "engine/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/foreign_ranges.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/stream_detokenizer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// Every token's text, as the decoder takes it, one after the other.
class TokenTable {
 public:
  // `searched`: the added tokens, in the form in which text has them.
  TokenTable(const TokenizerSpec& spec, const std::vector<AddedToken>& searched, const Decoder& decoder) {
    int32_t size = 0;
    for (const VocabEntry& entry : spec.vocab) size = std::max(size, entry.id + 1);
    for (const AddedToken& token : spec.added_tokens) size = std::max(size, token.id + 1);
    std::vector<const std::string*> keys(size);
    for (const VocabEntry& entry : spec.vocab) keys[entry.id] = &entry.key;
    for (const AddedToken& token : searched) keys[token.id] = &token.content;
    // Hugging Face's library tells a special token by its text alone, as it is before it is normalized.
    absl::flat_hash_set<std::string> special;
    for (const AddedToken& token : spec.added_tokens) {
      if (token.special) special.insert(token.content);
    }
    special_.resize(size);
    known_.resize(size);
    ends_.reserve(size);
    for (int32_t id = 0; id < size; ++id) {
      if (keys[id] != nullptr) {
        known_[id] = true;
        special_[id] = special.contains(*keys[id]);
        text_ += decoder.Prepare(*keys[id]);
      }
      ends_.push_back(text_.size());
    }
  }

  int32_t size() const { return static_cast<int32_t>(ends_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size() && known_[id]; }
  bool IsSpecial(int32_t id) const { return Has(id) && special_[id]; }
  std::string_view Prepared(int32_t id) const {
    const size_t begin = id == 0 ? 0 : ends_[id - 1];
    return std::string_view(text_).substr(begin, ends_[id] - begin);
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;  // by id, into text_
  std::vector<bool> known_;
  std::vector<bool> special_;
};

// ICU and BPE count in int32. Three bytes of U+FFFD stand for one that is not UTF-8, the normalizer may lengthen text,
// and a pre-tokenizer's prefix, its replacement of spaces and the spelling of bytes make a piece 16 times as long at
// most.
size_t TextBytesMax(const Normalizer& normalizer) {
  constexpr size_t kCounted = (size_t{1} << 31) - 1;
  return (kCounted / 16 - normalizer.added_bytes()) / (3 * normalizer.growth());
}

std::vector<AddedToken> WithNormalized(std::vector<AddedToken> tokens, bool normalized) {
  std::erase_if(tokens, [&](const AddedToken& token) { return token.normalized != normalized; });
  return tokens;
}

absl::flat_hash_set<int32_t> SpecialIds(const std::vector<AddedToken>& tokens) {
  absl::flat_hash_set<int32_t> ids;
  for (const AddedToken& token : tokens) {
    if (token.special) ids.insert(token.id);
  }
  return ids;
}

// Valid UTF-8, and which of its characters are foreign.
struct MarkedText {
  std::string text;
  ForeignRanges foreign;
  bool joined = false;  // it comes from parts that join
};

// The texts of these parts, one after the other. A character that is spread over parts is foreign if one of them is.
MarkedText JoinTexts(std::span<const Tokenizer::Part> parts, size_t bytes_max) {
  MarkedText joined;
  size_t bytes = 0;
  for (const Tokenizer::Part& part : parts) bytes += part.text.size();
  FD_CHECK(bytes <= bytes_max, "the text is longer than can be encoded");
  joined.text.reserve(bytes);
  LossyUtf8Decoder decoder;
  bool foreign_begun = false;  // a foreign part ends in the middle of a character
  for (const Tokenizer::Part& part : parts) {
    joined.joined |= part.joins;
    const size_t begin = joined.text.size();
    decoder.Append(part.text, &joined.text);
    const size_t end = joined.text.size();
    if (begin < end) {
      const size_t first = foreign_begun ? NextUtf8(std::string_view(joined.text).substr(begin)).bytes : 0;
      joined.foreign.Add(begin, part.special ? begin + first : end);
      foreign_begun = false;
    }
    foreign_begun = decoder.holds() && (foreign_begun || (!part.special && !part.text.empty()));
  }
  const size_t begin = joined.text.size();
  decoder.Finish(&joined.text);
  if (foreign_begun) joined.foreign.Add(begin, joined.text.size());
  return joined;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerSpec& spec, const std::vector<AddedToken>& searched, Normalizer normalizer_in,
       PreTokenizer pre_tokenizer_in, Decoder decoder_in)
      : decoder(std::move(decoder_in)),
        table(spec, searched, decoder),
        added_tokens(spec.added_tokens),
        restricted(SpecialIds(spec.added_tokens)),
        verbatim_tokens(WithNormalized(searched, false)),
        normalized_tokens(WithNormalized(searched, true)),
        normalizer(std::move(normalizer_in)),
        pre_tokenizer(std::move(pre_tokenizer_in)),
        bpe(spec),
        prefix_ids(spec.prefix_ids),
        suffix_ids(spec.suffix_ids),
        bos_id(spec.bos_id),
        eos_id(spec.eos_id),
        file(spec.file),
        named_tokens(spec.named_tokens),
        model_max_length(spec.model_max_length),
        warnings(spec.warnings),
        text_bytes_max(TextBytesMax(normalizer)) {
    ReadSpellings(spec);
  }

  void ReadSpellings(const TokenizerSpec& spec) {
    absl::flat_hash_set<int32_t> added;
    for (const AddedToken& token : spec.added_tokens) added.insert(token.id);
    if (spec.unknown_id.has_value()) added.erase(*spec.unknown_id);
    Bpe::Scratch scratch;
    const bool byte_level = spec.IsByteLevel();
    for (const VocabEntry& entry : spec.vocab) {
      if (!added.contains(entry.id)) continue;
      const std::string text = byte_level ? ByteLevelBytes(entry.key).value_or("") : entry.key;
      std::vector<int32_t> spelling;
      for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
        const std::string_view rest = std::string_view(text).substr(at);
        bytes = byte_level ? 1 : NextUtf8(rest).bytes;
        bpe.Encode(rest.substr(0, bytes), &scratch, &spelling);
      }
      if (spelling.size() > 1) spellings.emplace(entry.id, std::move(spelling));
    }
  }

  // Replaces restricted tokens from (*ids)[begin] on.
  void SpellRestricted(size_t begin, std::vector<int32_t>* ids) const {
    if (spellings.empty()) return;
    const auto is_spelt = [&](int32_t id) { return restricted.contains(id) && spellings.contains(id); };
    if (std::none_of(ids->begin() + static_cast<ptrdiff_t>(begin), ids->end(), is_spelt)) return;
    const std::vector<int32_t> merged(ids->begin() + static_cast<ptrdiff_t>(begin), ids->end());
    ids->resize(begin);
    for (const int32_t id : merged) {
      if (is_spelt(id)) {
        const std::vector<int32_t>& spelling = spellings.at(id);
        ids->insert(ids->end(), spelling.begin(), spelling.end());
      } else {
        ids->push_back(id);
      }
    }
  }

  bool HasRestricted(const MarkedText& normalized) const {
    std::vector<AddedTokenSpan> spans;
    normalized_tokens.Scan(normalized.text, normalized.foreign, /*straddle=*/true, &spans);
    return std::any_of(spans.begin(), spans.end(),
                       [&](const AddedTokenSpan& span) { return restricted.contains(span.id); });
  }

  // The normalized text. Where its parts, normalized one by one, make the same text, they say what is foreign in it.
  // Else all of it is, unless own parts have restricted tokens, which foreign text must not hide: then the parts stay
  // as they are one by one.
  MarkedText Normalize(std::string_view text, const ForeignRanges& foreign, bool continues) const {
    MarkedText whole;
    whole.text = normalizer.Run(text, continues);
    if (foreign.empty()) return whole;
    if (!foreign.Covers(0, text.size())) {
      const size_t bytes_max = text.size() * normalizer.growth() + normalizer.added_bytes();
      MarkedText joined;
      for (const ForeignRanges::Range& range : foreign.Partition(text.size())) {
        const size_t begin = joined.text.size();
        joined.text += normalizer.Run(text.substr(range.begin, range.end - range.begin), continues || range.begin > 0);
        if (range.foreign) joined.foreign.Add(begin, joined.text.size());
        if (joined.text.size() > bytes_max) break;
      }
      if (joined.text == whole.text || (joined.text.size() <= bytes_max && HasRestricted(joined))) return joined;
    }
    whole.foreign.Add(0, whole.text.size());
    return whole;
  }

  // Appends the tokens of text[begin, end), which has no verbatim added tokens.
  void EncodeStretch(const MarkedText& given, size_t begin, size_t end, PreTokenizer::Place place,
                     std::vector<int32_t>* ids) const {
    std::string_view text = std::string_view(given.text).substr(begin, end - begin);
    const ForeignRanges foreign = given.foreign.Within(begin, end);
    MarkedText normalized;
    if (!normalizer.empty()) {
      normalized = Normalize(text, foreign, place.continues);
      text = normalized.text;
    }
    const ForeignRanges& marks = normalizer.empty() ? foreign : normalized.foreign;
    std::vector<AddedTokenSpan> spans;
    normalized_tokens.Scan(text, marks, /*straddle=*/true, &spans);
    PreTokenizedText pieces;
    Bpe::Scratch scratch;
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids->push_back(span.id);
      } else {
        const size_t known = ids->size();
        pre_tokenizer.Run(span.text, place, &pieces);
        for (const PreTokenizedText::Piece& piece : pieces.pieces()) bpe.Encode(piece.text, &scratch, ids);
        const size_t at = span.text.data() - text.data();
        if (given.joined && marks.Touches(at, at + span.text.size())) SpellRestricted(known, ids);
      }
      place = {.first = false, .continues = false};
    }
  }

  // Appends the tokens of one text, and moves *place behind it.
  void EncodeText(const MarkedText& given, PreTokenizer::Place* place, std::vector<int32_t>* ids) const {
    std::vector<AddedTokenSpan> spans;
    // A token with foreign characters must not hide one that only the normalized text will show.
    verbatim_tokens.Scan(given.text, given.foreign, /*straddle=*/!normalized_tokens.has_restricted(), &spans);
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids->push_back(span.id);
      } else {
        const size_t begin = span.text.data() - given.text.data();
        EncodeStretch(given, begin, begin + span.text.size(), *place, ids);
      }
      *place = {.first = false, .continues = span.id < 0};
    }
  }

  const Decoder decoder;
  const TokenTable table;
  const std::vector<AddedToken> added_tokens;  // as they are in the text as given
  absl::flat_hash_set<int32_t> restricted;     // the ids that foreign text may not make: special and guarded tokens
  absl::flat_hash_map<int32_t, std::vector<int32_t>> spellings;  // of added tokens that merges might make
  AddedTokens verbatim_tokens;
  AddedTokens normalized_tokens;
  const Normalizer normalizer;
  const PreTokenizer pre_tokenizer;
  const Bpe bpe;
  const std::vector<int32_t> prefix_ids;
  const std::vector<int32_t> suffix_ids;
  const std::optional<int32_t> bos_id;
  const std::optional<int32_t> eos_id;
  const std::string file;
  const std::vector<std::pair<std::string, std::string>> named_tokens;
  const int64_t model_max_length;
  const std::vector<std::string> warnings;
  const size_t text_bytes_max;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const absl::StatusOr<TokenizerFiles> files = ReadTokenizerFiles(model_dir);
  if (!files.ok()) return files.status();
  return Parse(*files);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(const TokenizerFiles& files) {
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerSpec(files);
  if (!spec.ok()) return spec.status();
  const auto in_file = [&](const absl::Status& error) {
    return absl::Status(error.code(), absl::StrCat(spec->file, ": ", error.message()));
  };
  absl::StatusOr<Normalizer> normalizer = Normalizer::Create(spec->normalizer);
  if (!normalizer.ok()) return in_file(normalizer.status());
  std::vector<AddedToken> searched = spec->added_tokens;  // and decoded to
  for (AddedToken& token : searched) {
    if (!token.normalized) continue;
    std::string normalized = normalizer->Run(token.content, /*continues=*/false);
    if (normalized.empty()) {
      return in_file(absl::UnimplementedError(absl::StrCat("added_tokens: the normalizer leaves nothing of ",
                                                           ShowText(token.content), ", token ", token.id)));
    }
    token.content = std::move(normalized);
  }
  const bool byte_level = !spec->normalizer.empty() && spec->normalizer.back().kind == NormalizerStep::Kind::kByteLevel;
  absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec->pre_tokenizer, byte_level);
  if (!pre_tokenizer.ok()) return in_file(pre_tokenizer.status());
  absl::StatusOr<Decoder> decoder = Decoder::Create(spec->decoder, spec->spaces_between_tokens);
  if (!decoder.ok()) return in_file(decoder.status());
  return std::unique_ptr<Tokenizer>(new Tokenizer(
      std::make_unique<Impl>(*spec, searched, *std::move(normalizer), *std::move(pre_tokenizer), *std::move(decoder))));
}

void Tokenizer::GuardTokensIn(std::string_view text) {
  FD_CHECK(text.size() <= impl_->text_bytes_max, "the text is longer than can be normalized");
  const std::string valid = ReplaceInvalidUtf8(text);
  absl::flat_hash_set<int32_t> ids;
  AddedTokens(impl_->added_tokens).AddIdsIn(valid, &ids);
  impl_->normalized_tokens.AddIdsIn(impl_->normalizer.Run(valid, /*continues=*/false), &ids);
  for (const AddedToken& token : impl_->added_tokens) {
    if (IsOnlyWhiteSpace(token.content)) ids.erase(token.id);
  }
  impl_->restricted.insert(ids.begin(), ids.end());
  impl_->verbatim_tokens.Restrict(ids);
  impl_->normalized_tokens.Restrict(ids);
}

absl::Status Tokenizer::CheckTextBytes(const char* field, size_t bytes) const {
  if (bytes <= impl_->text_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d bytes of text are more than %d", field, bytes, impl_->text_bytes_max));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  const Part part = {text, /*special=*/true, {}};
  return EncodeParts({&part, 1}, add_special_tokens);
}

std::vector<int32_t> Tokenizer::EncodeParts(std::span<const Part> parts, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = impl_->prefix_ids;
  PreTokenizer::Place place;  // of what comes next
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const std::span<const int32_t> given = parts[begin].ids;
    if (!given.empty()) place = {.first = false, .continues = false};
    ids.insert(ids.end(), given.begin(), given.end());
    for (end = begin + 1; end < parts.size() && parts[end].joins && parts[end].ids.empty();) ++end;
    impl_->EncodeText(JoinTexts(parts.subspan(begin, end - begin), impl_->text_bytes_max), &place, &ids);
  }
  if (add_special_tokens) ids.insert(ids.end(), impl_->suffix_ids.begin(), impl_->suffix_ids.end());
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  StreamDetokenizer stream(this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) stream.Push(id, &text);
  stream.Finish(&text);
  return text;
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  return impl_->table.Has(id) ? impl_->decoder.TokenBytes(impl_->table.Prepared(id)) : std::string();
}

Decoder::State Tokenizer::StartDecoding(bool continues) const { return impl_->decoder.Start(continues); }

void Tokenizer::DecodeNext(int32_t id, Decoder::State* state, std::string* text) const {
  if (impl_->table.Has(id)) impl_->decoder.Push(impl_->table.Prepared(id), state, text);
}

void Tokenizer::EndDecoding(Decoder::State* state, std::string* text) const { impl_->decoder.Finish(state, text); }

bool Tokenizer::IsSpecial(int32_t id) const { return impl_->table.IsSpecial(id); }
int Tokenizer::vocab_size() const { return impl_->table.size(); }
std::optional<int> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int> Tokenizer::eos_id() const { return impl_->eos_id; }
const std::string& Tokenizer::file() const { return impl_->file; }
const std::vector<std::pair<std::string, std::string>>& Tokenizer::named_tokens() const { return impl_->named_tokens; }
int64_t Tokenizer::model_max_length() const { return impl_->model_max_length; }
const std::vector<std::string>& Tokenizer::warnings() const { return impl_->warnings; }

}  // namespace fastdecode
