#include "engine/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

// The character at the start of a valid text.
char32_t FirstCharacter(std::string_view text) { return Utf8Character(text, NextUtf8(text).bytes); }

// What a regular expression's \w is by Unicode's UTS 18, annex C.
bool IsWordCharacter(char32_t c) {
  const auto character = static_cast<UChar32>(c);
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(character, UCHAR_ALPHABETIC) || (U_GET_GC_MASK(character) & kCategories) != 0 ||
         u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL);
}

bool IsSpace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

size_t LeadingSpaceBytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size() && IsSpace(FirstCharacter(text.substr(bytes))))
    bytes += NextUtf8(text.substr(bytes)).bytes;
  return bytes;
}

size_t TrailingSpaceBytes(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const std::string_view last = LastUtf8(text.substr(0, end));
    if (!IsSpace(FirstCharacter(last))) break;
    end -= last.size();
  }
  return text.size() - end;
}

// Whether a word character touches text[begin, end) from outside.
bool IsInsideWord(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && IsWordCharacter(FirstCharacter(LastUtf8(text.substr(0, begin))))) ||
         (end < text.size() && IsWordCharacter(FirstCharacter(text.substr(end))));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (uint32_t index = 0; index < tokens_.size(); ++index) {
    uint64_t node = 0;
    for (const char c : tokens_[index].content) {
      const uint32_t next_node = static_cast<uint32_t>(child_.size()) + 1;
      node = child_.try_emplace(node << 8 | static_cast<uint8_t>(c), next_node).first->second;
    }
    token_at_.try_emplace(static_cast<uint32_t>(node), index);
    first_bytes_.set(static_cast<uint8_t>(tokens_[index].content[0]));
  }
}

const AddedToken* AddedTokens::LongestAt(std::string_view text) const {
  const AddedToken* longest = nullptr;
  uint64_t node = 0;
  for (const char c : text) {
    const auto child = child_.find(node << 8 | static_cast<uint8_t>(c));
    if (child == child_.end()) break;
    node = child->second;
    const auto token = token_at_.find(static_cast<uint32_t>(node));
    if (token != token_at_.end()) longest = &tokens_[token->second];
  }
  return longest;
}

void AddedTokens::Scan(std::string_view text, bool special, std::vector<AddedTokenSpan>* spans) const {
  spans->clear();
  size_t taken = 0;  // text before this is in *spans
  size_t position = 0;
  size_t spaces_end = 0;  // of the last white space that a token took along
  while (position < text.size()) {
    const AddedToken* token = nullptr;
    if (first_bytes_[static_cast<uint8_t>(text[position])]) token = LongestAt(text.substr(position));
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = begin + token->content.size();
    // The search goes on behind the token even if it is not taken, as in Hugging Face's implementation.
    position = end;
    if (token->special && !special) continue;
    if (token->single_word && IsInsideWord(text, begin, end)) continue;
    if (token->lstrip) begin = begin > taken ? begin - TrailingSpaceBytes(text.substr(taken, begin - taken)) : taken;
    if (token->rstrip) end = spaces_end = end < spaces_end ? spaces_end : end + LeadingSpaceBytes(text.substr(end));
    if (begin >= end) continue;  // white space all of which the token before took along
    if (taken < begin) spans->push_back({-1, text.substr(taken, begin - taken)});
    spans->push_back({token->id, text.substr(begin, end - begin)});
    taken = end;
  }
  if (taken < text.size()) spans->push_back({-1, text.substr(taken)});
}

}  // namespace fastdecode
