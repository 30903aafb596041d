#ifndef FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_
#define FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_

#include <deque>
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
  const std::vector<std::string_view>& pieces() const { return pieces_; }

 private:
  friend class PreTokenizer;
  std::vector<std::string_view> pieces_;  // none is empty; they point into the text or into prefixed_
  std::deque<std::string> prefixed_;      // pieces that got a space in front
  std::vector<std::string_view> next_pieces_;
  std::vector<RegexSpan> spans_;
};

// Cuts text as the pre_tokenizer section says: its splits in order, then ByteLevel's prefix space and own pattern.
//
// Owns: the compiled patterns. Thread: immutable, shared by any number.
class PreTokenizer {
 public:
  // Errors: a pattern that does not compile or is not supported; the message starts with the field's name.
  static absl::StatusOr<PreTokenizer> Create(const PreTokenizerSpec& spec);

  // Replaces what *result held; reuse it, to reuse its memory. The pieces live as long as `text` and *result.
  // REQUIRES: text is valid UTF-8.
  void Run(std::string_view text, PreTokenizedText* result) const;

 private:
  struct Step {
    SplitRegex regex;
    SplitBehavior behavior;
    bool invert;
  };

  PreTokenizer(std::vector<Step> steps, std::vector<Step> byte_level_steps, bool add_prefix_space);
  static void RunStep(const Step& step, PreTokenizedText* result);
  static void AddPrefixSpaces(PreTokenizedText* result);

  std::vector<Step> steps_;
  std::vector<Step> byte_level_steps_;  // none or one: after the prefix space
  bool add_prefix_space_;
};

// Joins or drops the spans of a partition, in place, as a Split with this behavior does.
void ApplySplitBehavior(SplitBehavior behavior, bool invert, std::vector<RegexSpan>* spans);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_PRE_TOKENIZER_H_
