// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_PREFIX_CACHE_H_
#define FASTDECODE_ENGINE_PIPELINE_PREFIX_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/pipeline/batch_limits.h"
#include "engine/pipeline/boundary_changes.h"
#include "engine/pipeline/home_ledger.h"
#include "engine/pipeline/prefix_hit.h"
#include "engine/pipeline/sequence.h"

namespace fastdecode {

// Finds what sequences have in common with those before them, so that it is computed once (automatic prefix caching, as
// in vLLM; decision 0030).
//
// A block is a full page of tokens that is stored at a home, together with all pages before it: blocks are a tree, and
// a block's place in it is exactly the tokens up to its end, the salt, and which of these rows are a prompt's where
// that makes a difference. Each block has a source, a holder of the ledger whose pages contain it: a sequence that
// runs, or one that is kept. Whoever finds a block begins as a fork of its source.
//
// A sequence that leaves is kept as long as it is the source of a block, cut to the last such block. Blocks of kept
// sources are listed by when they were last used; where pages are needed, the one that was not used for the longest
// time goes first. Blocks are used from the last to the first, so that none goes before those behind it. A block that
// goes is not lost while another sequence has it: that becomes its source. What a sequence had that failed is not found
// any more.
//
// Owns: the blocks; the ledger's holders of kept sequences.
// Thread: the pipeline thread. Never allocates after construction; memory of blocks is touched when they are first
// used. Bounded: by BatchLimits::cached_max kept sequences, and cached_blocks_max blocks.
class PrefixCache {
 public:
  using Holder = HomeLedger::Holder;

  PrefixCache(const BatchLimits& limits, HomeLedger* ledger);

  bool on() const { return limits_.cached_max > 0; }

  // --- homes
  void OpenHome(int home);
  // All of it is gone.
  void LoseHome(int home);
  // Nothing is found or kept there from now on. What is kept there stays until Clear.
  void CloseHome(int home) { homes_[home].open = false; }
  // Gives up at most `sources` kept sequences of a home. Returns whether there are none left.
  bool Clear(int home, uint32_t sources, BoundaryChanges* changes);

  // --- a sequence's way
  // Its keys are those of all full pages that are known. Before Find.
  void PrepareLookup(Sequence* sequence) const;
  // What is stored at a home of its tokens, all but the last one at most. REQUIRES: PrepareLookup.
  PrefixHit Find(const Sequence& sequence, int home) const;
  // It has a seat, as a fork of hit.source if there was one.
  void Begin(const Sequence& sequence, const PrefixHit& hit);
  // It has a seat, as a fork of the leader, whose prompt it shares.
  void BeginFollower(const Sequence& follower, const Sequence& leader);
  // More of its tokens are stored: what is new can be found from now on. REQUIRES: Begin.
  void NoteStored(Sequence* sequence);
  // It leaves its seat. Returns how many of its tokens stay there, with its holder, which is the cache's from now on;
  // 0: none do, and the holder is the caller's to release. is_sound: false if what it stored must not be used.
  uint32_t Leave(const Sequence& sequence, bool is_sound, BoundaryChanges* changes);

  // --- room
  // Gives up what was not used for the longest time until so many pages of the home are free, or nothing is kept there.
  void MakeRoom(int home, uint32_t pages, BoundaryChanges* changes);
  // The same until new blocks can be made.
  void MakeRoomForBlocks(BoundaryChanges* changes);

  uint32_t kept() const { return kept_; }
  uint32_t kept_at(int home) const { return homes_[home].kept; }
  // How many rows of a sequence's page count as a prompt's. Where homes may have a kernel of their own for these
  // (decision 0021), what is stored depends on it, and a kernel's bits must not be found in place of another's.
  uint32_t PromptRowsIn(const Sequence& sequence, uint32_t page) const;

  // Ends the process if blocks, sources and lists contradict each other. O(blocks).
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Block {
    uint64_t key = 0;
    std::array<int32_t, kPageTokens> tokens{};
    std::array<uint64_t, 2> salt{};
    uint32_t prompt_rows = 0;  // PromptRowsIn
    uint32_t index = 0;        // of its page
    int16_t home = -1;         // -1: the number is free
    bool listed = false;       // its source is kept
    bool hidden = false;       // it is in no bucket: nobody is to find it
    uint64_t used = 0;         // listed: when, in uses; a larger number is later
    uint32_t next = kNone;     // in its bucket; or free
    uint32_t parent = kNone;   // of the page before
    uint32_t first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
    uint32_t older = kNone, newer = kNone;  // listed: of its home's blocks
    Holder source = HomeLedger::kNobody;
    Holder first_user = HomeLedger::kNobody;
  };
  // What a holder is to the cache. A user is one that runs, of the last block that it has.
  struct Source {
    uint64_t number = 0;  // what the home knows it by
    int home = -1;        // -1: it is none
    bool kept = false;
    bool stopped = false;       // there was no room for its next block
    uint32_t known = 0;         // pages of it that have blocks, its own or another's, from the first on
    uint32_t stored = 0;        // kept: tokens
    size_t cut_at = SIZE_MAX;   // kept: which of a boundary's changes was its last cut, if nobody has forked it since
    uint32_t last = kNone;      // runs: the block of the last of these pages
    uint32_t own = 0;           // blocks that it is the source of...
    uint32_t own_last = kNone;  // ...and the last one of them
    Holder next_user = HomeLedger::kNobody, previous_user = HomeLedger::kNobody;
  };
  struct HomeList {
    bool open = false;
    uint32_t kept = 0;
    uint32_t oldest = kNone, newest = kNone;
  };

  uint32_t& BucketOf(uint64_t key, int home);
  uint32_t BucketIndex(uint64_t key, int home) const;
  uint32_t FindBlock(const Sequence& sequence, int home, uint32_t page, uint32_t parent) const;
  uint32_t MakeBlock(const Sequence& sequence, uint32_t page, uint32_t parent);
  void Unlink(uint32_t block);  // from its bucket and its parent; the number is free
  Holder HeirOf(uint32_t block) const;
  void Drop(uint32_t block);  // its source has it no more
  void Hide(uint32_t block);
  void LeaveBucket(uint32_t block);
  void List(uint32_t block);
  void Unlist(uint32_t block);
  void Use(uint32_t block);  // and those before it
  void AddUser(uint32_t block, Holder holder);
  void RemoveUser(Holder holder);
  void DropAllOf(Holder holder);
  void Keep(const Sequence& sequence, BoundaryChanges* changes);
  void CutOldest(int home, uint32_t pages, BoundaryChanges* changes);
  void GiveUp(Holder holder, BoundaryChanges* changes);
  void TellCut(Holder holder, uint32_t tokens, BoundaryChanges* changes);

  const BatchLimits limits_;
  HomeLedger* const ledger_;
  std::array<HomeList, kMaxHomes> homes_;
  std::vector<Source> sources_;          // [holder]
  std::unique_ptr<std::byte[]> memory_;  // of the blocks
  Block* blocks_ = nullptr;              // [cached_blocks_max]
  std::vector<uint32_t> buckets_;        // a power of two; the first block, kNone: none
  uint32_t blocks_touched_ = 0;          // those from there on were never used
  uint32_t free_block_ = kNone;
  uint32_t blocks_used_ = 0;
  uint32_t kept_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_PREFIX_CACHE_H_
