// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "absl/hash/hash.h"
#include "numa/check.h"

namespace fastdecode {

PrefixCache::PrefixCache(const BatchLimits& limits, HomeLedger* ledger) : limits_(limits), ledger_(ledger) {
  if (!on()) return;
  FD_CHECK(limits.cached_blocks_max > 0 && limits.cached_blocks_max < kNone / 2, "cached blocks out of range");
  static_assert(std::is_trivially_destructible_v<Block>);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(limits.cached_blocks_max * sizeof(Block));  // at start
  blocks_ = reinterpret_cast<Block*>(memory_.get());
  buckets_.resize(std::bit_ceil(limits.cached_blocks_max), kNone);   // at start
  sources_.resize(2 * size_t{limits.active()} + limits.cached_max);  // at start
}

// ---- Homes

void PrefixCache::OpenHome(int home) {
  FD_CHECK(homes_[home].kept == 0 && homes_[home].oldest == kNone, "a home has a cache before it has come");
  homes_[home].open = on();
}

void PrefixCache::LoseHome(int home) {
  for (Holder holder = 0; holder < sources_.size(); ++holder) {
    Source& source = sources_[holder];
    if (source.home != home) continue;
    if (source.kept) {
      ledger_->Release(holder);
      --kept_;
    }
    source = {};
  }
  for (uint32_t i = 0; i < blocks_touched_; ++i) {
    Block& block = blocks_[i];
    if (block.home != home) continue;
    block.parent = kNone;  // no other block is looked at: all of the tree goes
    block.first_child = kNone;
    Unlink(i);
  }
  homes_[home] = {};
}

bool PrefixCache::Clear(int home, uint32_t sources, BoundaryChanges* changes) {
  for (; sources > 0 && homes_[home].oldest != kNone; --sources) {
    GiveUp(blocks_[homes_[home].oldest].source, changes);
  }
  return homes_[home].oldest == kNone;
}

// ---- A sequence's way

uint32_t PrefixCache::PromptRowsIn(const Sequence& sequence, uint32_t page) const {
  const uint32_t first = page * kPageTokens;
  if (!limits_.prompts_have_kernel || sequence.prompt_tokens >= first + kPageTokens) return kPageTokens;
  return sequence.prompt_tokens > first ? sequence.prompt_tokens - first : 0;
}

void PrefixCache::PrepareLookup(Sequence* sequence) const {
  if (!on() || !sequence->prefix.enabled()) return;
  for (uint32_t page = sequence->prefix.size(); page < sequence->length / kPageTokens; ++page) {
    const std::span<const int32_t> tokens = sequence->log.tokens;
    sequence->prefix.Append(tokens.subspan(size_t{page} * kPageTokens).first<kPageTokens>(),
                            PromptRowsIn(*sequence, page));
  }
}

PrefixHit PrefixCache::Find(const Sequence& sequence, int home) const {
  if (!homes_[home].open || !sequence.prefix.enabled()) return {};
  // What is wanted of the prompt's rows needs them all, until it has a token.
  const bool wants_prompt = sequence.prompt_logits != nullptr || !sequence.sampling.prompt_ids.empty();
  if (wants_prompt && sequence.length == sequence.prompt_tokens) return {};
  PrefixHit hit;
  // The last token's row is computed: with open pages its page is, whose tokens were rounded when it was closed.
  const uint32_t most = sequence.length - 1, pages = (limits_.open_pages ? most : sequence.length) / kPageTokens;
  for (uint32_t page = 0; page < std::min(pages, sequence.prefix.size()); ++page) {
    const uint32_t block = FindBlock(sequence, home, page, hit.block);
    if (block == kNone) break;
    hit.block = block;
    hit.tokens = std::min((page + 1) * kPageTokens, most);
  }
  if (hit.tokens == 0) return {};
  hit.source = blocks_[hit.block].source;
  hit.source_number = sources_[hit.source].number;
  return hit;
}

void PrefixCache::Begin(const Sequence& sequence, const PrefixHit& hit) {
  if (!homes_[sequence.seat.home].open || !sequence.prefix.enabled()) return;
  Source& source = sources_[sequence.seat.holder];
  FD_CHECK(source.home < 0, "a holder is a source already");
  source = {.number = sequence.seat.number, .home = sequence.seat.home};
  if (hit.tokens == 0) return;
  sources_[hit.source].cut_at = SIZE_MAX;
  Use(hit.block);
  source.known = hit.tokens / kPageTokens;
  // A page that only begins like the block's is not the block.
  const uint32_t last = blocks_[hit.block].index < source.known ? hit.block : blocks_[hit.block].parent;
  if (last != kNone) AddUser(last, sequence.seat.holder);
}

void PrefixCache::BeginFollower(const Sequence& follower, const Sequence& leader) {
  if (!homes_[follower.seat.home].open || !follower.prefix.enabled()) return;
  Source& source = sources_[follower.seat.holder];
  const Source& of = sources_[leader.seat.holder];
  source = {.number = follower.seat.number, .home = follower.seat.home};
  source.stopped = of.home < 0 || of.known != leader.prompt_tokens / kPageTokens;
  if (source.stopped || of.last == kNone) return;
  source.known = of.known;
  AddUser(of.last, follower.seat.holder);
}

void PrefixCache::NoteStored(Sequence* sequence) {
  if (!on() || sequence->is_pushed()) return;
  const Holder holder = sequence->seat.holder;
  Source& source = sources_[holder];
  const uint32_t pages = sequence->computed / kPageTokens;
  if (source.home < 0 || source.stopped || source.known >= pages) return;
  PrepareLookup(sequence);
  while (source.known < pages) {
    uint32_t block = FindBlock(*sequence, source.home, source.known, source.last);
    if (block == kNone) block = MakeBlock(*sequence, source.known, source.last);
    if (block == kNone) {
      source.stopped = true;
      return;
    }
    RemoveUser(holder);
    AddUser(block, holder);
    ++source.known;
  }
}

uint32_t PrefixCache::Leave(const Sequence& sequence, bool is_sound, BoundaryChanges* changes) {
  if (!on() || sequence.seat.home < 0) return 0;
  const Holder holder = sequence.seat.holder;
  Source& source = sources_[holder];
  if (source.home < 0) return 0;
  const uint32_t last = source.last;
  if (!is_sound || !homes_[source.home].open) {
    if (!is_sound) Hide(last);
    RemoveUser(holder);
    DropAllOf(holder);
    source = {};
    return 0;
  }
  Use(last);
  RemoveUser(holder);
  // Others that computed the same have it as well.
  while (source.own > 0 && HeirOf(source.own_last) != HomeLedger::kNobody) Drop(source.own_last);
  if (source.own == 0) {
    source = {};
    return 0;
  }
  Keep(sequence, changes);
  return source.stored;
}

// REQUIRES: it is the source of some block.
void PrefixCache::Keep(const Sequence& sequence, BoundaryChanges* changes) {
  const Holder holder = sequence.seat.holder;
  Source& source = sources_[holder];
  if (kept_ == limits_.cached_max) {
    // That of what was not used for the longest time makes room for one more, at this home if anything is kept there.
    // It goes as a whole: what others have behind its first blocks they have with these.
    int home = source.home;
    for (int h = 0; homes_[home].oldest == kNone; ++h) home = h;
    GiveUp(blocks_[homes_[home].oldest].source, changes);
  }
  ++kept_;
  ++homes_[source.home].kept;
  source.kept = true;
  source.stored = (blocks_[source.own_last].index + 1) * kPageTokens;
  ledger_->EndStep(holder);
  FD_CHECK(ledger_->Truncate(holder, sequence.computed, source.stored), "a cut to full pages needs none");
  ledger_->Keep(holder);
  for (uint32_t block = source.own_last; block != kNone; block = blocks_[block].parent) {
    if (blocks_[block].source == holder) List(block);
  }
  Use(source.own_last);
}

// ---- Room

void PrefixCache::MakeRoom(int home, uint32_t pages, BoundaryChanges* changes) {
  while (ledger_->pages_free(home) < pages && homes_[home].oldest != kNone) {
    CutOldest(home, pages - ledger_->pages_free(home), changes);
  }
}

// A sixteenth is kept free, which is more than steps make between two boundaries.
void PrefixCache::MakeRoomForBlocks(BoundaryChanges* changes) {
  if (!on()) return;
  const uint32_t most = limits_.cached_blocks_max - std::max(1u, limits_.cached_blocks_max / 16);
  for (int home = 0; home < kMaxHomes && blocks_used_ > most; ++home) {
    while (blocks_used_ > most && homes_[home].oldest != kNone) CutOldest(home, blocks_used_ - most, changes);
  }
}

// The source of the block that was not used for the longest time loses as many of its last blocks as give these pages,
// as far as it has none that were used since.
void PrefixCache::CutOldest(int home, uint32_t pages, BoundaryChanges* changes) {
  const HomeList& list = homes_[home];
  const Holder holder = blocks_[list.oldest].source;
  Source& source = sources_[holder];
  const uint32_t shared = ledger_->pages(holder) - ledger_->pages_alone(holder);
  uint32_t freed = 0;
  do {
    FD_CHECK(list.oldest == source.own_last, "a block is older than those behind it");
    freed += blocks_[list.oldest].index >= shared;
    Drop(list.oldest);
  } while (freed < pages && list.oldest != kNone && blocks_[list.oldest].source == holder);
  TellCut(holder, source.own == 0 ? 0 : (blocks_[source.own_last].index + 1) * kPageTokens, changes);
}

void PrefixCache::GiveUp(Holder holder, BoundaryChanges* changes) {
  DropAllOf(holder);
  TellCut(holder, 0, changes);
}

// A kept source has so many tokens left; 0: it is one no more. One that was cut already at this boundary, and of which
// nobody has begun as a fork since, was cut by more.
void PrefixCache::TellCut(Holder holder, uint32_t tokens, BoundaryChanges* changes) {
  Source& source = sources_[holder];
  const auto is_cut = [&](const BoundaryChange& change) {
    return change.kind == BoundaryChange::Kind::kCut && change.seat.number == source.number &&
           change.seat.home == source.home;
  };
  if (source.cut_at < changes->size() && is_cut((*changes)[source.cut_at])) {
    (*changes)[source.cut_at].kept_tokens = tokens;
  } else {
    source.cut_at = changes->size();
    const Seat seat = {.home = source.home, .holder = holder, .number = source.number, .told = true};
    changes->Append({.kind = BoundaryChange::Kind::kCut, .seat = seat, .kept_tokens = tokens});
  }
  if (tokens > 0) {
    FD_CHECK(ledger_->Truncate(holder, source.stored, tokens), "a cut to full pages needs none");
    source.stored = tokens;
    return;
  }
  ledger_->Release(holder);
  --homes_[source.home].kept;
  --kept_;
  source = {};
}

// ---- Blocks

uint32_t PrefixCache::BucketIndex(uint64_t key, int home) const {
  return static_cast<uint32_t>(absl::HashOf(key, home) & (buckets_.size() - 1));
}

uint32_t& PrefixCache::BucketOf(uint64_t key, int home) { return buckets_[BucketIndex(key, home)]; }

// The block of a sequence's page at a home, behind `parent`; kNone: there is none.
uint32_t PrefixCache::FindBlock(const Sequence& sequence, int home, uint32_t page, uint32_t parent) const {
  const uint64_t key = sequence.prefix[page];
  const auto tokens = sequence.log.tokens.begin() + size_t{page} * kPageTokens;
  for (uint32_t i = buckets_[BucketIndex(key, home)]; i != kNone; i = blocks_[i].next) {
    const Block& block = blocks_[i];
    if (block.key != key || block.home != home || block.parent != parent) continue;
    if (block.prompt_rows != PromptRowsIn(sequence, page) || block.salt != sequence.prefix.salt()) continue;
    if (std::equal(block.tokens.begin(), block.tokens.end(), tokens)) return i;
  }
  return kNone;
}

// A block whose source is the sequence's holder, which runs; kNone: there is no room.
uint32_t PrefixCache::MakeBlock(const Sequence& sequence, uint32_t page, uint32_t parent) {
  uint32_t made = free_block_;
  if (made != kNone) {
    free_block_ = blocks_[made].next;
  } else if (blocks_touched_ < limits_.cached_blocks_max) {
    made = blocks_touched_++;
  } else {
    return kNone;
  }
  ++blocks_used_;
  Source& source = sources_[sequence.seat.holder];
  Block& block = *std::construct_at(&blocks_[made]);
  block.key = sequence.prefix[page];
  std::copy_n(sequence.log.tokens.begin() + size_t{page} * kPageTokens, kPageTokens, block.tokens.begin());
  block.salt = sequence.prefix.salt();
  block.prompt_rows = PromptRowsIn(sequence, page);
  block.index = page;
  block.home = static_cast<int16_t>(source.home);
  block.parent = parent;
  block.source = sequence.seat.holder;
  if (parent != kNone) {
    block.next_sibling = blocks_[parent].first_child;
    if (block.next_sibling != kNone) blocks_[block.next_sibling].previous_sibling = made;
    blocks_[parent].first_child = made;
  }
  uint32_t& bucket = BucketOf(block.key, block.home);
  block.next = bucket;
  bucket = made;
  ++source.own;
  source.own_last = made;
  return made;
}

// REQUIRES: it is not listed, and nobody refers to it but its bucket, its parent and its siblings.
void PrefixCache::Unlink(uint32_t gone) {
  Block& block = blocks_[gone];
  FD_CHECK(block.first_child == kNone, "a block goes before those behind it");
  LeaveBucket(gone);
  if (block.parent != kNone) {
    uint32_t& before = block.previous_sibling == kNone ? blocks_[block.parent].first_child
                                                       : blocks_[block.previous_sibling].next_sibling;
    before = block.next_sibling;
    if (block.next_sibling != kNone) blocks_[block.next_sibling].previous_sibling = block.previous_sibling;
  }
  block.home = -1;
  block.next = free_block_;
  free_block_ = gone;
  --blocks_used_;
}

// Whoever else has a block: the source of a block behind it, or a user.
PrefixCache::Holder PrefixCache::HeirOf(uint32_t block) const {
  const uint32_t child = blocks_[block].first_child;
  return child != kNone ? blocks_[child].source : blocks_[block].first_user;
}

// Its heir has it from now on, if there is one. REQUIRES: it is the last one that its source has.
void PrefixCache::Drop(uint32_t dropped) {
  Block& block = blocks_[dropped];
  Source& source = sources_[block.source];
  const Holder holder = block.source, heir = HeirOf(dropped);
  --source.own;
  source.own_last = kNone;
  for (uint32_t i = block.parent; source.own > 0 && source.own_last == kNone; i = blocks_[i].parent) {
    if (blocks_[i].source == holder) source.own_last = i;
  }
  const bool stays_listed = heir != HomeLedger::kNobody && sources_[heir].kept;
  if (block.listed && !stays_listed) Unlist(dropped);
  if (heir == HomeLedger::kNobody) return Unlink(dropped);
  block.source = heir;
  Source& next = sources_[heir];
  if (next.own++ == 0 || blocks_[next.own_last].index < block.index) next.own_last = dropped;
  if (!stays_listed || block.listed) return;
  List(dropped);
  Use(dropped);  // no block is older than those behind it
}

// Nobody finds a block any more, nor those before it.
void PrefixCache::Hide(uint32_t hidden) {
  for (; hidden != kNone; hidden = blocks_[hidden].parent) LeaveBucket(hidden);
}

void PrefixCache::LeaveBucket(uint32_t left) {
  Block& block = blocks_[left];
  if (block.hidden) return;
  block.hidden = true;
  uint32_t* at = &BucketOf(block.key, block.home);
  while (*at != left) at = &blocks_[*at].next;
  *at = block.next;
}

void PrefixCache::DropAllOf(Holder holder) {
  while (sources_[holder].own > 0) Drop(sources_[holder].own_last);
}

// The block becomes the one that was used last.
void PrefixCache::List(uint32_t listed) {
  Block& block = blocks_[listed];
  HomeList& list = homes_[block.home];
  block.listed = true;
  block.used = ++uses_;
  block.older = list.newest;
  block.newer = kNone;
  (list.newest == kNone ? list.oldest : blocks_[list.newest].newer) = listed;
  list.newest = listed;
}

void PrefixCache::Unlist(uint32_t listed) {
  Block& block = blocks_[listed];
  HomeList& list = homes_[block.home];
  block.listed = false;
  (block.older == kNone ? list.oldest : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? list.newest : blocks_[block.newer].older) = block.older;
}

void PrefixCache::Use(uint32_t used) {
  for (; used != kNone; used = blocks_[used].parent) {
    if (!blocks_[used].listed) continue;
    Unlist(used);
    List(used);
  }
}

void PrefixCache::AddUser(uint32_t block, Holder holder) {
  Source& source = sources_[holder];
  source.last = block;
  source.next_user = blocks_[block].first_user;
  source.previous_user = HomeLedger::kNobody;
  if (source.next_user != HomeLedger::kNobody) sources_[source.next_user].previous_user = holder;
  blocks_[block].first_user = holder;
}

void PrefixCache::RemoveUser(Holder holder) {
  Source& source = sources_[holder];
  if (source.last == kNone) return;
  (source.previous_user == HomeLedger::kNobody ? blocks_[source.last].first_user
                                               : sources_[source.previous_user].next_user) = source.next_user;
  if (source.next_user != HomeLedger::kNobody) sources_[source.next_user].previous_user = source.previous_user;
  source.last = kNone;
}

void PrefixCache::CheckInvariants() const {
  if (!on()) return;
  uint32_t used = 0, listed = 0, kept = 0, own = 0, owned = 0;
  for (uint32_t i = 0; i < blocks_touched_; ++i) {
    const Block& block = blocks_[i];
    if (block.home < 0) continue;
    ++used;
    listed += block.listed;
    ++owned;
    const Source& source = sources_[block.source];
    FD_CHECK(source.home == block.home, "a block's source is at another home");
    FD_CHECK(source.kept == block.listed, "a block that may go is not listed, or one that may not is");
    FD_CHECK(block.index < (source.kept ? source.stored / kPageTokens : source.known), "a source lacks its block");
    FD_CHECK((block.parent == kNone) == (block.index == 0), "a block without those before it");
    if (block.parent != kNone) {
      FD_CHECK(blocks_[block.parent].home == block.home, "a block behind one of another home");
      FD_CHECK(blocks_[block.parent].index + 1 == block.index, "a block behind one that is not the page before");
    }
  }
  for (Holder holder = 0; holder < sources_.size(); ++holder) {
    const Source& source = sources_[holder];
    if (source.home < 0) continue;
    FD_CHECK(ledger_->home(holder) == source.home, "a source holds pages of another home");
    own += source.own;
    kept += source.kept;
    FD_CHECK(!source.kept || source.own > 0, "a sequence is kept for nothing");
    FD_CHECK(!source.kept || ledger_->counts().Closed(source.stored) == ledger_->pages(holder),
             "a kept sequence has other pages than it stores");
    FD_CHECK((source.own > 0) == (source.own_last != kNone), "a source without its last block");
    if (source.last != kNone) FD_CHECK(blocks_[source.last].index + 1 == source.known, "a user of another block");
  }
  uint32_t in_lists = 0;
  for (const HomeList& list : homes_) {
    for (uint32_t i = list.oldest; i != kNone; i = blocks_[i].newer) {
      ++in_lists;
      // Those that are older come before it.
      for (uint32_t before = blocks_[i].parent; before != kNone; before = blocks_[before].parent) {
        FD_CHECK(!blocks_[before].listed || blocks_[before].used >= blocks_[i].used,
                 "a block is older than one behind it");
      }
      FD_CHECK(blocks_[i].newer != kNone || list.newest == i, "a list of blocks has two ends");
      FD_CHECK(blocks_[i].older == kNone || blocks_[blocks_[i].older].used < blocks_[i].used,
               "a list without an order");
    }
  }
  FD_CHECK(used == blocks_used_ && own == owned, "blocks are miscounted");
  FD_CHECK(listed == in_lists, "listed blocks are miscounted");
  FD_CHECK(kept == kept_, "kept sequences are miscounted");
}

}  // namespace fastdecode
