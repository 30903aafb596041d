#ifndef FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_
#define FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/split_regex.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// The pieces of a text that the merges of BPE may not cross.
class PreTokenizedText {
 public:
  struct Piece {
    std::string_view text;  // not empty; in the text that was cut, or in texts_
    bool start;             // it begins where the text that was cut does
  };

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  friend class PreTokenizer;
  void Rewrite(auto write);

  std::vector<Piece> pieces_;
  std::deque<std::string> texts_;  // of the steps that change text: all pieces of one, one after the other
  std::vector<Piece> next_pieces_;
  std::vector<RegexSpan> spans_;
  std::vector<size_t> ends_;
};

// Cuts text by the steps of tokenizer.json's pre_tokenizer section, in order. Pieces come out as bytes also where a
// ByteLevel step spells them as characters for the steps after it.
//
// Owns: the compiled patterns. Thread: immutable, shared by any number.
class PreTokenizer {
 public:
  // Errors: a pattern that does not compile or is not supported; the message starts with the field's name.
  // `byte_level`: the text comes as a ByteLevel normalizer spells it.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<PreTokenizerStep>& steps, bool byte_level);

  // Where a text stands. Steps that put something before the first piece alone do so at the `first` text of a prompt,
  // and nothing is put before a text that `continues` another.
  struct Place {
    bool first = true;
    bool continues = false;
  };

  // Replaces what *result held; reuse it, to reuse its memory. The pieces live as long as `text` and *result.
  // REQUIRES: text is valid UTF-8.
  void Run(std::string_view text, Place place, PreTokenizedText* result) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<SplitRegex> regex;  // of kSplit, and of a kByteLevel that has one
  };

  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
  static void Split(const Step& step, PreTokenizedText* result);
  static void AddPrefixSpaces(Place place, PreTokenizedText* result);
  static void ReplaceSpaces(const PreTokenizerStep& spec, Place place, PreTokenizedText* result);

  std::vector<Step> steps_;
  bool spell_bytes_ = false;    // ByteLevel writes its characters, because steps follow it
  bool unspell_bytes_ = false;  // pieces are spelt so after the last step
};

// Joins or drops the spans of a partition, in place, as a Split with this behavior does.
void ApplySplitBehavior(SplitBehavior behavior, bool invert, std::vector<RegexSpan>* spans);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_
