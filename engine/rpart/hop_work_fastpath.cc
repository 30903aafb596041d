// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>
#include <cstring>

#include "engine/rpart/hop_work.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// Of a KV head, that a core keeps in its second-level cache while it goes through a chunk's tiles.
constexpr size_t kCachedBytes = 1 << 20;

// Adds the time of a scope to a sum; to none if there is none.
class TickSum {
 public:
  explicit TickSum(uint64_t* sum) : sum_(sum), start_(sum == nullptr ? 0 : NowTicks()) {}
  ~TickSum() {
    if (sum_ != nullptr) *sum_ += NowTicks() - start_;
  }
  TickSum(const TickSum&) = delete;
  TickSum& operator=(const TickSum&) = delete;

 private:
  uint64_t* const sum_;
  const uint64_t start_;
};

}  // namespace

void HopWork::RunShare(void* context, int thread, int threads) {
  const HopWork& hop = *static_cast<const HopWork*>(context);
  if (!hop.plan->append_runs().empty()) {
    const TickSum append(hop.LeaderSum(thread, &LeaderTicks::append));
    AppendShare(context, thread, threads);
    // A tile attends to what other threads appended.
    hop.served->Meet(thread);
  }
  AttendShare(context, thread, threads);
  if (thread == 0 && hop.leader != nullptr) hop.leader->share_end = NowTicks();
}

void HopWork::AppendShare(void* context, int thread, int threads) {
  static_cast<const HopWork*>(context)->AppendChunks(thread, threads);
}

void HopWork::AttendShare(void* context, int thread, int threads) {
  const HopWork& hop = *static_cast<const HopWork*>(context);
  const PlanCut begin = hop.plan->cut(thread);
  const PlanCut end = hop.plan->cut(thread + 1);
  for (uint32_t i = begin.chain; i <= end.chain && i < hop.plan->chains().size(); ++i) {
    const Chain& chain = hop.plan->chains()[i];
    const uint32_t first_block = i == begin.chain ? begin.block : 0;
    const uint32_t end_block = i == end.chain ? end.block : chain.blocks;
    if (first_block < end_block) hop.RunPiece(chain, first_block, end_block, thread);
    if (thread == 0) hop.served->AddProgress(1);
  }
  if (hop.plan->append_runs().empty()) return;
  EndStreams();
  if (hop.has_open_pages()) {
    hop.served->Meet(thread);
    hop.KeepOpenPages(thread, threads);
  }
}

// This thread's part of the (page, KV head) pairs of all chunks.
void HopWork::AppendChunks(int thread, int threads) const {
  const size_t pairs = plan->append_runs().size() * shape.kv_heads;
  const size_t begin = pairs * static_cast<size_t>(thread) / static_cast<size_t>(threads);
  const size_t end = pairs * (static_cast<size_t>(thread) + 1) / static_cast<size_t>(threads);
  for (size_t i = begin; i < end; ++i) {
    const AppendRun& run = plan->append_runs()[i / shape.kv_heads];
    const StepEntry& entry = entries[run.entry];
    if (entry.bad) continue;
    const int kv_head = static_cast<int>(i % shape.kv_heads);
    const bool page_follows = i + shape.kv_heads < end;
    if (has_open_pages()) {
      CloseChunkPage(entry, run.page_index, kv_head, page_follows, thread);
    } else {
      AppendRows(entry, kv_head, run.page_index * kPageTokens, (run.page_index + 1) * kPageTokens, page_follows);
    }
  }
  EndStreams();
}

// Appends those of the entry's rows whose positions lie in [first, end) and are not stored yet. page_follows: the
// thread does so with the KV head's next page, too, if the entry has one.
void HopWork::AppendRows(const StepEntry& entry, int kv_head, uint32_t first, uint32_t end, bool page_follows) const {
  uint32_t position = std::max(first, entry.write_from);
  end = std::min(end, entry.end_position());
  while (position < end) {
    const uint32_t slot = position % kPageTokens;
    const uint32_t tokens = std::min<uint32_t>(kPageTokens - slot, end - position);
    AppendArgs args = RowArgs(entry, kv_head, position, tokens, page_follows);
    const auto page = [&] { return pool->Address(layer, entry.sequence->pages[position / kPageTokens]); };
    if (has_open_pages()) {
      const OpenPage open = OpenPageOf(entry);
      args.open_page = &open;
      kernels.append(attention, args);
      if (slot + tokens == kPageTokens) ClosePage(attention, kv_head, open, page());
    } else {
      args.page = page();
      kernels.append(attention, args);
    }
    position += tokens;
  }
}

