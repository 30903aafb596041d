#include "engine/text/jinja/text.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace fastdecode::jinja {

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
    foreign_.push_back({begin, end});
  }
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  if (&other == this) {
    const Text copy = other;
    return Append(copy, begin, end);
  }
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto span = std::upper_bound(other.foreign_.begin(), other.foreign_.end(), begin,
                               [](size_t value, const Span& each) { return value < each.end; });
  for (; span != other.foreign_.end() && span->begin < end; ++span) {
    Mark(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
  }
}

void Text::Append(std::string_view bytes, bool foreign) {
  const size_t base = bytes_.size();
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
    if (characters != nullptr) return characters->find(one) != std::string_view::npos;
    return IsSpace(Utf8Character(one, one.size()));
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
