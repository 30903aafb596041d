// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/plan.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {

namespace {

// What a chain costs besides its tokens (query, merge, finish), in tokens.
constexpr uint64_t kChainTokens = 24;
// Blocks a thread that let a chain take all KV heads, and of prompts' tiles as many as the largest one, that let them
// have more rows: cuts lie between those, so that threads differ by half of one.
constexpr uint64_t kPiecesOfAThread = 8;

constexpr size_t kLineFloats = kCacheLineBytes / sizeof(float);
// Of the workspace, for cuts as for shared prefixes.
constexpr size_t kWorkspaceFloatsMax = (size_t{256} << 20) / sizeof(float);
// Slots for each row of a step that may go on from a shared chain. A step has more rows than entries that share, and
// most of these are short behind what they share: there it pays most.
constexpr size_t kSharedSlotsOfARow = 4;
// Blocks of its own that an entry may have for each shared one. Each costs a slot, to be written and read: one to three
// hundredths of the block itself (4 to 8 query heads a KV head, bf16). With more there is little to be won.
constexpr uint32_t kOwnBlocksOfAShared = 16;
// Chains that go on from shared ones.
constexpr size_t kSharedSplitsMax = 16384;

size_t RoundUpToLine(size_t floats) { return (floats + kLineFloats - 1) / kLineFloats * kLineFloats; }

uint32_t BlocksOf(uint32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// The chain of the rows [tile_row, tile_row + rows) of an entry from `first_block` on; of which heads is still open.
Chain ChainOf(const StepEntry& entry, uint32_t index, uint32_t tile_row, uint32_t rows, uint32_t first_block) {
  Chain chain;
  chain.entry = index;
  chain.tile_row = tile_row;
  chain.first_position = entry.first_position + tile_row;
  chain.first_block = first_block;
  chain.tokens = chain.first_position + rows - first_block * kBlockTokens;
  chain.blocks = BlocksOf(chain.tokens);
  chain.rows = static_cast<uint16_t>(rows);
  chain.of_prompt = entry.of_prompt;
  return chain;
}

}  // namespace

size_t PartialFloats(const AttentionShape& shape, uint32_t heads, uint32_t rows) {
  const size_t row_heads = size_t{heads} * rows * static_cast<size_t>(shape.group);
  return 2 * RoundUpToLine(row_heads) + RoundUpToLine(row_heads * static_cast<size_t>(shape.head_dim));
}

size_t PartialFloatsMax(const AttentionShape& shape) {
  return std::max({PartialFloats(shape, static_cast<uint32_t>(shape.kv_heads), kDecodeRowsMax),
                   PartialFloats(shape, 1, static_cast<uint32_t>(MaxPromptRows(shape))),
                   PartialFloats(shape, 1, kSharedRowsMax)});
}

size_t SharedQueryBytesMax(const AttentionShape& shape) {
  const size_t row_heads = std::max<size_t>(kSharedRowsMax, static_cast<size_t>(shape.kv_heads));
  return row_heads * static_cast<size_t>(shape.group * shape.head_dim) * ElementBytes(shape.type);
}

Partial PartialAt(const AttentionShape& shape, uint32_t heads, uint32_t rows, float* floats) {
  const size_t padded = RoundUpToLine(size_t{heads} * rows * static_cast<size_t>(shape.group));
  return Partial{floats, floats + padded, floats + 2 * padded};
}

PlanLimits PlanLimitsFor(const AttentionShape& shape, uint32_t max_rows, int threads, uint32_t max_context,
                         const AttentionKernels& kernels) {
  const size_t cuts = static_cast<size_t>(threads) - 1;
  const size_t block_floats = PartialFloats(shape, static_cast<uint32_t>(shape.kv_heads), 1);
  PlanLimits limits = {max_rows, threads};
  limits.cost = kernels.CostFor(false);
  limits.prompt_cost = kernels.CostFor(true);
  if (kernels.many_prompt_rows) limits.prompt_rows = static_cast<uint32_t>(MaxPromptRows(shape));
  limits.cut_floats =
      std::min(cuts * (BlocksOf(max_context) * block_floats + PartialFloatsMax(shape)), kWorkspaceFloatsMax);
  // Without a whole block before a row there is nothing to share, and a window leaves it out.
  if (max_context > kBlockTokens && shape.sliding_window == 0) {
    limits.shared_floats = std::min(max_rows * kSharedSlotsOfARow * block_floats, kWorkspaceFloatsMax);
  }
  return limits;
}

HopPlan::HopPlan(const AttentionShape& shape, const PlanLimits& limits)
    : shape_(shape), limits_(limits), prefixes_(limits.max_rows) {
  FD_CHECK(limits.threads >= 1, "a plan is for at least one thread");
  // Each chain of one entry has a row of its own for its KV head, each shared one those of two entries, and each page
  // that a chunk is appended to has a row.
  const size_t row_heads = limits.max_rows * static_cast<size_t>(shape.kv_heads);
  chains_.reserve(row_heads + row_heads / 2);  // at start
  sharers_.reserve(limits.max_rows);  // at start
  shares_.reserve(limits.max_rows);  // at start
  append_runs_.reserve(limits.max_rows);  // at start
  cuts_.resize(static_cast<size_t>(limits.threads) + 1);  // at start
  splits_max_ = static_cast<size_t>(limits.threads) + std::min(row_heads, kSharedSplitsMax);
  splits_ = std::make_unique<Split[]>(splits_max_);  // at start
}

void HopPlan::Build(std::span<const StepEntry> entries) {
  chains_.clear();
  sharers_.clear();
  append_runs_.clear();
  shares_.assign(entries.size(), false);  // reserved
  split_count_ = 0;
  used_cut_floats_ = 0;
  used_shared_floats_ = 0;
  if (shape_.sliding_window == 0) prefixes_.Find(entries);
  heads_ = HeadsOfAChain(entries);
  prompt_tile_rows_ = PromptTileRows(entries);
  for (const PrefixGroup& group : prefixes_.groups()) AddGroup(entries, group);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].bad && !shares_[i]) AddEntry(entries[i], i);
  }
  kv_bytes_ = DistinctKvBytes(entries);
  CutOverThreads();
}

