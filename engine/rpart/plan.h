// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_RPART_PLAN_H_
#define FASTDECODE_ENGINE_RPART_PLAN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/rpart/shared_prefixes.h"
#include "engine/rpart/step_entry.h"
#include "kernels/attention.h"
#include "numa/cache_line.h"

namespace fastdecode {

// Attention of some rows, for some KV heads, over the blocks that they see, which are folded in ascending order. All
// heads at once where there are blocks enough for all threads: a page is then read from its first byte to its last. A
// chunk's tiles, which are bound by arithmetic, are for one head each, and all of a head's come one after the other:
// its K and V then stay in a cache of the thread's own.
// The rows are up to kMaxAttendRows of one entry, or PlanLimits::prompt_rows of a chunk of a prompt; or those of
// several entries, over the blocks that their sequences share (a shared chain: up to kSharedRowsMax rows of one head,
// kMaxRowsOfHeads of several). What it has folded is where these entries' own chains go on.
struct Chain {
  uint32_t entry = 0;           // whose pages
  uint32_t tile_row = 0;        // of the entry; not of a shared chain
  uint32_t first_position = 0;  // of its first row; of a shared chain the first one behind its blocks
  uint32_t first_block = 0;     // of the sequence; blocks wholly before the sliding window are left out
  uint32_t blocks = 0;
  uint32_t tokens = 0;  // in its blocks
  uint16_t first_head = 0;
  uint16_t heads = 0;
  uint16_t rows = 0;
  bool of_prompt = false;     // its entry is
  bool goes_on = false;       // from what shared chains leave in slot 0 of its Split
  int32_t split = -1;         // index of its Split, if more than one thread works on it, or if it goes on
  uint32_t first_sharer = 0;  // of a shared chain, in sharers(chain)
  uint32_t sharers = 0;
};

// An entry whose rows a shared chain carries.
struct Sharer {
  uint32_t entry = 0;
  uint32_t first_row = 0;    // its first one's number in the shared chain
  uint32_t first_chain = 0;  // its own chains
  uint32_t chains = 0;
};

// A chain whose partials come from several hands: cut over threads, or begun by shared chains. Slot 0 is what the first
// thread folded, or the shared chains; each block that they did not has a slot of its own. Who finishes last folds the
// slots in ascending order: the same operations as one thread does.
struct alignas(kCacheLineBytes) Split {
  std::atomic<uint32_t> unfinished{0};  // pieces; who finishes the last one sets it to `pieces` again
  uint32_t pieces = 0;                  // threads that work on it, and shared chains that it goes on from
  uint32_t folded_blocks = 0;           // that have no slot
  size_t first_slot_floats = 0;         // in the partial workspace
  uint32_t slots(const Chain& chain) const { return 1 + chain.blocks - folded_blocks; }
};

// A place in the sequence of all blocks of all chains.
struct PlanCut {
  uint32_t chain = 0;
  uint32_t block = 0;  // of the chain, < its blocks
  friend auto operator<=>(const PlanCut&, const PlanCut&) = default;
};

// A page into which a chunk's rows are appended, by whoever it is given to.
struct AppendRun {
  uint32_t entry = 0;
  uint32_t page_index = 0;  // of the sequence
};

// Bounds of a plan; all memory follows from them. Where the workspace has no room, chains stay whole and entries read
// all of their blocks themselves, which changes no bit of the result.
struct PlanLimits {
  uint32_t max_rows = 0;
  int threads = 1;
  size_t cut_floats = 0;                  // of the workspace, for chains that are cut over threads
  size_t shared_floats = 0;               // behind them, for chains that go on from shared ones
  AttendCost cost = {};                   // of the kernels
  AttendCost prompt_cost = {};            // of those for rows of prompts
  uint32_t prompt_rows = kMaxAttendRows;  // of a prompt's tile, at most
  size_t workspace_floats() const { return cut_floats + shared_floats; }
};

// What cutting the longest context at every thread's end needs, one row at a time, and what each row needs to go on
// from a shared chain for some blocks, within reason.
PlanLimits PlanLimitsFor(const AttentionShape& shape, uint32_t max_rows, int threads, uint32_t max_context,
                         const AttentionKernels& kernels = {});

// Floats of one slot: max, sum and acc of `rows` rows of `heads` KV heads, each part padded to whole cache lines.
size_t PartialFloats(const AttentionShape& shape, uint32_t heads, uint32_t rows);
// Of the largest chain that a plan makes.
size_t PartialFloatsMax(const AttentionShape& shape);
// Of open pages that a tile's rows are in, at most.
inline size_t OpenPagesMax(const AttentionShape& shape) {
  return HasOpenPages(shape) ? static_cast<size_t>(MaxPromptRows(shape) / kPageTokens) : 0;
}
// Of the q of the largest shared chain that a plan makes.
size_t SharedQueryBytesMax(const AttentionShape& shape);
// The view of a slot that starts at `floats`.
Partial PartialAt(const AttentionShape& shape, uint32_t heads, uint32_t rows, float* floats);

// Who does what in the hops of one step of one micro-batch, in all layers that see as much. The chains (of each group
// of entries with a shared prefix the shared ones, then their own; then of the others, in roster order) are one long
// row of blocks, cut at block boundaries into one range a thread, equal in cost. Thread: built by the leader; read by
// the team. Only a Split's count changes meanwhile. Bounded: by PlanLimits; Build allocates nothing.
class HopPlan {
 public:
  HopPlan(const AttentionShape& shape, const PlanLimits& limits);

