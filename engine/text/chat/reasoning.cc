#include "engine/text/chat/reasoning.h"

#include <algorithm>
#include <cctype>

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
void AddNamedMarks(const std::string& literal, std::vector<Pair>* pairs) {
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
      pairs->push_back({open + name + close, start + name + close});
    }
  }
}

// How many bytes at the end of `text` begin `mark` without being it.
size_t BegunAtEnd(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == mark.substr(0, size)) return size;
  }
  return 0;
}

bool IsSpaceByte(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

ReasoningMarks FindReasoningMarks(const std::vector<std::string>& literals,
                                  const std::function<bool(const std::string&)>& is_special,
                                  const std::vector<std::string>& special_tokens) {
  ReasoningMarks marks;
  std::vector<Pair> found = {{"<think>", "</think>"}};
  for (const std::string& literal : literals) AddNamedMarks(literal, &found);
  for (const KnownMarks& known : kKnown) {
    if (Spells(literals, known.begin) && Spells(literals, known.end)) found.push_back({known.begin, known.end});
  }
  // gpt-oss's template composes the name of a channel from pieces.
  const bool has_channels =
      Spells(literals, "<|channel|>") && Spells(literals, "<|message|>") && Spells(literals, "analysis");
  if (has_channels) found.push_back({kKnown[3].begin, kKnown[3].end});
  for (Pair& pair : found) {
    const bool known = std::any_of(marks.pairs.begin(), marks.pairs.end(),
                                   [&](const Pair& other) { return other.begin == pair.begin; });
    if (known) continue;
    pair.anywhere = is_special(pair.begin);
    marks.shows_special = marks.shows_special || pair.anywhere || is_special(pair.end);
    marks.pairs.push_back(std::move(pair));
  }
  if (!marks.shows_special) return marks;
  if (has_channels) marks.dropped.assign(std::begin(kChannelTexts), std::end(kChannelTexts));
  for (const std::string& token : special_tokens) {
    if (!token.empty()) marks.dropped.push_back(token);
  }
  return marks;
}

ReasoningReader::ReasoningReader(const ReasoningMarks* marks, const ReasoningMarks::Pair* open)
    : marks_(marks), open_(open), any_text_(open != nullptr), skip_line_ends_(open != nullptr) {}

bool ReasoningReader::AtBeginning(size_t offset) const {
  return !any_text_ && std::all_of(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(offset), IsSpaceByte);
}

ReasoningReader::Found ReasoningReader::FindNext() const {
  Found next;
  const auto offer = [&](std::string_view mark, const Pair* begins, bool ends) {
    const size_t at = held_.find(mark);
    if (at == std::string::npos || at > next.at || (at == next.at && mark.size() <= next.size)) return;
    if (begins != nullptr && !begins->anywhere && !AtBeginning(at)) return;
    next = {at, mark.size(), begins, ends};
  };
  // Marks go before equal texts that are dropped where they mark nothing.
  for (const Pair& pair : marks_->pairs) {
    if (open_ == nullptr) offer(pair.begin, &pair, false);
  }
  if (open_ != nullptr) offer(open_->end, nullptr, true);
  for (const std::string& text : marks_->dropped) offer(text, nullptr, false);
  return next;
}

size_t ReasoningReader::HeldBack(bool last) const {
  if (last) return 0;
  size_t size = 0;
  const auto consider = [&](const std::string& mark) { size = std::max(size, BegunAtEnd(held_, mark)); };
  for (const Pair& pair : marks_->pairs) {
    if (open_ != nullptr) break;
    if (pair.anywhere || AtBeginning(held_.size() - BegunAtEnd(held_, pair.begin))) consider(pair.begin);
  }
  if (open_ != nullptr) consider(open_->end);
  for (const std::string& text : marks_->dropped) consider(text);
  // White space before what may be the first mark is part of the answer only if it is none.
  if (open_ == nullptr && AtBeginning(held_.size() - size)) return held_.size();
  return size;
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

void ReasoningReader::Read(std::string_view text, bool last, std::string* reasoning, std::string* content) {
  held_.append(text);
  // A mark is taken once nothing can follow that makes it part of a longer one, or of one that begins before it.
  for (Found found = FindNext(); found.at < held_.size() - HeldBack(last); found = FindNext()) {
    const bool before_first = found.begins != nullptr && AtBeginning(found.at);
    if (!before_first) Emit(std::string_view(held_).substr(0, found.at), reasoning, content);
    held_.erase(0, found.at + found.size);
    if (found.begins != nullptr || found.ends) {
      open_ = found.begins;
      any_text_ = true;
      skip_line_ends_ = true;
      line_ends_.clear();
    }
  }
  const size_t out = held_.size() - HeldBack(last);
  Emit(std::string_view(held_).substr(0, out), reasoning, content);
  held_.erase(0, out);
}

}  // namespace fastdecode