uint64_t HopPlan::DistinctKvBytes(std::span<const StepEntry> entries) const {
  uint64_t tokens = 0;
  for (const StepEntry& entry : entries) {
    // What its first row's window leaves out, no row sees.
    if (!entry.bad) tokens += entry.end_position() - FirstSeenBlock(entry.first_position) * kBlockTokens;
  }
  tokens -= prefixes_.repeated_blocks() * kBlockTokens;
  return tokens * PageBytes(shape_) / kPageTokens;
}

// Of a row at `position`.
uint32_t HopPlan::FirstSeenBlock(uint32_t position) const {
  const uint32_t window = static_cast<uint32_t>(shape_.sliding_window);
  return window > 0 && position >= window ? (position - window + 1) / kBlockTokens : 0;
}

// KV heads of a chain of one row: fewer than all where the blocks are too few to be shared out fairly.
uint32_t HopPlan::HeadsOfAChain(std::span<const StepEntry> entries) const {
  const uint64_t kv_heads = static_cast<uint64_t>(shape_.kv_heads);
  uint64_t blocks = 0;
  for (const StepEntry& entry : entries) {
    if (!entry.bad) blocks += BlocksOf(entry.end_position()) - FirstSeenBlock(entry.first_position);
  }
  for (const PrefixGroup& group : prefixes_.groups()) blocks -= (group.count - 1) * uint64_t{group.blocks};
  const uint64_t wanted = limits_.threads == 1 ? 1 : kPiecesOfAThread * static_cast<uint64_t>(limits_.threads);
  const uint64_t parts = blocks == 0 ? 1 : std::min(kv_heads, (wanted + blocks - 1) / blocks);
  return static_cast<uint32_t>((kv_heads + parts - 1) / parts);
}

// With more rows fewer heads: the workspace is made for one row of all heads. More rows than a kernel takes of several
// heads are of one.
uint32_t HopPlan::HeadsOf(uint32_t rows) const { return rows > kMaxRowsOfHeads ? 1 : std::max(1u, heads_ / rows); }

// Fewer than the kernels would take where a tile would be too much of what is to be shared out.
uint32_t HopPlan::PromptTileRows(std::span<const StepEntry> entries) const {
  if (limits_.threads == 1) return limits_.prompt_rows;
  uint64_t pairs = 0, longest = 0;  // of a row and a token that it sees; tokens
  for (const StepEntry& entry : entries) {
    if (entry.bad || !entry.of_prompt || !entry.is_chunk()) continue;
    pairs +=
        entry.rows * (entry.first_position + entry.rows / 2 + uint64_t{1}) * static_cast<uint64_t>(shape_.kv_heads);
    longest = std::max<uint64_t>(longest, entry.end_position());
  }
  const uint64_t tiles = kPiecesOfAThread * static_cast<uint64_t>(limits_.threads);
  uint32_t rows = limits_.prompt_rows;
  while (rows > kMaxAttendRows && rows * longest * tiles > pairs) {
    rows = std::max<uint32_t>(rows / 2 / kPageTokens * kPageTokens, kMaxAttendRows);
  }
  return rows;
}

