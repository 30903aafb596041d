#ifndef FASTDECODE_ENGINE_TEXT_NORMALIZER_H_
#define FASTDECODE_ENGINE_TEXT_NORMALIZER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/split_regex.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// A Replace, compiled. A literal pattern is looked for byte by byte, without a regular expression.
class TextReplacer {
 public:
  // Errors: a pattern that does not compile or is not supported; the message starts with the field's name.
  static absl::StatusOr<TextReplacer> Create(const TextPattern& pattern, std::string content);

  // REQUIRES: text is valid UTF-8.
  std::string Run(std::string_view text) const;

  // How many times as long a text may become, at most.
  size_t growth() const;

 private:
  TextReplacer(std::string literal, std::optional<SplitRegex> regex, std::string content);

  std::string literal_;  // if there is no regex_
  std::optional<SplitRegex> regex_;
  std::string content_;
};

// The steps of tokenizer.json's normalizer section, in order. Unicode's forms and cases come from ICU.
//
// Owns: the compiled patterns. Thread: immutable, shared by any number.
class Normalizer {
 public:
  // Errors: a pattern that does not compile or is not supported; steps that may make a text more than kGrowthMax times
  // as long.
  static constexpr size_t kGrowthMax = 4096;
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }
  // How many times as long as it was a text may be after Run, at most, beside `added_bytes`.
  size_t growth() const { return growth_; }
  size_t added_bytes() const { return added_bytes_; }

  // `continues`: the text goes on from another one, so that nothing is prepended. REQUIRES: text is valid UTF-8, and
  // what may become of it has fewer than 2^31 bytes.
  std::string Run(std::string_view text, bool continues) const;

 private:
  struct Step {
    NormalizerStep spec;
    std::optional<TextReplacer> replacer;
  };

  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  std::vector<Step> steps_;
  size_t growth_ = 1;
  size_t added_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_NORMALIZER_H_
