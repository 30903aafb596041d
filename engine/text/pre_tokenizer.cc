#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/text/byte_alphabet.h"

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

// Gives each piece the text that `write(piece, &out)` appends to `out`.
void PreTokenizedText::Rewrite(auto write) {
  std::string& text = texts_.emplace_back();
  ends_.clear();
  for (const Piece& piece : pieces_) {
    write(piece, &text);
    ends_.push_back(text.size());
  }
  size_t begin = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    pieces_[i].text = std::string_view(text).substr(begin, ends_[i] - begin);
    begin = ends_[i];
  }
}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<PreTokenizerStep>& steps, bool byte_level) {
  std::vector<Step> compiled;
  for (const PreTokenizerStep& step : steps) {
    std::optional<SplitRegex> regex;
    if (step.kind == PreTokenizerStep::Kind::kSplit ||
        (step.kind == PreTokenizerStep::Kind::kByteLevel && step.use_regex)) {
      absl::StatusOr<SplitRegex> created = step.kind == PreTokenizerStep::Kind::kSplit
                                               ? CompilePattern(step.pattern)
                                               : SplitRegex::Compile(kByteLevelPattern);
      if (!created.ok()) return created.status();
      regex = *std::move(created);
    }
    compiled.push_back({step, std::move(regex)});
  }
  PreTokenizer result(std::move(compiled));
  for (const PreTokenizerStep& step : steps) {
    if (step.kind == PreTokenizerStep::Kind::kByteLevel && &step != &steps.back()) result.spell_bytes_ = true;
  }
  result.unspell_bytes_ = byte_level || result.spell_bytes_;
  return result;
}

void PreTokenizer::Run(std::string_view text, Place place, PreTokenizedText* result) const {
  result->pieces_.clear();
  result->texts_.clear();
  if (text.empty()) return;
  result->pieces_.push_back({text, true});
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case PreTokenizerStep::Kind::kSplit:
        Split(step, result);
        break;
      case PreTokenizerStep::Kind::kMetaspace:
        ReplaceSpaces(step.spec, place, result);
        break;
      case PreTokenizerStep::Kind::kByteLevel:
        if (step.spec.add_prefix_space) AddPrefixSpaces(place, result);
        if (step.regex.has_value()) Split(step, result);
        if (spell_bytes_) {
          result->Rewrite(
              [](const PreTokenizedText::Piece& piece, std::string* out) { AppendByteLevel(piece.text, out); });
        }
        break;
    }
  }
  if (!unspell_bytes_) return;
  result->Rewrite([](const PreTokenizedText::Piece& piece, std::string* out) {
    out->append(ByteLevelBytes(piece.text).value_or(std::string(piece.text)));
  });
}

void PreTokenizer::Split(const Step& step, PreTokenizedText* result) {
  result->next_pieces_.clear();
  for (const PreTokenizedText::Piece& piece : result->pieces_) {
    step.regex->Partition(piece.text, &result->spans_);
    ApplySplitBehavior(step.spec.behavior, step.spec.invert, &result->spans_);
    for (const RegexSpan& span : result->spans_) {
      if (span.begin == span.end) continue;
      result->next_pieces_.push_back(
          {piece.text.substr(span.begin, span.end - span.begin), piece.start && span.begin == 0});
    }
  }
  result->pieces_.swap(result->next_pieces_);
}

void PreTokenizer::AddPrefixSpaces(Place place, PreTokenizedText* result) {
  result->Rewrite([&](const PreTokenizedText::Piece& piece, std::string* out) {
    if (piece.text.front() != ' ' && !(piece.start && place.continues)) out->push_back(' ');
    out->append(piece.text);
  });
}

void PreTokenizer::ReplaceSpaces(const PreTokenizerStep& spec, Place place, PreTokenizedText* result) {
  result->Rewrite([&](const PreTokenizedText::Piece& piece, std::string* out) {
    const bool has_prefix = piece.text.front() == ' ' || piece.text.starts_with(spec.replacement);
    const bool wants_prefix = (spec.prepend_scheme == PrependScheme::kAlways && !(piece.start && place.continues)) ||
                              (spec.prepend_scheme == PrependScheme::kFirst && piece.start && place.first);
    if (wants_prefix && !has_prefix) out->append(spec.replacement);
    std::string_view rest = piece.text;
    for (size_t space = 0; (space = rest.find(' ')) != std::string_view::npos; rest.remove_prefix(space + 1)) {
      out->append(rest.substr(0, space));
      out->append(spec.replacement);
    }
    out->append(rest);
  });
  if (!spec.split) return;
  result->next_pieces_.clear();
  for (const PreTokenizedText::Piece& piece : result->pieces_) {
    size_t begin = 0;
    while (begin < piece.text.size()) {
      const size_t end = std::min(piece.text.find(spec.replacement, begin + 1), piece.text.size());
      result->next_pieces_.push_back({piece.text.substr(begin, end - begin), piece.start && begin == 0});
      begin = end;
    }
  }
  result->pieces_.swap(result->next_pieces_);
}

}  // namespace fastdecode
