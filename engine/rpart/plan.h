#ifndef FASTDECODE_ENGINE_RPART_PLAN_H_
#define FASTDECODE_ENGINE_RPART_PLAN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/rpart/sequence_table.h"
#include "kernels/attention.h"
#include "numa/cache_line.h"

namespace fastdecode {

// Entries of up to this many rows append and attend in one go; longer ones ("chunks") are cut into tiles of rows that
// all need all of the chunk's K and V, so these are appended first, and a barrier follows.
inline constexpr uint32_t kDecodeRowsMax = kMaxRowsOfHeads;

// One roster entry as one step sees it.
struct StepEntry {
  KvSequence* sequence = nullptr;  // null: unknown here, and then bad
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t first_position = 0;
  uint32_t write_from = 0;  // of this hop's layer: positions below are stored already
  bool bad = false;         // cannot be computed in this step: its rows' o are zero
  bool reported = false;    // the engine knows

  bool is_chunk() const { return rows > kDecodeRowsMax; }
  uint32_t end_position() const { return first_position + rows; }
};

// Attention of up to kMaxAttendRows rows of one entry, for some KV heads, over the blocks that they see, which are
// folded in ascending order. All heads at once where there are blocks enough for all threads: a page is then read from
// its first byte to its last. A chunk's tiles, which are bound by arithmetic, are for one head each.
struct Chain {
  uint32_t entry = 0;
  uint32_t tile_row = 0;     // of the entry
  uint32_t first_block = 0;  // of the sequence; blocks wholly before the sliding window are left out
  uint32_t blocks = 0;
  uint16_t first_head = 0;
  uint16_t heads = 0;
  uint16_t rows = 0;
  int32_t split = -1;  // index of its Split, if more than one thread works on it
};

// A chain that is cut over threads. Slot 0 is what the first thread folded; each later block has a slot of its own. The
// thread that finishes last folds the slots in ascending order: the same operations as one thread does.
struct alignas(kCacheLineBytes) Split {
  std::atomic<uint32_t> unfinished{0};  // threads; the last one sets it to `pieces` again
  uint32_t pieces = 0;
  uint32_t first_piece_blocks = 0;
  size_t first_slot_floats = 0;  // in the partial workspace
  uint32_t slots(const Chain& chain) const { return 1 + chain.blocks - first_piece_blocks; }
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

// Bounds of a plan; all memory follows from them.
struct PlanLimits {
  uint32_t max_rows = 0;
  int threads = 1;
  size_t partial_floats = 0;  // of the workspace
};

// Floats of one slot: max, sum and acc of `rows` rows of `heads` KV heads, each part padded to whole cache lines.
size_t PartialFloats(const AttentionShape& shape, uint32_t heads, uint32_t rows);
// Of the largest chain that a plan makes.
size_t PartialFloatsMax(const AttentionShape& shape);
// The view of a slot that starts at `floats`.
Partial PartialAt(const AttentionShape& shape, uint32_t heads, uint32_t rows, float* floats);
// Workspace for a team: what cutting the longest context at every thread's end needs, one row at a time, within reason.
// A plan that would need more leaves chains whole, which changes no bit of the result.
size_t PartialWorkspaceFloats(const AttentionShape& shape, int threads, uint32_t max_context);

// Who does what in the hops of one step of one micro-batch; the same for every layer. The chains, in roster order, are
// one long row of blocks, cut at block boundaries into one range a thread, equal in cost. Thread: built by the leader;
// read by the team. Only a Split's count changes meanwhile. Bounded: by PlanLimits; Build allocates nothing.
class HopPlan {
 public:
  HopPlan(const AttentionShape& shape, const PlanLimits& limits);

  // Entries that are bad get no chain.
  void Build(std::span<const StepEntry> entries);

  std::span<const Chain> chains() const { return chains_; }
  // Thread t works from cut(t) up to cut(t + 1).
  const PlanCut& cut(int thread) const { return cuts_[static_cast<size_t>(thread)]; }
  std::span<const AppendRun> append_runs() const { return append_runs_; }  // of chunks, all KV heads each
  Split& split(int32_t index) { return splits_[static_cast<size_t>(index)]; }
  uint32_t split_count() const { return split_count_; }
  // Stored KV bytes that the step's rows attend to in one layer, each counted once.
  uint64_t kv_bytes() const { return kv_bytes_; }

 private:
  void AddEntry(std::span<const StepEntry> entries, uint32_t index, uint32_t heads);
  void AddChains(const StepEntry& entry, uint32_t index, uint32_t tile_row, uint32_t rows, uint32_t heads);
  uint32_t HeadsOfAChain(std::span<const StepEntry> entries) const;
  uint32_t FirstSeenBlock(uint32_t position) const;
  uint64_t CostPerToken(const Chain& chain) const;
  uint64_t Cost(const Chain& chain, const StepEntry& entry) const;
  void CutOverThreads(std::span<const StepEntry> entries);
  PlanCut CutAt(uint32_t chain, uint64_t cost_before, uint64_t chain_cost);
  bool SplitChain(uint32_t chain, uint32_t block);

  // Constant after construction.
  const AttentionShape shape_;
  const PlanLimits limits_;

  std::vector<Chain> chains_;
  std::vector<AppendRun> append_runs_;
  std::vector<PlanCut> cuts_;        // [threads + 1]
  std::unique_ptr<Split[]> splits_;  // [threads]
  uint32_t split_count_ = 0;
  uint32_t last_split_block_ = 0;  // of the chain that was split last
  size_t used_floats_ = 0;
  uint64_t kv_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PLAN_H_
