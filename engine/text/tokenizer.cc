#include "engine/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
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

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerSpec& spec, const std::vector<AddedToken>& searched, Normalizer normalizer_in,
       PreTokenizer pre_tokenizer_in, Decoder decoder_in)
      : decoder(std::move(decoder_in)),
        table(spec, searched, decoder),
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
        warning(spec.warning),
        text_bytes_max(TextBytesMax(normalizer)) {}

  // Appends the tokens of text without verbatim added tokens.
  void EncodeStretch(std::string_view text, bool special, PreTokenizer::Place place, std::vector<int32_t>* ids) const {
    std::string normalized;
    if (!normalizer.empty()) text = normalized = normalizer.Run(text, place.continues);
    std::vector<AddedTokenSpan> spans;
    normalized_tokens.Scan(text, special, &spans);
    PreTokenizedText pieces;
    Bpe::Scratch scratch;
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids->push_back(span.id);
      } else {
        pre_tokenizer.Run(span.text, place, &pieces);
        for (const PreTokenizedText::Piece& piece : pieces.pieces()) bpe.Encode(piece.text, &scratch, ids);
      }
      place = {.first = false, .continues = false};
    }
  }

  const Decoder decoder;
  const TokenTable table;
  const AddedTokens verbatim_tokens;
  const AddedTokens normalized_tokens;
  const Normalizer normalizer;
  const PreTokenizer pre_tokenizer;
  const Bpe bpe;
  const std::vector<int32_t> prefix_ids;
  const std::vector<int32_t> suffix_ids;
  const std::optional<int32_t> bos_id;
  const std::optional<int32_t> eos_id;
  const std::string file;
  const std::string warning;
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

absl::Status Tokenizer::CheckText(const char* field, std::string_view text) const {
  if (text.size() <= impl_->text_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d bytes of text are more than %d", field, text.size(), impl_->text_bytes_max));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  const Part part = {text, /*special=*/true, {}};
  return EncodeParts({&part, 1}, add_special_tokens);
}

std::vector<int32_t> Tokenizer::EncodeParts(std::span<const Part> parts, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = impl_->prefix_ids;
  std::vector<AddedTokenSpan> spans;
  PreTokenizer::Place place;  // of what comes next
  for (const Part& part : parts) {
    if (!part.ids.empty()) place = {.first = false, .continues = false};
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    FD_CHECK(part.text.size() <= impl_->text_bytes_max, "the text is longer than can be encoded");
    const std::string valid = ReplaceInvalidUtf8(part.text);
    impl_->verbatim_tokens.Scan(valid, part.special, &spans);
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        impl_->EncodeStretch(span.text, part.special, place, &ids);
      }
      place = {.first = false, .continues = span.id < 0};
    }
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
const std::string& Tokenizer::warning() const { return impl_->warning; }

}  // namespace fastdecode
