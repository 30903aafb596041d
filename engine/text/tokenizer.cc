#include "engine/text/tokenizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/added_tokens.h"
#include "engine/text/byte_level_bpe.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// The composed form. REQUIRES: valid UTF-8.
std::string ComposeNfc(std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  FD_CHECK(U_SUCCESS(error), "ICU has its NFC data built in");
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, error);
  FD_CHECK(U_SUCCESS(error), "NFC of valid UTF-8 succeeds");
  return out;
}

// All tokens' bytes one after the other.
class TokenTable {
 public:
  explicit TokenTable(const TokenizerSpec& spec) {
    int32_t size = 0;
    for (const VocabEntry& entry : spec.vocab) size = std::max(size, entry.id + 1);
    for (const AddedToken& token : spec.added_tokens) size = std::max(size, token.id + 1);
    std::vector<const std::string*> keys(size);
    for (const VocabEntry& entry : spec.vocab) keys[entry.id] = &entry.key;
    special_.resize(size);
    for (const AddedToken& token : spec.added_tokens) {
      keys[token.id] = &token.content;
      special_[token.id] = token.special;
    }
    ends_.reserve(size);
    for (const std::string* key : keys) {
      // The ByteLevel decoder takes a token with a character outside of its alphabet as plain text.
      if (key != nullptr) bytes_ += ByteLevelBytes(*key).value_or(*key);
      ends_.push_back(bytes_.size());
    }
  }

  int32_t size() const { return static_cast<int32_t>(ends_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size(); }
  bool IsSpecial(int32_t id) const { return Has(id) && special_[id]; }
  std::string_view Bytes(int32_t id) const {
    if (!Has(id)) return {};
    const size_t begin = id == 0 ? 0 : ends_[id - 1];
    return std::string_view(bytes_).substr(begin, ends_[id] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;  // by id, into bytes_
  std::vector<bool> special_;
};

std::vector<AddedToken> WithNormalized(std::vector<AddedToken> tokens, bool normalized) {
  std::erase_if(tokens, [&](const AddedToken& token) { return token.normalized != normalized; });
  return tokens;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerSpec& spec, PreTokenizer pre_tokenizer_in)
      : table(spec),
        verbatim_tokens(WithNormalized(spec.added_tokens, false)),
        normalized_tokens(WithNormalized(spec.added_tokens, true)),
        nfc(spec.nfc),
        pre_tokenizer(std::move(pre_tokenizer_in)),
        bpe(spec),
        prefix_ids(spec.prefix_ids),
        suffix_ids(spec.suffix_ids),
        bos_id(spec.bos_id),
        eos_id(spec.eos_id),
        warning(spec.warning) {}

  // Appends the tokens of text without verbatim added tokens.
  void EncodeStretch(std::string_view text, bool special, std::vector<int32_t>* ids) const {
    std::string composed;
    if (nfc) text = composed = ComposeNfc(text);
    std::vector<AddedTokenSpan> spans;
    normalized_tokens.Scan(text, special, &spans);
    PreTokenizedText pieces;
    ByteLevelBpe::Scratch scratch;
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids->push_back(span.id);
        continue;
      }
      pre_tokenizer.Run(span.text, &pieces);
      for (const std::string_view piece : pieces.pieces()) bpe.Encode(piece, &scratch, ids);
    }
  }

  const TokenTable table;
  const AddedTokens verbatim_tokens;
  const AddedTokens normalized_tokens;
  const bool nfc;
  const PreTokenizer pre_tokenizer;
  const ByteLevelBpe bpe;
  const std::vector<int32_t> prefix_ids;
  const std::vector<int32_t> suffix_ids;
  const std::optional<int32_t> bos_id;
  const std::optional<int32_t> eos_id;
  const std::string warning;
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
  for (AddedToken& token : spec->added_tokens) {  // searched, and decoded to, in normalized form
    if (token.normalized && spec->nfc) token.content = ComposeNfc(token.content);
  }
  absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec->pre_tokenizer);
  if (!pre_tokenizer.ok()) {
    return absl::Status(pre_tokenizer.status().code(),
                        absl::StrCat(files.dir, "/tokenizer.json: ", pre_tokenizer.status().message()));
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(*spec, *std::move(pre_tokenizer))));
}

absl::Status Tokenizer::CheckText(const char* field, std::string_view text) {
  if (text.size() <= kTextBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d bytes of text are more than %d", field, text.size(), kTextBytesMax));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  const Part part = {text, /*special=*/true, {}};
  return EncodeParts({&part, 1}, add_special_tokens);
}

std::vector<int32_t> Tokenizer::EncodeParts(std::span<const Part> parts, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = impl_->prefix_ids;
  std::vector<AddedTokenSpan> spans;
  for (const Part& part : parts) {
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    FD_CHECK(part.text.size() <= kTextBytesMax, "the text is longer than can be encoded");
    const std::string valid = ReplaceInvalidUtf8(part.text);
    impl_->verbatim_tokens.Scan(valid, part.special, &spans);
    for (const AddedTokenSpan& span : spans) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        impl_->EncodeStretch(span.text, part.special, &ids);
      }
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), impl_->suffix_ids.begin(), impl_->suffix_ids.end());
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special_tokens || !IsSpecial(id)) bytes += Bytes(id);
  }
  return ReplaceInvalidUtf8(bytes);
}

std::string_view Tokenizer::Bytes(int32_t id) const { return impl_->table.Bytes(id); }
bool Tokenizer::IsSpecial(int32_t id) const { return impl_->table.IsSpecial(id); }
int Tokenizer::vocab_size() const { return impl_->table.size(); }
std::optional<int> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int> Tokenizer::eos_id() const { return impl_->eos_id; }
const std::string& Tokenizer::warning() const { return impl_->warning; }

}  // namespace fastdecode
