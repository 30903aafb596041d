// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_RPART_SHARED_PREFIXES_H_
#define FASTDECODE_ENGINE_RPART_SHARED_PREFIXES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/rpart/step_entry.h"

namespace fastdecode {

// Rows of a group at most: one call of a kernel for a block of one head.
inline constexpr uint32_t kSharedRowsMax = kMaxAttendRows;

// Entries whose sequences begin with the same blocks.
struct PrefixGroup {
  uint32_t first = 0;  // in the order of members
  uint32_t count = 0;  // at least 2
  uint32_t blocks = 0;
};

// Finds which decode entries of a step, none of them a prompt's, begin with the same pages, block by block as far as
// nobody writes: what lies before an entry's first row. Entries are sorted by their page tables, so that neighbours
// have most in common; of all ways to group neighbours, of up to kSharedRowsMax rows a group, one is taken that saves
// the most reads of blocks. A group shares what all of its members have in common: of a prefix within a prefix one of
// the two.
// Thread: the team's leader. Bounded: by max_rows; Find allocates nothing. In time by the page tables' shared parts
// times the logarithm of the entries, without any a few comparisons an entry.
class SharedPrefixes {
 public:
  explicit SharedPrefixes(uint32_t max_rows);

  void Find(std::span<const StepEntry> entries);
  // Nothing is shared.
  void Clear();

  std::span<const PrefixGroup> groups() const { return groups_; }
  // Entry number `i` of a group.
  uint32_t member(const PrefixGroup& group, uint32_t i) const { return sorted_[group.first + i].entry; }
  // Blocks of these entries that another one has, too, less one time each: grouped or not.
  uint64_t repeated_blocks() const { return repeated_blocks_; }

 private:
  struct Candidate {
    const PageId* pages;
    uint32_t blocks;
    uint32_t entry;
    uint32_t rows;
    uint32_t common_blocks;  // with the one before
    // Of the candidates up to and with this one:
    uint64_t saved_blocks;  // by the best grouping
    uint32_t last_count;    // in that, members of the last group, 1: this one is alone
  };

  static bool Before(const Candidate& a, const Candidate& b);
  static uint32_t CommonBlocks(const Candidate& a, const Candidate& b);
  void FindBestGrouping();

  std::vector<Candidate> sorted_;
  std::vector<PrefixGroup> groups_;
  uint64_t repeated_blocks_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_SHARED_PREFIXES_H_
