#include "engine/text/token_splits.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace fastdecode {
namespace {

struct SortKey {
  uint64_t head;  // the first 8 bytes, so that most comparisons look at no text
  int32_t token;
};

uint64_t Head(std::string_view text) {
  uint64_t head = 0;
  for (size_t i = 0; i < 8; ++i) head = head << 8 | (i < text.size() ? static_cast<uint8_t>(text[i]) : 0u);
  return head;
}

// For each token the longest other token that it begins with, or -1.
std::vector<int32_t> LongestPrefixes(std::span<const std::string_view> tokens) {
  std::vector<SortKey> order;
  order.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].empty()) order.push_back({Head(tokens[i]), static_cast<int32_t>(i)});
  }
  std::sort(order.begin(), order.end(), [&](const SortKey& a, const SortKey& b) {
    return a.head != b.head ? a.head < b.head : tokens[a.token] < tokens[b.token];
  });
  std::vector<int32_t> prefixes(tokens.size(), -1);
  std::vector<int32_t> open;  // the tokens that the last one begins with, and the last one
  for (const auto& [head, token] : order) {
    while (!open.empty() && !tokens[token].starts_with(tokens[open.back()])) open.pop_back();
    if (!open.empty()) prefixes[token] = open.back();
    open.push_back(token);
  }
  return prefixes;
}

std::vector<int32_t> LongestSuffixes(std::span<const std::string_view> tokens) {
  std::vector<std::string> reversed;
  reversed.reserve(tokens.size());
  for (const std::string_view token : tokens) reversed.emplace_back(token.rbegin(), token.rend());
  const std::vector<std::string_view> views(reversed.begin(), reversed.end());
  return LongestPrefixes(views);
}

}  // namespace

std::optional<std::vector<BpeMerge>> FindTokenSplits(std::span<const std::string_view> tokens, size_t splits_max) {
  const std::vector<int32_t> prefixes = LongestPrefixes(tokens);
  const std::vector<int32_t> suffixes = LongestSuffixes(tokens);
  std::vector<BpeMerge> splits;
  std::vector<int32_t> ends;  // of one token, the longest first
  for (size_t token = 0; token < tokens.size(); ++token) {
    const size_t first = splits.size();
    ends.clear();
    for (int32_t end = suffixes[token]; end >= 0; end = suffixes[end]) ends.push_back(end);
    for (int32_t left = prefixes[token]; left >= 0; left = prefixes[left]) {
      const size_t wanted = tokens[token].size() - tokens[left].size();
      while (!ends.empty() && tokens[ends.back()].size() < wanted) ends.pop_back();
      if (ends.empty()) break;
      if (tokens[ends.back()].size() == wanted) splits.push_back({left, ends.back(), static_cast<int32_t>(token)});
    }
    if (splits.size() > splits_max) return std::nullopt;
    std::sort(splits.begin() + static_cast<std::ptrdiff_t>(first), splits.end(),
              [](const BpeMerge& a, const BpeMerge& b) { return a.left < b.left; });
  }
  return splits;
}

}  // namespace fastdecode
