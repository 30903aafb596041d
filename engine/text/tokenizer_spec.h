#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fastdecode {

// A tokenizer as data, in the parts that Hugging Face's tokenizers library has, whichever file it was read from: text
// goes through added tokens, the normalizer, the pre-tokenizer and BPE to ids, and ids go through the decoder to text.

// A token that is found in the text before the model's merges see it.
struct AddedToken {
  int32_t id = 0;
  std::string content;       // UTF-8, not empty
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // searched in the normalized text, else in the text as given
  bool special = false;      // left out by a decode that skips special tokens
};

// What a Split or a Replace looks for.
struct TextPattern {
  std::string pattern;
  bool is_literal = false;  // else a regular expression in Oniguruma's syntax
  std::string field;        // where it stands, for messages
};

// A change of the whole text, before it is cut.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,  // combining marks are left out
    kStrip,         // white space at the ends is left out
    kPrepend,       // `content` before a text that is not empty
    kReplace,       // `content` for each match of `pattern`
    kByteLevel,     // each byte as the character that stands for it
  };
  Kind kind;
  bool left = false, right = false;  // kStrip
  TextPattern pattern{};             // kReplace
  std::string content;               // kPrepend, kReplace
};

enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Where Metaspace, as pre-tokenizer and as decoder, has a replacement character that stands for no space of the text.
enum class PrependScheme { kAlways, kFirst, kNever };

// A step that cuts text into the pieces that merges do not cross.
struct PreTokenizerStep {
  enum class Kind { kSplit, kByteLevel, kMetaspace };
  Kind kind;

  // kSplit
  TextPattern pattern{};
  bool invert = false;
  SplitBehavior behavior = SplitBehavior::kIsolated;

  // kByteLevel: each byte becomes the character that stands for it
  bool add_prefix_space = false;  // a space before every piece that has none
  bool use_regex = true;          // ByteLevel's own pattern cuts, too

  // kMetaspace: spaces become `replacement`
  std::string replacement = "\xE2\x96\x81";  // one character
  PrependScheme prepend_scheme = PrependScheme::kAlways;
  bool split = true;  // and cut before it
};

// A pair of neighbours that becomes one token. A merge's rank is its index; the lowest rank is applied first.
struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t merged;
};

// A token of the model, spelt as in tokenizer.json: where the pipeline has a ByteLevel, each byte as the character that
// stands for it, else plain UTF-8, with <0xHH> for a single byte.
struct VocabEntry {
  std::string key;
  int32_t id;
};

// A change of tokens on their way back to text. Each step takes a list of strings, at first one a token, and gives one.
struct DecoderStep {
  enum class Kind {
    kByteLevel,     // the bytes that characters stand for, as one text; U+FFFD for what is no UTF-8
    kReplace,       // `content` for each match of `pattern`
    kByteFallback,  // a run of <0xHH> becomes its text, or one U+FFFD a byte if it is no UTF-8
    kFuse,          // one string of all
    kStrip,         // up to `start` and `stop` copies of the character `content` leave the ends
    kMetaspace,     // `content` becomes a space, or nothing in the first string unless the scheme is kNever
  };
  Kind kind;
  TextPattern pattern{};
  std::string content;
  int start = 0, stop = 0;
  PrependScheme prepend_scheme = PrependScheme::kAlways;
  std::string field;  // where it stands, for messages
};

// A whole tokenizer, checked: every id is in [0, kTokenIdLimit), no two tokens share one, and every merge joins tokens
// of the vocabulary into one of it. Published vocabularies may lack some of the 256 bytes, such as those that UTF-8
// never uses.
struct TokenizerSpec {
  static constexpr int32_t kTokenIdLimit = 1 << 22;

  std::string file;  // the one it was read from, for messages
  std::vector<VocabEntry> vocab;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;         // a piece that is a token as it stands is not merged
  bool byte_fallback = false;         // a character that is no token becomes the <0xHH> of its bytes, if all are tokens
  std::optional<int32_t> unknown_id;  // what else it becomes; without it such a character is left out
  bool fuse_unknown = false;          // a run of such characters becomes one unknown_id
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  bool spaces_between_tokens = false;  // of decoded text: there is no decoder, not even one without steps
  std::vector<int32_t> prefix_ids;     // around an encoded text, if asked for special tokens
  std::vector<int32_t> suffix_ids;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::vector<std::pair<std::string, std::string>> named_tokens;  // such as bos_token, and their texts
  int64_t model_max_length = 0;       // tokens that transformers warns beyond; 0: not said
  std::vector<std::string> warnings;  // for the log: what a file says against another that is followed

  // Whether BPE starts from bytes and not from characters.
  bool IsByteLevel() const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_
