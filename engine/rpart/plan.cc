#include "engine/rpart/plan.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {

namespace {

// Cost is in eighths of "reading one token's K and V of one head". Up to 8 row-heads (rows * group) the memory is what
// takes time, above that the arithmetic: a core reads some 15-27 GB/s and does some 100-235 GFLOP/s in the kernel's
// inner loops, which is about 8 flop a byte, and a row-head needs 1 flop a byte (bf16).
constexpr uint64_t kRowHeadsPerRead = 8;
// What a chain costs besides its tokens (query, merge, finish), in tokens.
constexpr uint64_t kChainTokens = 24;
// Blocks a thread that let a chain take all KV heads: cuts lie at blocks, so that threads differ by half of one.
constexpr uint64_t kBlocksOfAThread = 8;

constexpr size_t kLineFloats = kCacheLineBytes / sizeof(float);
constexpr size_t kWorkspaceFloatsMax = (size_t{256} << 20) / sizeof(float);

size_t RoundUpToLine(size_t floats) { return (floats + kLineFloats - 1) / kLineFloats * kLineFloats; }

uint32_t BlocksOf(uint32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

size_t PartialFloats(const AttentionShape& shape, uint32_t heads, uint32_t rows) {
  const size_t row_heads = size_t{heads} * rows * static_cast<size_t>(shape.group);
  return 2 * RoundUpToLine(row_heads) + RoundUpToLine(row_heads * static_cast<size_t>(shape.head_dim));
}

size_t PartialFloatsMax(const AttentionShape& shape) {
  return std::max(PartialFloats(shape, static_cast<uint32_t>(shape.kv_heads), kDecodeRowsMax),
                  PartialFloats(shape, 1, kMaxAttendRows));
}

Partial PartialAt(const AttentionShape& shape, uint32_t heads, uint32_t rows, float* floats) {
  const size_t padded = RoundUpToLine(size_t{heads} * rows * static_cast<size_t>(shape.group));
  return Partial{floats, floats + padded, floats + 2 * padded};
}

size_t PartialWorkspaceFloats(const AttentionShape& shape, int threads, uint32_t max_context) {
  const size_t cuts = static_cast<size_t>(threads) - 1;
  const size_t block_floats = PartialFloats(shape, static_cast<uint32_t>(shape.kv_heads), 1);
  const size_t wanted = cuts * (BlocksOf(max_context) * block_floats + PartialFloatsMax(shape));
  return std::min(wanted, kWorkspaceFloatsMax);
}

HopPlan::HopPlan(const AttentionShape& shape, const PlanLimits& limits) : shape_(shape), limits_(limits) {
  FD_CHECK(limits.threads >= 1, "a plan is for at least one thread");
  // Each chain has a row of its own for its KV head, and so has each page that a chunk is appended to.
  chains_.reserve(limits.max_rows * static_cast<size_t>(shape.kv_heads));
  append_runs_.reserve(limits.max_rows);
  cuts_.resize(static_cast<size_t>(limits.threads) + 1);
  splits_ = std::make_unique<Split[]>(static_cast<size_t>(limits.threads));
}

void HopPlan::Build(std::span<const StepEntry> entries) {
  chains_.clear();
  append_runs_.clear();
  split_count_ = 0;
  used_floats_ = 0;
  kv_bytes_ = 0;
  const uint32_t heads = HeadsOfAChain(entries);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].bad) AddEntry(entries, i, heads);
  }
  CutOverThreads(entries);
}

// Of a row at `position`.
uint32_t HopPlan::FirstSeenBlock(uint32_t position) const {
  const uint32_t window = static_cast<uint32_t>(shape_.sliding_window);
  return window > 0 && position >= window ? (position - window + 1) / kBlockTokens : 0;
}

// KV heads of a chain of an entry that is no chunk: fewer than all where the blocks are too few to be shared out
// fairly.
uint32_t HopPlan::HeadsOfAChain(std::span<const StepEntry> entries) const {
  const uint64_t kv_heads = static_cast<uint64_t>(shape_.kv_heads);
  uint64_t blocks = 0;
  for (const StepEntry& entry : entries) {
    if (!entry.bad) blocks += BlocksOf(entry.end_position()) - FirstSeenBlock(entry.first_position);
  }
  const uint64_t wanted = limits_.threads == 1 ? 1 : kBlocksOfAThread * static_cast<uint64_t>(limits_.threads);
  const uint64_t parts = blocks == 0 ? 1 : std::min(kv_heads, (wanted + blocks - 1) / blocks);
  return static_cast<uint32_t>((kv_heads + parts - 1) / parts);
}

