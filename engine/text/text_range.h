#ifndef FASTDECODE_ENGINE_TEXT_TEXT_RANGE_H_
#define FASTDECODE_ENGINE_TEXT_TEXT_RANGE_H_

#include <cstddef>
#include <vector>

namespace fastdecode {

// Bytes of a text. The layout is public (fd_text_range).
struct TextRange {
  size_t begin;
  size_t end;
  bool operator==(const TextRange&) const = default;
};

// Appends a range that does not begin before the last one ends: to that one where they touch. An empty one is none.
inline void AddRange(TextRange range, std::vector<TextRange>* ranges) {
  if (range.begin == range.end) return;
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TEXT_RANGE_H_
