#include "engine/text/foreign_ranges.h"

#include <algorithm>

namespace fastdecode {

void ForeignRanges::Add(size_t begin, size_t end) {
  if (begin == end) return;
  if (!ranges_.empty() && ranges_.back().end == begin) {
    ranges_.back().end = end;
  } else {
    ranges_.push_back({begin, end, true});
  }
}

std::vector<ForeignRanges::Range>::const_iterator ForeignRanges::EndsAfter(size_t position) const {
  return std::upper_bound(ranges_.begin(), ranges_.end(), position,
                          [](size_t at, const Range& range) { return at < range.end; });
}

bool ForeignRanges::Touches(size_t begin, size_t end) const {
  const auto range = EndsAfter(begin);
  return range != ranges_.end() && range->begin < end;
}

bool ForeignRanges::Covers(size_t begin, size_t end) const {
  const auto range = EndsAfter(begin);
  return range != ranges_.end() && range->begin <= begin && end <= range->end;
}

ForeignRanges ForeignRanges::Within(size_t begin, size_t end) const {
  ForeignRanges within;
  for (auto range = EndsAfter(begin); range != ranges_.end() && range->begin < end; ++range) {
    within.Add(std::max(range->begin, begin) - begin, std::min(range->end, end) - begin);
  }
  return within;
}

std::vector<ForeignRanges::Range> ForeignRanges::Partition(size_t text_bytes) const {
  std::vector<Range> partition;
  size_t done = 0;
  for (const Range& range : ranges_) {
    if (done < range.begin) partition.push_back({done, range.begin, false});
    partition.push_back(range);
    done = range.end;
  }
  if (done < text_bytes) partition.push_back({done, text_bytes, false});
  return partition;
}

}  // namespace fastdecode