void HopPlan::AddEntry(std::span<const StepEntry> entries, uint32_t index, uint32_t heads) {
  const StepEntry& entry = entries[index];
  const size_t first_chain = chains_.size();
  if (!entry.is_chunk()) {
    // With more rows fewer heads: the workspace is made for one row of all heads.
    AddChains(entry, index, 0, entry.rows, std::max(1u, heads / entry.rows));
  } else {
    for (uint32_t page = entry.first_position / kPageTokens; page * kPageTokens < entry.end_position(); ++page) {
      append_runs_.push_back({index, page});
    }
    for (uint32_t row = 0; row < entry.rows; row += kMaxAttendRows) {
      AddChains(entry, index, row, std::min<uint32_t>(kMaxAttendRows, entry.rows - row), 1);
    }
  }
  // What its first row's window leaves out, no row sees.
  const uint64_t tokens = entry.end_position() - chains_[first_chain].first_block * kBlockTokens;
  kv_bytes_ += tokens * PageBytes(shape_) / kPageTokens;
}

// Chains for the rows [tile_row, tile_row + rows) of an entry, each for `heads` KV heads, the last one for what is
// left.
void HopPlan::AddChains(const StepEntry& entry, uint32_t index, uint32_t tile_row, uint32_t rows, uint32_t heads) {
  const uint32_t position = entry.first_position + tile_row;
  Chain chain;
  chain.entry = index;
  chain.tile_row = tile_row;
  chain.rows = static_cast<uint16_t>(rows);
  chain.first_block = FirstSeenBlock(position);
  chain.blocks = BlocksOf(position + rows) - chain.first_block;
  const uint32_t kv_heads = static_cast<uint32_t>(shape_.kv_heads);
  for (uint32_t head = 0; head < kv_heads; head += heads) {
    chain.first_head = static_cast<uint16_t>(head);
    chain.heads = static_cast<uint16_t>(std::min(heads, kv_heads - head));
    chains_.push_back(chain);
  }
}

uint64_t HopPlan::CostPerToken(const Chain& chain) const {
  return chain.heads * std::max(kRowHeadsPerRead, uint64_t{chain.rows} * static_cast<uint64_t>(shape_.group));
}

uint64_t HopPlan::Cost(const Chain& chain, const StepEntry& entry) const {
  const uint64_t end = entry.first_position + chain.tile_row + chain.rows;
  return (end - chain.first_block * kBlockTokens + kChainTokens) * CostPerToken(chain);
}

void HopPlan::CutOverThreads(std::span<const StepEntry> entries) {
  const uint64_t threads = static_cast<uint64_t>(limits_.threads);
  uint64_t total = 0;
  for (const Chain& chain : chains_) total += Cost(chain, entries[chain.entry]);

  cuts_[0] = {0, 0};
  uint64_t thread = 1, before = 0;
  for (uint32_t i = 0; i < chains_.size(); ++i) {
    const uint64_t cost = Cost(chains_[i], entries[chains_[i].entry]);
    for (; thread < threads && total * thread / threads < before + cost; ++thread) {
      const PlanCut& last = cuts_[thread - 1];
      cuts_[thread] = last.chain > i ? last : CutAt(i, total * thread / threads - before, cost);
    }
    before += cost;
  }
  for (; thread <= threads; ++thread) cuts_[thread] = {static_cast<uint32_t>(chains_.size()), 0};
}

// The block boundary of the chain next to the point that has cost_before of the chain's cost on its left, if the chain
// can be split there, else the nearer of its ends.
PlanCut HopPlan::CutAt(uint32_t chain, uint64_t cost_before, uint64_t chain_cost) {
  const Chain& c = chains_[chain];
  const uint64_t block_cost = kBlockTokens * CostPerToken(c);
  const uint64_t block = std::min<uint64_t>(c.blocks, (cost_before + block_cost / 2) / block_cost);
  if (block > 0 && block < c.blocks && SplitChain(chain, static_cast<uint32_t>(block))) {
    return {chain, static_cast<uint32_t>(block)};
  }
  return cost_before < chain_cost / 2 ? PlanCut{chain, 0} : PlanCut{chain + 1, 0};
}

// Has a piece of the chain begin at `block`. False if the workspace has no room for its partials. REQUIRES: cuts come
// in ascending order.
bool HopPlan::SplitChain(uint32_t chain, uint32_t block) {
  Chain& c = chains_[chain];
  if (c.split < 0) {
    const size_t floats = PartialFloats(shape_, c.heads, c.rows) * (1 + size_t{c.blocks} - block);
    if (floats > limits_.partial_floats - used_floats_) return false;
    c.split = static_cast<int32_t>(split_count_++);
    Split& split = splits_[static_cast<size_t>(c.split)];
    split.pieces = 1;
    split.first_piece_blocks = block;
    split.first_slot_floats = used_floats_;
    used_floats_ += floats;
    last_split_block_ = 0;
  }
  Split& split = splits_[static_cast<size_t>(c.split)];
  if (block != last_split_block_) ++split.pieces;
  last_split_block_ = block;
  // Relaxed: the team's ticket publishes it.
  split.unfinished.store(split.pieces, std::memory_order_relaxed);
  return true;
}

}  // namespace fastdecode
