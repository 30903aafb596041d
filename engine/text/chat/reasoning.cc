#include "engine/text/chat/reasoning.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace fastdecode {

namespace {

using Pair = ReasoningMarks::Pair;

// Marks that have no form in common.
struct KnownMarks {
  const char *begin, *end;
};
constexpr KnownMarks kKnown[] = {
    {"<|START_THINKING|>", "<|END_THINKING|>"},     // Command A
    {"\u25c1think\u25b7", "\u25c1/think\u25b7"},    // Kimi
    {"<|inner_prefix|>", "<|inner_suffix|>"},       // Apertus
    {"<|channel|>analysis<|message|>", "<|end|>"},  // gpt-oss
};
// gpt-oss's other channels, and who speaks.
constexpr const char* kChannelTexts[] = {"<|start|>assistant", "<|channel|>final<|message|>",
                                         "<|channel|>commentary<|message|>"};

bool Spells(const std::vector<std::string>& literals, std::string_view text) {
  return std::any_of(literals.begin(), literals.end(),
                     [&](const std::string& literal) { return literal.find(text) != std::string::npos; });
}

bool NamesReasoning(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("think") != std::string::npos || name.find("thought") != std::string::npos ||
         name.find("reason") != std::string::npos;
}

// Every </name> and [/NAME] of a text whose name says what it is.
void AddNamedMarks(const std::string& literal, std::vector<std::pair<std::string, std::string>>* pairs) {
  for (const auto& [open, close] : {std::pair{'<', '>'}, {'[', ']'}}) {
    const std::string start = {open, '/'};
    for (size_t at = literal.find(start); at != std::string::npos; at = literal.find(start, at + 1)) {
      size_t end = at + 2;
      while (end < literal.size() && (std::isalnum(static_cast<unsigned char>(literal[end])) != 0 ||
                                      literal[end] == '_' || literal[end] == ':' || literal[end] == '-')) {
        ++end;
      }
      const std::string name = literal.substr(at + 2, end - at - 2);
      if (end >= literal.size() || literal[end] != close || !NamesReasoning(name)) continue;
      pairs->emplace_back(open + name + close, start + name + close);
    }
  }
}

using Mark = ReasoningMarks::Mark;

bool IsSpecialOrigin(char origin) { return origin == AnswerText::kSpecial || origin == AnswerText::kHidden; }

bool IsSpaceByte(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

ReasoningMarks FindReasoningMarks(const std::vector<std::string>& literals,
                                  const std::function<std::vector<TextRange>(const std::string&)>& special_in) {
  ReasoningMarks marks;
  std::vector<std::pair<std::string, std::string>> found = {{"<think>", "</think>"}};
  for (const std::string& literal : literals) AddNamedMarks(literal, &found);
  for (const KnownMarks& known : kKnown) {
    if (Spells(literals, known.begin) && Spells(literals, known.end)) found.emplace_back(known.begin, known.end);
  }
  // gpt-oss's template composes the name of a channel from pieces.
  const bool has_channels =
      Spells(literals, "<|channel|>") && Spells(literals, "<|message|>") && Spells(literals, "analysis");
  if (has_channels) found.emplace_back(kKnown[3].begin, kKnown[3].end);
  const auto make = [&](const std::string& text) {
    Mark mark = {text, std::string(text.size(), AnswerText::kOrdinary)};
    for (const TextRange& range : special_in(text)) {
      std::fill(mark.origins.begin() + static_cast<ptrdiff_t>(range.begin),
                mark.origins.begin() + static_cast<ptrdiff_t>(range.end), AnswerText::kSpecial);
    }
    return mark;
  };
  const auto has_special = [](const Mark& mark) {
    return mark.origins.find(AnswerText::kSpecial) != std::string::npos;
  };
  for (const auto& [begin, end] : found) {
    const bool known = std::any_of(marks.pairs.begin(), marks.pairs.end(),
                                   [&](const Pair& other) { return other.begin.text == begin; });
    if (known) continue;
    Pair pair = {make(begin), make(end)};
    pair.anywhere = has_special(pair.begin);
    marks.shows_special = marks.shows_special || pair.anywhere || has_special(pair.end);
    marks.pairs.push_back(std::move(pair));
  }
  if (!marks.shows_special || !has_channels) return marks;
  for (const char* const text : kChannelTexts) marks.dropped.push_back(make(text));
  return marks;
}

ReasoningReader::ReasoningReader(const ReasoningMarks* marks, const ReasoningMarks::Pair* open)
    : marks_(marks), open_(open), any_text_(open != nullptr), skip_line_ends_(open != nullptr) {}

// Whether the first `bytes` of the mark stand at `at` in what is held, where there is room for them.
bool ReasoningReader::Matches(const Mark& mark, size_t at, size_t bytes) const {
  if (held_.compare(at, bytes, mark.text, 0, bytes) != 0) return false;
  for (size_t i = 0; i < bytes; ++i) {
    const char origin = origins_[at + i];
    if (origin != AnswerText::kUnknown && IsSpecialOrigin(origin) != IsSpecialOrigin(mark.origins[i])) return false;
  }
  return true;
}

size_t ReasoningReader::Find(const Mark& mark) const {
  size_t at = held_.find(mark.text);
  while (at != std::string::npos && !Matches(mark, at, mark.text.size())) at = held_.find(mark.text, at + 1);
  return at;
}

// How many bytes at the end of what is held begin the mark without being it.
size_t ReasoningReader::BegunAtEnd(const Mark& mark) const {
  for (size_t size = std::min(held_.size(), mark.text.size() - 1); size > 0; --size) {
    if (Matches(mark, held_.size() - size, size)) return size;
  }
  return 0;
}

// Whether there is nothing before it but white space and what is left out.
bool ReasoningReader::AtBeginning(size_t offset) const {
  if (any_text_) return false;
  for (size_t i = 0; i < offset; ++i) {
    if (!IsSpaceByte(held_[i]) && origins_[i] != AnswerText::kHidden) return false;
  }
  return true;
}

ReasoningReader::Found ReasoningReader::FindNext() const {
  Found next;
  const auto offer = [&](const Mark& mark, const Pair* begins, bool ends) {
    const size_t at = Find(mark);
    if (at == std::string::npos || at > next.at || (at == next.at && mark.text.size() <= next.size)) return;
    if (begins != nullptr && !begins->anywhere && !AtBeginning(at)) return;
    next = {at, mark.text.size(), begins, ends};
  };
  for (const Pair& pair : marks_->pairs) {
    if (open_ == nullptr) offer(pair.begin, &pair, false);
  }
  if (open_ != nullptr) offer(open_->end, nullptr, true);
  for (const Mark& mark : marks_->dropped) offer(mark, nullptr, false);
  return next;
}

size_t ReasoningReader::HeldBack(bool last) const {
  if (last) return 0;
  size_t size = 0;
  const auto consider = [&](const Mark& mark) { size = std::max(size, BegunAtEnd(mark)); };
  for (const Pair& pair : marks_->pairs) {
    if (open_ != nullptr) break;
    if (pair.anywhere || AtBeginning(held_.size() - BegunAtEnd(pair.begin))) consider(pair.begin);
  }
  if (open_ != nullptr) consider(open_->end);
  for (const Mark& mark : marks_->dropped) consider(mark);
  // White space before what may be the first mark is part of the answer only if it is none.
  if (open_ == nullptr && AtBeginning(held_.size() - size)) return held_.size();
  return size;
}

void ReasoningReader::Hold(const AnswerText& answer) {
  const size_t before = held_.size();
  held_.append(answer.text);
  origins_.resize(held_.size(), answer.of_others);
  for (const TextRange& range : answer.special) {
    std::fill(origins_.begin() + static_cast<ptrdiff_t>(before + range.begin),
              origins_.begin() + static_cast<ptrdiff_t>(before + range.end), answer.of_special);
  }
}

void ReasoningReader::Drop(size_t bytes) {
  held_.erase(0, bytes);
  origins_.erase(0, bytes);
}

// The first bytes of what is held, less those that are left out.
void ReasoningReader::EmitHeld(size_t bytes, std::string* reasoning, std::string* content) {
  for (size_t at = 0; at < bytes;) {
    const bool hidden = origins_[at] == AnswerText::kHidden;
    size_t end = at + 1;
    while (end < bytes && (origins_[end] == AnswerText::kHidden) == hidden) ++end;
    if (!hidden) Emit(std::string_view(held_).substr(at, end - at), reasoning, content);
    at = end;
  }
  Drop(bytes);
}

void ReasoningReader::Emit(std::string_view text, std::string* reasoning, std::string* content) {
  if (skip_line_ends_) {
    text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    if (text.empty()) return;
    skip_line_ends_ = false;
  }
  any_text_ = any_text_ || !text.empty();
  if (open_ == nullptr) {
    content->append(text);
    return;
  }
  const size_t last = text.find_last_not_of("\r\n");
  if (last == std::string_view::npos) {
    line_ends_.append(text);
    return;
  }
  reasoning->append(line_ends_).append(text.substr(0, last + 1));
  line_ends_ = text.substr(last + 1);
}

void ReasoningReader::Read(const AnswerText& answer, bool last, std::string* reasoning, std::string* content) {
  Hold(answer);
  // A mark is taken once nothing can follow that makes it part of a longer one, or of one that begins before it.
  for (Found found = FindNext(); found.at < held_.size() - HeldBack(last); found = FindNext()) {
    const bool before_first = found.begins != nullptr && AtBeginning(found.at);
    if (before_first) {
      Drop(found.at);
    } else {
      EmitHeld(found.at, reasoning, content);
    }
    Drop(found.size);
    if (found.begins != nullptr || found.ends) {
      open_ = found.begins;
      any_text_ = true;
      skip_line_ends_ = true;
      line_ends_.clear();
    }
  }
  EmitHeld(held_.size() - HeldBack(last), reasoning, content);
}

}  // namespace fastdecode
