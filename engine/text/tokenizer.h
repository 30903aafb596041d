#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/decoder.h"
#include "engine/text/tokenizer_files.h"

namespace fastdecode {

// Text to token ids and back, as the model's folder says: BPE over bytes or over characters with the steps around it
// that Hugging Face's tokenizers library has, and its ids and texts.
//
// Special tokens that a text spells out become their ids, as there. Text from outside belongs into a Part with
// `special` off, in which they are text. The truncation and padding sections are not applied.
//
// Owns: vocabulary, merges, patterns. Thread: immutable after Load and GuardTokensIn, shared by any number.
class Tokenizer {
 public:
  // Reads the files of a model's folder (TokenizerFiles says which). Errors name file, field and value. NotFound: there
  // is no tokenizer. Unimplemented: a tokenizer of another kind (Unigram, WordPiece) or with a step that is not built:
  // its model can still run on token ids. InvalidArgument: a broken file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  // The same from the files' contents.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(const TokenizerFiles& files);

  ~Tokenizer();

  // Models mark the turns of a chat also with added tokens that their files do not call special. Those whose names
  // occur in `text`, the text that a chat template may write, are from then on text in parts with `special` off, as
  // special tokens are; nothing else changes. Names of white space alone are not meant. Call it before the tokenizer is
  // shared. REQUIRES: CheckTextBytes says nothing of the text's size.
  void GuardTokensIn(std::string_view text);

  // InvalidArgument, naming the field, if a text of so many bytes is too long for Encode: 44 MB, less where the
  // normalizer may lengthen text.
  absl::Status CheckTextBytes(const char* field, size_t bytes) const;

  // Bytes of `text` that are not UTF-8 count as U+FFFD, as after Python's decode("utf-8", errors="replace").
  // `add_special_tokens` puts the template's tokens (such as bos) around. REQUIRES: CheckTextBytes says nothing.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const;

  // A piece of a prompt: ids as they are, and then text.
  struct Part {
    std::string_view text;
    bool special = true;  // special tokens in the text become their ids; else they are text (`encode_special_tokens`)
    std::span<const int32_t> ids;
    bool joins = false;  // the text goes on with that of the part before, unless there are ids
  };
  // Texts that join are encoded as the one text that they make together, and each other text for itself. What a
  // tokenizer puts before a text (a space, say) is left out where it goes on from the text of another. The template's
  // tokens are put around all of them. REQUIRES: CheckTextBytes says nothing of any text's size, joined.
  //
  // Of texts that join, the special tokens are those that the texts with `special` on have by themselves, from one text
  // with `special` off to the next. So none of the latter can make one or hide one, whatever it begins or ends with:
  // not by a longer token that would reach across, nor by word characters that touch a token, nor by marks that a
  // normalizer would compose with it. Merges make no special token of it either, but the tokens of its characters.
  // (Only a character that is a special token itself becomes one, and what is unknown the unknown token.) Else the ids
  // are those of the whole text; white space that a token takes along may come from both.
  std::vector<int32_t> EncodeParts(std::span<const Part> parts, bool add_special_tokens) const;

  // Ids that are no token are skipped; what is not UTF-8 becomes U+FFFD.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The bytes that a token stands for inside of a text, often not UTF-8 by themselves; empty if the id is no token.
  std::string TokenBytes(int32_t id) const;

  bool IsSpecial(int32_t id) const;
  // Every id is below it; some below may be no token.
  int vocab_size() const;
  std::optional<int> bos_id() const;
  std::optional<int> eos_id() const;
  // The file that the vocabulary comes from.
  const std::string& file() const;
  // The special tokens that the folder names (bos_token, eos_token, image_token, ...), and their texts.
  const std::vector<std::pair<std::string, std::string>>& named_tokens() const;
  // How many tokens tokenizer_config.json says a text of this model has at most; 0 if it does not. Nothing keeps to it.
  int64_t model_max_length() const;
  // For the log: what a file says against another that is followed, once each.
  const std::vector<std::string>& warnings() const;

 private:
  friend class StreamDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  Decoder::State StartDecoding(bool continues) const;
  void DecodeNext(int32_t id, Decoder::State* state, std::string* text) const;
  void EndDecoding(Decoder::State* state, std::string* text) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_H_