// The shared chains of a group, and what its entries go on with.
void HopPlan::AddGroup(std::span<const StepEntry> entries, const PrefixGroup& group) {
  const uint32_t first_sharer = static_cast<uint32_t>(sharers_.size());
  const uint32_t rows = TakeSharers(entries, group);
  if (rows == 0) return;
  Chain shared;
  shared.entry = sharers_[first_sharer].entry;
  shared.first_position = group.blocks * kBlockTokens;  // so that all of it is seen, as by the rows themselves
  shared.blocks = group.blocks;
  shared.tokens = group.blocks * kBlockTokens;
  shared.rows = static_cast<uint16_t>(rows);
  shared.first_sharer = first_sharer;
  shared.sharers = static_cast<uint32_t>(sharers_.size()) - first_sharer;
  AddChains(shared, HeadsOf(rows));
  for (uint32_t i = first_sharer; i < sharers_.size(); ++i) {
    Sharer& sharer = sharers_[i];
    const StepEntry& entry = entries[sharer.entry];
    sharer.first_chain = static_cast<uint32_t>(chains_.size());
    Chain own = ChainOf(entry, sharer.entry, 0, entry.rows, group.blocks);
    own.goes_on = true;
    AddChains(own, HeadsOf(entry.rows));
    sharer.chains = static_cast<uint32_t>(chains_.size()) - sharer.first_chain;
    for (Chain& chain : std::span(chains_).subspan(sharer.first_chain)) GoOnFrom(HeadsOf(rows), &chain);
    shares_[sharer.entry] = true;
  }
}

// Makes sharers of those of the group's entries for which it pays and the workspace has room. Returns their rows; 0 if
// they are not two.
uint32_t HopPlan::TakeSharers(std::span<const StepEntry> entries, const PrefixGroup& group) {
  const size_t first_sharer = sharers_.size();
  size_t floats = used_shared_floats_, splits = split_count_ + static_cast<size_t>(limits_.threads);
  uint32_t rows = 0;
  for (uint32_t i = 0; i < group.count; ++i) {
    const StepEntry& entry = entries[prefixes_.member(group, i)];
    const uint32_t heads = HeadsOf(entry.rows), kv_heads = static_cast<uint32_t>(shape_.kv_heads);
    const uint32_t chains = (kv_heads + heads - 1) / heads;
    const Chain own = ChainOf(entry, 0, 0, entry.rows, group.blocks);
    if (own.blocks > kOwnBlocksOfAShared * group.blocks) continue;
    const size_t wanted = chains * GoOnFloats(heads, own);
    if (wanted > limits_.shared_floats - floats || chains > splits_max_ - splits) continue;
    floats += wanted;
    splits += chains;
    sharers_.push_back({prefixes_.member(group, i), rows, 0, 0});  // reserved
    rows += entry.rows;
  }
  if (sharers_.size() - first_sharer >= 2) return rows;
  sharers_.resize(first_sharer);  // reserved
  return 0;
}

// One thread comes to a chain when the shared ones are done: it needs no slots for blocks.
size_t HopPlan::GoOnFloats(uint32_t heads, const Chain& chain) const {
  return PartialFloats(shape_, heads, chain.rows) * (1 + (limits_.threads == 1 ? 0 : size_t{chain.blocks}));
}

// Has a chain go on from shared ones of so many heads each. REQUIRES: there is room.
void HopPlan::GoOnFrom(uint32_t shared_heads, Chain* chain) {
  chain->split = static_cast<int32_t>(split_count_++);
  Split& split = splits_[static_cast<size_t>(chain->split)];
  const uint32_t last_head = chain->first_head + chain->heads - 1u;
  split.pieces = 2 + last_head / shared_heads - chain->first_head / shared_heads;
  split.folded_blocks = limits_.threads == 1 ? chain->blocks : 0;
  split.first_slot_floats = limits_.cut_floats + used_shared_floats_;
  used_shared_floats_ += GoOnFloats(chain->heads, *chain);
  // Relaxed: the team's ticket publishes it.
  split.unfinished.store(split.pieces, std::memory_order_relaxed);
}