// For the k and v of the entry's rows from `position` on, up to the page's end; the page is still to be named.
AppendArgs HopWork::RowArgs(const StepEntry& entry, int kv_head, uint32_t position, uint32_t tokens,
                            bool page_follows) const {
  const size_t head_offset = HeadBytes(kv_head);
  const std::byte* row = rows + (entry.first_row + position - entry.first_position) * shape.hop_row_bytes();
  AppendArgs args = {};
  args.kv_head = kv_head;
  args.first_slot = static_cast<int>(position % kPageTokens);
  args.tokens = static_cast<int>(tokens);
  args.k = row + shape.k_offset_bytes() + head_offset;
  args.v = row + shape.v_offset_bytes() + head_offset;
  args.row_stride_bytes = shape.hop_row_bytes();
  const bool last_head = kv_head + 1 == static_cast<int>(shape.kv_heads);
  const bool as_many_follow = position + 2 * tokens <= entry.end_position();
  const std::byte* const following = args.k - head_offset + tokens * shape.hop_row_bytes();
  if (!last_head) {
    args.next_k = args.k + shape.head_dim * shape.element_bytes();
  } else if (as_many_follow) {
    args.next_k = following;
  }
  if (page_follows && as_many_follow && tokens == kPageTokens) args.next_page_k = following;
  return args;
}

// Blocks [first_block, end_block) of a chain: those that have no slot are folded as they come, the others are left in
// their slots for the last finisher.
void HopWork::RunPiece(const Chain& chain, uint32_t first_block, uint32_t end_block, int thread) const {
  const StepEntry& entry = entries[chain.entry];
  const bool is_shared = chain.sharers > 0;
  // A bad entry's rows in a shared chain are computed for nobody; its own chains are left out, all of their pieces
  // alike.
  if (!is_shared && entry.bad) return;
  Queries queries = GatherQueries(chain, thread);
  const bool whole = chain.split < 0;
  const uint32_t folded_blocks = whole ? chain.blocks : plan->split(chain.split).folded_blocks;
  if (first_block < folded_blocks) {
    const Partial running = At(chain, whole ? workspace->running(thread) : Slot(chain, 0));
    const Partial block = At(chain, workspace->block(thread));
    for (uint32_t i = 0; i < end_block; ++i) {
      if (i == 0 && !chain.goes_on) {
        AttendBlock(chain, i, queries, running, {}, thread);
      } else {
        AttendBlock(chain, i, queries, block, running, thread);
      }
      queries.set = true;
    }
    if (whole && is_shared) {
      const TickSum merge(LeaderSum(thread, &LeaderTicks::merge));
      HandOn(chain, running);
    }
  } else {
    for (uint32_t i = first_block; i < end_block; ++i) {
      AttendBlock(chain, i, queries, At(chain, Slot(chain, 1 + i - folded_blocks)), {}, thread);
      queries.set = true;
    }
  }
  if (!whole) {
    const TickSum merge(LeaderSum(thread, &LeaderTicks::merge));
    FinishPiece(chain);
  }
}

// Whether rows of a chain's entry lie in a block of it, other than a chunk's: they are appended before it is attended
// to.
bool HopWork::HasOwnRows(const Chain& chain, uint32_t block) const {
  const StepEntry& entry = entries[chain.entry];
  const uint32_t first = (chain.first_block + block) * kBlockTokens;
  return chain.sharers == 0 && !entry.is_chunk() && entry.first_position < first + kBlockTokens &&
         entry.end_position() > first;
}

// A shared chain's rows lie here and there among those of the hop: they are put together for it.
HopWork::Queries HopWork::GatherQueries(const Chain& chain, int thread) const {
  if (chain.sharers == 0) return QueriesOf(chain);
  const std::byte* const q = rows + HeadOffset(chain);
  const size_t row_bytes = size_t{chain.heads} * shape.group * shape.head_dim * shape.element_bytes();
  std::byte* to = workspace->queries(thread);
  for (const Sharer& sharer : plan->sharers(chain)) {
    const StepEntry& entry = entries[sharer.entry];
    for (uint32_t row = 0; row < entry.rows; ++row, to += row_bytes) {
      std::memcpy(to, q + (entry.first_row + row) * shape.hop_row_bytes(), row_bytes);
    }
  }
  return {workspace->queries(thread), row_bytes};
}

