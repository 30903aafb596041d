#include "engine/text/jinja/text.h"

#include <string.h>

#include <algorithm>

#include "engine/text/jinja/budget.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

Text::Text(std::string bytes, bool foreign) : bytes_(std::move(bytes)) {
  SpendGrowth(0, bytes_.size());
  if (foreign) Mark(0, bytes_.size());
}

bool Text::IsForeign(size_t offset) const {
  const auto after = std::upper_bound(foreign_.begin(), foreign_.end(), offset,
                                      [](size_t value, const Span& span) { return value < span.begin; });
  return after != foreign_.begin() && offset < std::prev(after)->end;
}

void Text::Mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!foreign_.empty() && foreign_.back().end == begin) {
    foreign_.back().end = end;
  } else {
    SpendBytes(sizeof(Span));
    foreign_.push_back({begin, end});
  }
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  if (&other == this) {
    const Text copy = other;
    return Append(copy, begin, end);
  }
  const size_t base = bytes_.size();
  SpendGrowth(base, end - begin);
  bytes_.append(other.bytes_, begin, end - begin);
  auto span = std::upper_bound(other.foreign_.begin(), other.foreign_.end(), begin,
                               [](size_t value, const Span& each) { return value < each.end; });
  for (; span != other.foreign_.end() && span->begin < end; ++span) {
    Mark(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
  }
}

void Text::Append(std::string_view bytes, bool foreign) {
  const size_t base = bytes_.size();
  SpendGrowth(base, bytes.size());
  bytes_.append(bytes);
  if (foreign) Mark(base, bytes_.size());
}

Text Text::Slice(size_t begin, size_t end) const {
  Text slice;
  slice.Append(*this, begin, end);
  return slice;
}

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

size_t OffsetOf(std::string_view text, size_t index) {
  size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if ((static_cast<uint8_t>(text[offset]) & 0xc0) == 0x80) continue;
    if (index-- == 0) break;
  }
  return offset;
}

size_t FindFirst(std::string_view text, std::string_view sought, size_t begin) {
  if (begin > text.size()) return std::string_view::npos;
  if (sought.empty()) return begin;
  SpendSearch(sought.size());
  const void* const found = memmem(text.data() + begin, text.size() - begin, sought.data(), sought.size());
  const size_t at = found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  SpendSearch(at - begin);
  return found == nullptr ? std::string_view::npos : at;
}

// By Knuth, Morris and Pratt, from the end to the beginning.
size_t FindLast(std::string_view text, std::string_view sought) {
  const size_t size = sought.size();
  if (size > text.size()) return std::string_view::npos;
  if (size == 0) return text.size();
  SpendBytes(size * sizeof(uint32_t));
  const auto wanted = [&](size_t i) { return sought[size - 1 - i]; };
  // Of the first i + 1 characters of what is wanted: how many of its last are its first.
  std::vector<uint32_t> overlaps(size);
  const auto next = [&](uint32_t matched, char c) {
    while (matched > 0 && wanted(matched) != c) matched = overlaps[matched - 1];
    return wanted(matched) == c ? matched + 1 : matched;
  };
  for (size_t i = 1; i < size; ++i) overlaps[i] = next(overlaps[i - 1], wanted(i));
  uint32_t matched = 0;
  for (size_t at = text.size(); at > 0; --at) {
    if (at % 4096 == 0) SpendSearch(4096);
    matched = next(matched, text[at - 1]);
    if (matched == size) return at - 1;
  }
  return std::string_view::npos;
}

char32_t CharacterAt(std::string_view text, size_t offset, size_t* bytes) {
  const std::string_view rest = text.substr(offset);
  *bytes = NextUtf8(rest).bytes;
  return Utf8Character(rest, *bytes);
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

Text::Span Stripped(std::string_view text, const std::string_view* characters, bool left, bool right) {
  const auto cut = [&](std::string_view one) {
    if (characters == nullptr) return IsSpace(Utf8Character(one, one.size()));
    SpendSearch(characters->size());
    return characters->find(one) != std::string_view::npos;
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const std::string_view first = text.substr(begin, NextUtf8(text.substr(begin)).bytes);
    if (!cut(first)) break;
    begin += first.size();
  }
  while (right && end > begin) {
    const std::string_view last = LastUtf8(text.substr(begin, end - begin));
    if (!cut(last)) break;
    end -= last.size();
  }
  return {begin, end};
}

}  // namespace fastdecode::jinja
