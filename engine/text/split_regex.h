#ifndef FASTDECODE_ENGINE_TEXT_SPLIT_REGEX_H_
#define FASTDECODE_ENGINE_TEXT_SPLIT_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// A stretch of a text that a regular expression either matched or left over.
struct RegexSpan {
  size_t begin;  // bytes
  size_t end;
  bool matched;
};

// A regular expression of a tokenizer.json, compiled by PCRE2 (UTF, UCP, JIT where the machine has it).
//
// Hugging Face runs these patterns in Oniguruma (Ruby syntax). What both engines spell alike but mean differently (\s,
// \w, \v, scripts, ^ and $, classes in classes, {n}+) is translated; what cannot be (\h, POSIX classes ...) is refused,
// so that a pattern never splits silently otherwise. One known gap: Oniguruma lets (?i:ss) match "ß"; here, case
// folding is one to one.
//
// Owns: the compiled code. Thread: immutable, shared by any number. Bounded: each match by a limit of about
// a second; a text on which a pattern backtracks beyond it (no published pattern does) is left unsplit from there on.
class SplitRegex {
 public:
  // Errors: InvalidArgument for what no engine takes, or above 64 KiB; Unimplemented, with what and where, for what
  // cannot be translated, or what PCRE2 does not take: Oniguruma may.
  static absl::StatusOr<SplitRegex> Compile(std::string_view pattern);
  // A pattern that means exactly its own characters.
  static absl::StatusOr<SplitRegex> CompileLiteral(std::string_view text);

  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  // Replaces *spans by a partition of `text` into matches (these may be empty) and what lies between them.
  // REQUIRES: text is valid UTF-8.
  void Partition(std::string_view text, std::vector<RegexSpan>* spans) const;

 private:
  struct Code;
  explicit SplitRegex(std::unique_ptr<Code> code);
  static absl::StatusOr<SplitRegex> CompilePcre2(const std::string& pattern, unsigned options);

  std::unique_ptr<Code> code_;
};

// The regular expression or the literal text that a tokenizer names. Errors begin with the field.
absl::StatusOr<SplitRegex> CompilePattern(const TextPattern& pattern);

// The same pattern in PCRE2's words (oniguruma_pattern.cc). For SplitRegex and its tests.
absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_SPLIT_REGEX_H_