// Of one that is not shared: they lie in the hop.
HopWork::Queries HopWork::QueriesOf(const Chain& chain) const {
  const size_t row = entries[chain.entry].first_row + chain.tile_row;
  return {rows + HeadOffset(chain) + row * shape.hop_row_bytes(), shape.hop_row_bytes()};
}

void HopWork::AttendBlock(const Chain& chain, uint32_t block, const Queries& queries, const Partial& out,
                          const Partial& into, int thread) const {
  const uint32_t position = (chain.first_block + block) * kBlockTokens;
  if (HasOwnRows(chain, block)) {
    const TickSum append(LeaderSum(thread, &LeaderTicks::append));
    // Nobody else attends to these pages in this hop.
    for (int head = chain.first_head; head < chain.first_head + chain.heads; ++head) {
      AppendRows(entries[chain.entry], head, position, position + kBlockTokens);
    }
  }
  OpenPage open[kMaxPromptPages];
  AttendArgs args = {};
  args.open_pages = FindOpenPages(chain, block, thread, open) ? open : nullptr;
  args.layer_base = pool->LayerBase(layer);
  args.page_stride_bytes = pool->page_stride_bytes();
  args.page_ids = entries[chain.entry].sequence->pages.data() + position / kPageTokens;
  args.first_head = chain.first_head;
  args.heads = chain.heads;
  args.first_position = static_cast<int>(position);
  args.tokens = static_cast<int>(std::min<uint32_t>(kBlockTokens, chain.tokens - block * kBlockTokens));
  args.q_row_stride_bytes = queries.row_stride_bytes;
  args.scratch = workspace->scratch(thread);
  args.same_queries = queries.set;
  args.q = queries.first;
  args.rows = chain.rows;
  args.first_row_position = static_cast<int>(chain.first_position);
  SetNext(chain, block, &args);
  NextAppend next_append;
  if (FindNextAppend(chain, block, thread, &next_append)) args.next_append = &next_append;
  args.out = out;
  args.into = into;
  if (chain.split < 0 && chain.sharers == 0 && block + 1 == chain.blocks) {
    args.o = ResultsOf(chain);
    args.o_row_stride_bytes = shape.reply_row_bytes();
  }
  kernels.AttendFor(chain.of_prompt)(attention, args);
}

// Where those of a chain that is not shared go.
std::byte* HopWork::ResultsOf(const Chain& chain) const {
  const size_t row = entries[chain.entry].first_row + chain.tile_row;
  return o + row * shape.reply_row_bytes() + HeadOffset(chain);
}

// One piece of a chain of several hands is done: the last one merges.
void HopWork::FinishPiece(const Chain& chain) const {
  // Acq_rel: the last finisher sees what every other piece's thread wrote into its slots before it counted down.
  if (plan->split(chain.split).unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) MergeAndFinish(chain);
}

void HopWork::MergeAndFinish(const Chain& chain) const {
  Split& split = plan->split(chain.split);
  const Partial running = At(chain, Slot(chain, 0));
  for (uint32_t i = 1; i < split.slots(chain); ++i) {
    kernels.fold(attention, running, At(chain, Slot(chain, i)), chain.heads * chain.rows * attention.group);
  }
  // Relaxed: for the next hop, which the leader releases after this one is over.
  split.unfinished.store(split.pieces, std::memory_order_relaxed);
  FinishChain(chain, running);
}

void HopWork::FinishChain(const Chain& chain, const Partial& partial) const {
  if (chain.sharers > 0) {
    HandOn(chain, partial);
    return;
  }
  kernels.finish(attention, partial, chain.heads, chain.rows, ResultsOf(chain), shape.reply_row_bytes());
}

// What a shared chain has folded becomes slot 0 of its entries' own chains.
void HopWork::HandOn(const Chain& shared, const Partial& partial) const {
  for (const Sharer& sharer : plan->sharers(shared)) {
    if (entries[sharer.entry].bad) continue;
    for (const Chain& own : plan->chains().subspan(sharer.first_chain, sharer.chains)) {
      if (own.first_head >= shared.first_head + shared.heads || shared.first_head >= own.first_head + own.heads)
        continue;
      CopyRows(shared, partial, sharer, own);
      FinishPiece(own);
    }
  }
}

