#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

// GPT-2's pattern, which ByteLevel applies when use_regex is set: contractions, words, numbers and other signs with the
// space before them, then runs of white space, whose last character is left to the word that follows.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void JoinIf(std::vector<RegexSpan>* spans, auto joins_previous) {
  size_t kept = 0;
  bool previous_matched = false;
  for (const RegexSpan& span : *spans) {
    const bool matched = span.matched;
    if (kept > 0 && joins_previous(matched, previous_matched)) {
      RegexSpan& last = (*spans)[kept - 1];
      last.begin = std::min(last.begin, span.begin);
      last.end = std::max(last.end, span.end);
    } else {
      (*spans)[kept++] = span;
    }
    previous_matched = matched;
  }
  spans->resize(kept);
}

}  // namespace

void ApplySplitBehavior(SplitBehavior behavior, bool invert, std::vector<RegexSpan>* spans) {
  if (invert) {
    for (RegexSpan& span : *spans) span.matched = !span.matched;
  }
  const auto is_new_match = [](bool matched, bool previous_matched) { return matched && !previous_matched; };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      std::erase_if(*spans, [](const RegexSpan& span) { return span.matched; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      JoinIf(spans, is_new_match);
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(spans->begin(), spans->end());
      JoinIf(spans, is_new_match);
      std::reverse(spans->begin(), spans->end());
      break;
    case SplitBehavior::kContiguous:
      JoinIf(spans, [](bool matched, bool previous_matched) { return matched == previous_matched; });
      break;
  }
}

PreTokenizer::PreTokenizer(std::vector<Step> steps, std::vector<Step> byte_level_steps, bool add_prefix_space)
    : steps_(std::move(steps)), byte_level_steps_(std::move(byte_level_steps)), add_prefix_space_(add_prefix_space) {}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const PreTokenizerSpec& spec) {
  std::vector<Step> steps;
  for (const SplitSpec& split : spec.splits) {
    absl::StatusOr<SplitRegex> regex =
        split.is_literal ? SplitRegex::CompileLiteral(split.pattern) : SplitRegex::Compile(split.pattern);
    if (!regex.ok()) {
      return absl::Status(regex.status().code(), absl::StrCat(split.field, ": ", regex.status().message()));
    }
    steps.push_back({*std::move(regex), split.behavior, split.invert});
  }
  std::vector<Step> byte_level_steps;
  if (spec.byte_level_regex) {
    absl::StatusOr<SplitRegex> regex = SplitRegex::Compile(kByteLevelPattern);
    if (!regex.ok()) return regex.status();
    byte_level_steps.push_back({*std::move(regex), SplitBehavior::kIsolated, false});
  }
  return PreTokenizer(std::move(steps), std::move(byte_level_steps), spec.add_prefix_space);
}

void PreTokenizer::Run(std::string_view text, PreTokenizedText* result) const {
  result->pieces_.clear();
  result->prefixed_.clear();
  if (text.empty()) return;
  result->pieces_.push_back(text);
  for (const Step& step : steps_) RunStep(step, result);
  if (add_prefix_space_) AddPrefixSpaces(result);
  for (const Step& step : byte_level_steps_) RunStep(step, result);
}

void PreTokenizer::RunStep(const Step& step, PreTokenizedText* result) {
  result->next_pieces_.clear();
  for (const std::string_view piece : result->pieces_) {
    step.regex.Partition(piece, &result->spans_);
    ApplySplitBehavior(step.behavior, step.invert, &result->spans_);
    for (const RegexSpan& span : result->spans_) {
      if (span.begin < span.end) result->next_pieces_.push_back(piece.substr(span.begin, span.end - span.begin));
    }
  }
  result->pieces_.swap(result->next_pieces_);
}

void PreTokenizer::AddPrefixSpaces(PreTokenizedText* result) {
  for (std::string_view& piece : result->pieces_) {
    if (piece.front() == ' ') continue;
    std::string& prefixed = result->prefixed_.emplace_back(" ");
    prefixed.append(piece);
    piece = prefixed;
  }
}

}  // namespace fastdecode
