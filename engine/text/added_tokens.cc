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

bool IsOnlyWhiteSpace(std::string_view text) { return LeadingSpaceBytes(text) == text.size(); }

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    uint64_t node = 0;
    for (const char c : token.content) {
      const uint32_t next_node = static_cast<uint32_t>(child_.size()) + 1;
      node = child_.try_emplace(node << 8 | static_cast<uint8_t>(c), next_node).first->second;
    }
    token_at_.try_emplace(static_cast<uint32_t>(node), static_cast<uint32_t>(tokens_.size()));
    first_bytes_.set(static_cast<uint8_t>(token.content[0]));
    tokens_.push_back({token, token.special});
  }
}

void AddedTokens::ForEachAt(std::string_view text, auto found) const {
  if (text.empty() || !first_bytes_[static_cast<uint8_t>(text[0])]) return;
  uint64_t node = 0;
  for (const char c : text) {
    const auto child = child_.find(node << 8 | static_cast<uint8_t>(c));
    if (child == child_.end()) return;
    node = child->second;
    const auto token = token_at_.find(static_cast<uint32_t>(node));
    if (token != token_at_.end()) found(tokens_[token->second]);
  }
}

std::pair<const AddedTokens::Token*, const AddedTokens::Token*> AddedTokens::LongestAt(std::string_view text,
                                                                                       auto accepts) const {
  std::pair<const Token*, const Token*> longest = {nullptr, nullptr};
  ForEachAt(text, [&](const Token& token) {
    longest.second = &token;
    if (accepts(token)) longest.first = &token;
  });
  return longest;
}

void AddedTokens::AddIdsIn(std::string_view text, absl::flat_hash_set<int32_t>* ids) const {
  for (size_t at = 0; at < text.size(); ++at) {
    ForEachAt(text.substr(at), [&](const Token& token) { ids->insert(token.id); });
  }
}

void AddedTokens::Restrict(const absl::flat_hash_set<int32_t>& ids) {
  for (Token& token : tokens_) token.restricted |= ids.contains(token.id);
}

bool AddedTokens::has_restricted() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const Token& token) { return token.restricted; });
}

// A token that has been taken, in bytes of the text.
struct AddedTokens::Match {
  const Token* token;
  size_t content;  // where its content begins
  size_t begin;    // with the white space that it takes along
  size_t end;
};

// Takes tokens of one text from left to right.
class AddedTokens::Scanner {
 public:
  Scanner(const AddedTokens& tokens, std::string_view text, const ForeignRanges& foreign, bool straddle)
      : tokens_(tokens), text_(text), foreign_(foreign), straddle_(straddle) {}

  // Takes what is found in text[begin, end); restricted tokens only if `restricted`.
  void Search(size_t begin, size_t end, bool restricted) {
    for (size_t at = begin; at < end;) {
      const auto accepts = [&](const Token& token) {
        return token.restricted ? restricted : straddle_ || !foreign_.Straddles(at, at + token.content.size());
      };
      const auto [token, longest] = tokens_.LongestAt(text_.substr(at, end - at), accepts);
      const size_t longest_bytes = longest == nullptr ? 1 : longest->content.size();
      if (token != longest && !foreign_.Straddles(at, at + longest_bytes)) {
        at += longest_bytes;
      } else if (token == nullptr) {
        ++at;
      } else {
        // The search goes on behind the token even if it is not taken, as in Hugging Face's implementation.
        const size_t content = at;
        at += token->content.size();
        if (!token->single_word || !IsInsideWord(text_, content, at)) Take(*token, content, /*always=*/false);
      }
    }
  }

  // Takes a token, unless its content is white space all of which the token before took along; that, too, if `always`.
  void Take(const Token& token, size_t content, bool always) {
    const size_t taken = matches_.empty() ? 0 : matches_.back().end;
    Match match = {&token, content, content, content + token.content.size()};
    if (token.lstrip) {
      match.begin = content > taken ? content - TrailingSpaceBytes(text_.substr(taken, content - taken)) : taken;
    }
    if (token.rstrip && match.end < spaces_end_) {
      match.end = spaces_end_;
    } else if (token.rstrip) {
      match.end = spaces_end_ = match.end + LeadingSpaceBytes(text_.substr(match.end));
    }
    if (match.begin >= match.end) {
      if (!always) return;
      match.begin = content;
    }
    matches_.push_back(match);
  }

  const std::vector<Match>& matches() const { return matches_; }

 private:
  const AddedTokens& tokens_;
  const std::string_view text_;
  const ForeignRanges& foreign_;
  const bool straddle_;
  std::vector<Match> matches_;
  size_t spaces_end_ = 0;  // of the last white space that a token took along
};

void AddedTokens::Scan(std::string_view text, const ForeignRanges& foreign, bool straddle,
                       std::vector<AddedTokenSpan>* spans) const {
  Scanner scanner(*this, text, foreign, straddle);
  size_t searched = 0;
  if (!foreign.empty()) {
    for (const ForeignRanges::Range& range : foreign.Partition(text.size())) {
      if (range.foreign) continue;
      const ForeignRanges none;
      Scanner own(*this, text.substr(range.begin, range.end - range.begin), none, straddle);
      own.Search(0, range.end - range.begin, /*restricted=*/true);
      for (const Match& match : own.matches()) {
        if (!match.token->restricted) continue;
        const size_t content = range.begin + match.content;
        scanner.Search(searched, content, /*restricted=*/false);
        scanner.Take(*match.token, content, /*always=*/true);
        searched = content + match.token->content.size();
      }
    }
  }
  scanner.Search(searched, text.size(), /*restricted=*/foreign.empty());
  spans->clear();
  size_t taken = 0;
  for (const Match& match : scanner.matches()) {
    if (taken < match.begin) spans->push_back({-1, text.substr(taken, match.begin - taken)});
    spans->push_back({match.token->id, text.substr(match.begin, match.end - match.begin)});
    taken = match.end;
  }
  if (taken < text.size()) spans->push_back({-1, text.substr(taken)});
}

}  // namespace fastdecode