// The heads that both chains have.
void HopWork::CopyRows(const Chain& shared, const Partial& partial, const Sharer& sharer, const Chain& own) const {
  const Partial to = At(own, Slot(own, 0));
  const int first_head = std::max(shared.first_head, own.first_head);
  const int end_head = std::min(shared.first_head + shared.heads, own.first_head + own.heads);
  const int count = own.rows * attention.group;
  for (int head = first_head; head < end_head; ++head) {
    const int from_index =
        ((head - shared.first_head) * shared.rows + static_cast<int>(sharer.first_row)) * attention.group;
    const int to_index = (head - own.first_head) * count;
    std::copy_n(partial.max + from_index, count, to.max + to_index);
    std::copy_n(partial.sum + from_index, count, to.sum + to_index);
    std::copy_n(partial.acc + from_index * attention.head_dim, count * attention.head_dim,
                to.acc + to_index * attention.head_dim);
  }
}

// Of the chain's first query head in a row of q or o.
size_t HopWork::HeadOffset(const Chain& chain) const {
  return static_cast<size_t>(chain.first_head) * shape.group * shape.head_dim * shape.element_bytes();
}

// What the thread attends to after this block of the chain, for prefetching: another one, or the next chain's first.
// Not known behind the last chain, and where it begins with an open page. Tiles of a chunk that go through few blocks
// find in the cache what the tile before read, but for the pages of their own tokens.
void HopWork::SetNext(const Chain& chain, uint32_t block, AttendArgs* args) const {
  const bool same = block + 1 < chain.blocks;
  const Chain& next = same ? chain : *(&chain + 1);
  if (&next == plan->chains().data() + plan->chains().size() || entries[next.entry].bad) return;
  const size_t head_bytes = pool->page_stride_bytes() / shape.kv_heads;
  const bool cached = next.tile_row > 0 && next.blocks * kBlockPages * head_bytes <= kCachedBytes;
  const uint32_t begin = (next.first_block + (same ? block + 1 : 0)) * kBlockTokens;
  const uint32_t end = next.first_block * kBlockTokens + next.tokens;
  const uint32_t first = (cached && !same ? next.first_position : begin) / kPageTokens;
  const std::vector<PageId>& pages = entries[next.entry].sequence->pages;
  if (first >= pages.size()) return;
  args->next = pool->Address(layer, pages[first]) + next.first_head * head_bytes;
  if (!cached || !same) {
    const uint32_t last = (std::min(end, first * kPageTokens + kBlockTokens) - 1) / kPageTokens;
    args->next_page_ids = pages.data() + first;
    args->next_pages = static_cast<int>(std::min<size_t>(last + 1, pages.size()) - first);
  }
  if (!same && next.sharers == 0) {
    args->next_q = QueriesOf(next).first;
    args->next_rows = chain.sharers > 0 ? 1 : next.rows;  // a shared chain's q lies elsewhere, closer together
  }
}

// What this thread appends to before it attends to the next block. False: it does not, or that block is another
// thread's, from which its lines would be taken.
bool HopWork::FindNextAppend(const Chain& chain, uint32_t block, int thread, NextAppend* next) const {
  const bool same = block + 1 < chain.blocks;
  const uint32_t next_block = same ? block + 1 : 0;
  const size_t index = static_cast<size_t>(&chain - plan->chains().data()) + (same ? 0 : 1);
  const PlanCut end = plan->cut(thread + 1);
  if (index > end.chain || (index == end.chain && next_block >= end.block)) return false;
  const Chain& to = plan->chains()[index];
  const StepEntry& entry = entries[to.entry];
  if (entry.bad || !HasOwnRows(to, next_block)) return false;
  const uint32_t block_end = (to.first_block + next_block + 1) * kBlockTokens;
  const uint32_t last = std::min(entry.end_position(), block_end) - 1;
  if (last < entry.write_from && !has_open_pages()) return false;  // stored already
  if (has_open_pages()) {
    next->open = OpenPageOf(entry);
  } else {
    next->page = pool->Address(layer, entry.sequence->pages[last / kPageTokens]);
  }
  next->first_head = to.first_head;
  next->heads = to.heads;
  next->tokens = static_cast<int>(last % kPageTokens) + 1;
  return true;
}

Partial HopWork::At(const Chain& chain, float* floats) const {
  return PartialAt(attention, chain.heads, chain.rows, floats);
}

float* HopWork::Slot(const Chain& chain, uint32_t slot) const {
  return workspace->partials() + plan->split(chain.split).first_slot_floats +
         slot * PartialFloats(attention, chain.heads, chain.rows);
}

}  // namespace fastdecode
