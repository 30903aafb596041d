// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/shared_prefixes.h"

#include <algorithm>
#include <cstring>

namespace fastdecode {

namespace {

constexpr size_t kBlockIdBytes = kBlockPages * sizeof(PageId);

}  // namespace

SharedPrefixes::SharedPrefixes(uint32_t max_rows) {
  sorted_.reserve(max_rows);  // at start
  groups_.reserve(max_rows / 2);  // at start
}

void SharedPrefixes::Clear() {
  sorted_.clear();
  groups_.clear();
  repeated_blocks_ = 0;
}

void SharedPrefixes::Find(std::span<const StepEntry> entries) {
  Clear();
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    const uint32_t blocks = entry.first_position / kBlockTokens;
    if (entry.bad || entry.is_chunk() || entry.of_prompt || blocks == 0) continue;
    sorted_.push_back({entry.sequence->pages.data(), blocks, i, entry.rows, 0, 0, 1});  // reserved
  }
  std::sort(sorted_.begin(), sorted_.end(), Before);
  for (size_t i = 1; i < sorted_.size(); ++i) {
    sorted_[i].common_blocks = CommonBlocks(sorted_[i - 1], sorted_[i]);
    repeated_blocks_ += sorted_[i].common_blocks;
  }
  FindBestGrouping();
}

// By page table; which of two page numbers comes first does not matter.
bool SharedPrefixes::Before(const Candidate& a, const Candidate& b) {
  const int order = std::memcmp(a.pages, b.pages, std::min(a.blocks, b.blocks) * kBlockIdBytes);
  if (order != 0) return order < 0;
  return a.blocks != b.blocks ? a.blocks < b.blocks : a.entry < b.entry;
}

uint32_t SharedPrefixes::CommonBlocks(const Candidate& a, const Candidate& b) {
  const uint32_t most = std::min(a.blocks, b.blocks);
  uint32_t common = 0;
  while (common < most &&
         std::memcmp(a.pages + common * kBlockPages, b.pages + common * kBlockPages, kBlockIdBytes) == 0) {
    ++common;
  }
  return common;
}

// The best grouping up to a candidate has it alone, or in a last group with some before it, and the best grouping of
// those before that.
void SharedPrefixes::FindBestGrouping() {
  for (size_t end = 1; end < sorted_.size(); ++end) {
    Candidate& last = sorted_[end];
    last.saved_blocks = sorted_[end - 1].saved_blocks;
    uint32_t rows = last.rows, common = UINT32_MAX;
    for (size_t first = end; first-- > 0;) {
      common = std::min(common, sorted_[first + 1].common_blocks);
      rows += sorted_[first].rows;
      if (common == 0 || rows > kSharedRowsMax) break;
      const uint64_t before = first > 0 ? sorted_[first - 1].saved_blocks : 0;
      const uint64_t saved = before + (end - first) * uint64_t{common};
      if (saved <= last.saved_blocks) continue;
      last.saved_blocks = saved;
      last.last_count = static_cast<uint32_t>(end - first + 1);
    }
  }
  for (size_t end = sorted_.size(); end > 0; end -= sorted_[end - 1].last_count) {
    PrefixGroup group = {0, sorted_[end - 1].last_count, UINT32_MAX};
    if (group.count == 1) continue;
    group.first = static_cast<uint32_t>(end) - group.count;
    for (size_t i = group.first + 1; i < end; ++i) group.blocks = std::min(group.blocks, sorted_[i].common_blocks);
    groups_.push_back(group);  // reserved
  }
}

}  // namespace fastdecode