void HopPlan::AddEntry(const StepEntry& entry, uint32_t index) {
  if (!entry.is_chunk()) {
    AddChains(ChainOf(entry, index, 0, entry.rows, FirstSeenBlock(entry.first_position)), HeadsOf(entry.rows));
    return;
  }
  for (uint32_t page = entry.first_position / kPageTokens; page * kPageTokens < entry.end_position(); ++page) {
    append_runs_.push_back({index, page});  // reserved
  }
  const uint32_t tile_rows = entry.of_prompt ? prompt_tile_rows_ : kMaxAttendRows;
  const bool open_pages = HasOpenPages(shape_);  // then tiles share none of them
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (uint32_t row = 0, rows = 0; row < entry.rows; row += rows) {
      const uint32_t position = entry.first_position + row;
      rows = std::min(tile_rows - (open_pages ? position % kPageTokens : 0), entry.rows - row);
      chains_.push_back(ChainOf(entry, index, row, rows, FirstSeenBlock(position)));  // reserved
      chains_.back().first_head = static_cast<uint16_t>(head);
      chains_.back().heads = 1;
    }
  }
}

// `chain` for all KV heads, `heads` at a time, the last one for what is left.
void HopPlan::AddChains(Chain chain, uint32_t heads) {
  const uint32_t kv_heads = static_cast<uint32_t>(shape_.kv_heads);
  for (uint32_t head = 0; head < kv_heads; head += heads) {
    chain.first_head = static_cast<uint16_t>(head);
    chain.heads = static_cast<uint16_t>(std::min(heads, kv_heads - head));
    chains_.push_back(chain);  // reserved
  }
}

// As AttendCost counts, for all of its heads.
uint64_t HopPlan::CostPerToken(const Chain& chain) const {
  const uint64_t row_heads = uint64_t{chain.rows} * static_cast<uint64_t>(shape_.group);
  const AttendCost& cost = chain.of_prompt ? limits_.prompt_cost : limits_.cost;
  const uint64_t read = static_cast<uint64_t>(cost.read);
  const uint64_t arithmetic = row_heads * static_cast<uint64_t>(cost.row_head);
  return chain.heads * (cost.adds_up ? read + arithmetic : std::max(read, arithmetic));
}

// A tile's rows see half of their own tokens.
uint64_t HopPlan::Cost(const Chain& chain) const {
  const uint64_t unseen = chain.sharers > 0 ? 0 : chain.rows / 2;
  return (chain.tokens - unseen + kChainTokens) * CostPerToken(chain);
}

void HopPlan::CutOverThreads() {
  const uint64_t threads = static_cast<uint64_t>(limits_.threads);
  uint64_t total = 0;
  for (const Chain& chain : chains_) total += Cost(chain);

  cuts_[0] = {0, 0};
  uint64_t thread = 1, before = 0;
  for (uint32_t i = 0; i < chains_.size(); ++i) {
    const uint64_t cost = Cost(chains_[i]);
    for (; thread < threads && total * thread / threads < before + cost; ++thread) {
      const PlanCut& last = cuts_[thread - 1];
      cuts_[thread] = last.chain > i ? last : CutAt(i, total * thread / threads - before, last);
    }
    before += cost;
  }
  for (; thread <= threads; ++thread) cuts_[thread] = {static_cast<uint32_t>(chains_.size()), 0};
}

// The block boundary of the chain next to the point that has cost_before of the chain's cost on its left, if the chain
// can be split there, else the nearer of its ends. `last` is the cut before.
PlanCut HopPlan::CutAt(uint32_t chain, uint64_t cost_before, const PlanCut& last) {
  const Chain& c = chains_[chain];
  const uint64_t block_cost = kBlockTokens * CostPerToken(c);
  const uint64_t block = std::min<uint64_t>(c.blocks, (cost_before + block_cost / 2) / block_cost);
  const PlanCut cut = {chain, static_cast<uint32_t>(block)};
  if (block > 0 && block < c.blocks && (cut == last || SplitChain(cut))) return cut;
  return cost_before < Cost(c) / 2 ? PlanCut{chain, 0} : PlanCut{chain + 1, 0};
}

// Has one more piece of the chain begin at the cut. False if the workspace has no room for its partials. REQUIRES: cuts
// come in ascending order.
bool HopPlan::SplitChain(const PlanCut& cut) {
  Chain& c = chains_[cut.chain];
  if (c.split < 0) {
    const size_t floats = PartialFloats(shape_, c.heads, c.rows) * (1 + size_t{c.blocks} - cut.block);
    if (floats > limits_.cut_floats - used_cut_floats_) return false;
    c.split = static_cast<int32_t>(split_count_++);
    Split& split = splits_[static_cast<size_t>(c.split)];
    split.pieces = 1;
    split.folded_blocks = cut.block;
    split.first_slot_floats = used_cut_floats_;
    used_cut_floats_ += floats;
  }
  Split& split = splits_[static_cast<size_t>(c.split)];
  ++split.pieces;
  // Relaxed: the team's ticket publishes it.
  split.unfinished.store(split.pieces, std::memory_order_relaxed);
  return true;
}

}  // namespace fastdecode
