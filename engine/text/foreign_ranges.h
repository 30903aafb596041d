#ifndef FASTDECODE_ENGINE_TEXT_FOREIGN_RANGES_H_
#define FASTDECODE_ENGINE_TEXT_FOREIGN_RANGES_H_

#include <cstddef>
#include <vector>

namespace fastdecode {

// Which characters of a text are foreign: they come from somebody who must not be able to write special tokens, such
// as the user of a chat. The others are the text's own, such as a chat template's.
class ForeignRanges {
 public:
  // Bytes of the text: whole characters.
  struct Range {
    size_t begin;
    size_t end;
    bool foreign;
  };

  bool empty() const { return ranges_.empty(); }

  // Does nothing if the range is empty. REQUIRES: no range before ends after `begin`.
  void Add(size_t begin, size_t end);

  // Whether a character of [begin, end) is foreign, whether all are, and whether some are and some are not.
  // REQUIRES: begin < end.
  bool Touches(size_t begin, size_t end) const;
  bool Covers(size_t begin, size_t end) const;
  bool Straddles(size_t begin, size_t end) const { return Touches(begin, end) && !Covers(begin, end); }

  // The ranges of that part of the text, counted from `begin`.
  ForeignRanges Within(size_t begin, size_t end) const;

  // The whole text in order, foreign ranges and own ones by turns. None is empty.
  std::vector<Range> Partition(size_t text_bytes) const;

 private:
  // The first range that ends after `position`.
  std::vector<Range>::const_iterator EndsAfter(size_t position) const;

  std::vector<Range> ranges_;  // the foreign ones: ascending, with own characters between them
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_FOREIGN_RANGES_H_
