// Upper and lower case, lines and replacements, with every character's mark kept.
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using icu::UnicodeString;

std::string MappedPiece(std::string_view piece, Case to) {
  UnicodeString text = UnicodeString::fromUTF8(icu::StringPiece(piece.data(), static_cast<int32_t>(piece.size())));
  const icu::Locale& root = icu::Locale::getRoot();
  if (to == Case::kUpper) text.toUpper(root);
  if (to == Case::kLower) text.toLower(root);
  if (to == Case::kFolded) text.foldCase();
  std::string mapped;
  text.toUTF8String(mapped);
  return mapped;
}

std::string TitleCharacter(char32_t c) {
  UnicodeString text(static_cast<UChar32>(c));
  text.toTitle(nullptr, icu::Locale::getRoot());
  std::string mapped;
  text.toUTF8String(mapped);
  return mapped;
}

bool IsLower(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0; }
bool IsUpper(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0; }
bool IsTitle(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_TITLECASE_LETTER; }

// Stretches of one mark at once, since a character's case may depend on its neighbours.
Text MappedWhole(const Text& text, Case to) {
  Text out;
  size_t at = 0;
  const auto append = [&](size_t end, bool foreign) {
    if (end > at) out.Append(MappedPiece(std::string_view(text.bytes()).substr(at, end - at), to), foreign);
    at = std::max(at, end);
  };
  for (const Text::Span& span : text.foreign()) {
    append(span.begin, false);
    append(span.end, true);
  }
  append(text.size(), false);
  return out;
}

// Character by character; `choose` says the case of each.
template <class Choose>
Text MappedEach(const Text& text, Choose&& choose) {
  Text out;
  size_t size = 0;
  for (size_t at = 0; at < text.size(); at += size) {
    Spend(1);
    const char32_t c = CharacterAt(text.bytes(), at, &size);
    const Case to = choose(c, at);
    const std::string mapped =
        to == Case::kTitle ? TitleCharacter(c) : MappedPiece(std::string_view(text.bytes()).substr(at, size), to);
    out.Append(mapped, text.IsForeign(at));
  }
  return out;
}

size_t LineEndBytes(std::string_view text) {
  size_t bytes = 0;
  const char32_t c = CharacterAt(text, 0, &bytes);
  if (c == '\r') return text.size() > 1 && text[1] == '\n' ? 2 : 1;
  const bool ends = (c >= 0x0a && c <= 0x0c) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
  return ends ? bytes : 0;
}

}  // namespace

Text WithCase(const Text& text, Case to) {
  SpendSearch(text.size() * 8);
  switch (to) {
    case Case::kUpper:
    case Case::kLower:
    case Case::kFolded:
      return MappedWhole(text, to);
    case Case::kCapitalized: {
      if (text.empty()) return text;
      const size_t first = NextUtf8(text.bytes()).bytes;
      Text out = MappedEach(text.Slice(0, first), [](char32_t, size_t) { return Case::kTitle; });
      out.Append(MappedWhole(text.Slice(first, text.size()), Case::kLower));
      return out;
    }
    case Case::kTitle: {
      bool in_word = false;
      return MappedEach(text, [&](char32_t c, size_t) {
        const bool cased = IsLower(c) || IsUpper(c) || IsTitle(c);
        return std::exchange(in_word, cased) ? Case::kLower : Case::kTitle;
      });
    }
    case Case::kSwapped:
      return MappedEach(text, [](char32_t c, size_t) { return IsUpper(c) ? Case::kLower : Case::kUpper; });
  }
  return text;
}

bool IsLowerText(std::string_view text) {
  bool cased = false;
  size_t size = 0;
  for (size_t at = 0; at < text.size(); at += size) {
    Spend(1);
    const char32_t c = CharacterAt(text, at, &size);
    if (IsUpper(c) || IsTitle(c)) return false;
    cased = cased || IsLower(c);
  }
  return cased;
}

bool IsUpperText(std::string_view text) {
  bool cased = false;
  size_t size = 0;
  for (size_t at = 0; at < text.size(); at += size) {
    Spend(1);
    const char32_t c = CharacterAt(text, at, &size);
    if (IsLower(c) || IsTitle(c)) return false;
    cased = cased || IsUpper(c);
  }
  return cased;
}

bool IsWordText(std::string_view character) {
  const auto c = static_cast<UChar32>(Utf8Character(character, character.size()));
  return c == '_' || u_isalnum(c) != 0 || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

Text Replaced(const Text& text, const Text& from, const Text& to, Integer count) {
  const std::string& bytes = text.bytes();
  Text out;
  size_t at = 0;
  const auto more = [&] { return count != 0 && (Spend(1), count = count < 0 ? count : count - 1, true); };
  if (from.empty()) {
    // Before every character, and at the end.
    while (more()) {
      out.Append(to);
      if (at == bytes.size()) return out;
      const size_t size = NextUtf8(std::string_view(bytes).substr(at)).bytes;
      out.Append(text, at, at + size);
      at += size;
    }
    out.Append(text, at, bytes.size());
    return out;
  }
  while (true) {
    const size_t found = FindFirst(bytes, from.bytes(), at);
    if (found == std::string_view::npos || !more()) break;
    out.Append(text, at, found);
    out.Append(to);
    at = found + from.size();
  }
  out.Append(text, at, bytes.size());
  return out;
}

std::vector<Text::Span> Lines(std::string_view bytes, bool with_ends) {
  SpendSearch(bytes.size());
  std::vector<Text::Span> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = LineEndBytes(bytes.substr(at));
    if (end > 0) {
      SpendBytes(sizeof(Text::Span));
      lines.push_back({begin, with_ends ? at + end : at});
      begin = at + end;
    }
    at += end > 0 ? end : NextUtf8(bytes.substr(at)).bytes;
  }
  if (begin < bytes.size()) lines.push_back({begin, bytes.size()});
  return lines;
}

}  // namespace fastdecode::jinja