  // Entries that are bad get no chain. With a sliding window nothing is shared.
  void Build(std::span<const StepEntry> entries);

  std::span<const Chain> chains() const { return chains_; }
  std::span<const Sharer> sharers(const Chain& chain) const {
    return std::span(sharers_).subspan(chain.first_sharer, chain.sharers);
  }
  // Thread t works from cut(t) up to cut(t + 1).
  const PlanCut& cut(int thread) const { return cuts_[static_cast<size_t>(thread)]; }
  std::span<const AppendRun> append_runs() const { return append_runs_; }  // of chunks, all KV heads each
  Split& split(int32_t index) { return splits_[static_cast<size_t>(index)]; }
  uint32_t split_count() const { return split_count_; }
  // Stored KV bytes that the step's rows attend to in one layer, each counted once: also what several sequences share,
  // in whole blocks and without a sliding window, whether or not it is read once.
  uint64_t kv_bytes() const { return kv_bytes_; }

 private:
  uint32_t HeadsOfAChain(std::span<const StepEntry> entries) const;
  uint32_t FirstSeenBlock(uint32_t position) const;
  uint32_t HeadsOf(uint32_t rows) const;
  uint32_t PromptTileRows(std::span<const StepEntry> entries) const;
  uint64_t DistinctKvBytes(std::span<const StepEntry> entries) const;
  void AddGroup(std::span<const StepEntry> entries, const PrefixGroup& group);
  uint32_t TakeSharers(std::span<const StepEntry> entries, const PrefixGroup& group);
  size_t GoOnFloats(uint32_t heads, const Chain& chain) const;
  void GoOnFrom(uint32_t shared_heads, Chain* chain);
  void AddEntry(const StepEntry& entry, uint32_t index);
  void AddChains(Chain chain, uint32_t heads);
  uint64_t CostPerToken(const Chain& chain) const;
  uint64_t Cost(const Chain& chain) const;
  void CutOverThreads();
  PlanCut CutAt(uint32_t chain, uint64_t cost_before, const PlanCut& last);
  bool SplitChain(const PlanCut& cut);

  // Constant after construction.
  const AttentionShape shape_;
  const PlanLimits limits_;

  SharedPrefixes prefixes_;
  std::vector<Chain> chains_;
  std::vector<Sharer> sharers_;
  std::vector<bool> shares_;  // [entry], in a group whose chains are made
  std::vector<AppendRun> append_runs_;
  std::vector<PlanCut> cuts_;        // [threads + 1]
  std::unique_ptr<Split[]> splits_;  // [splits_max_]
  size_t splits_max_ = 0;
  uint32_t heads_ = 0;  // of a chain of one row
  uint32_t prompt_tile_rows_ = 0;
  uint32_t split_count_ = 0;
  size_t used_cut_floats_ = 0;
  size_t used_shared_floats_ = 0;
  uint64_t kv_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PLAN_H_
