// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_HOME_LEDGER_H_
#define FASTDECODE_ENGINE_PIPELINE_HOME_LEDGER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/pipeline/statistics.h"
#include "engine/rpart/page_counts.h"

namespace fastdecode {

// The engine's account of the KV pages of each home: who holds how many, and how many are free. It mirrors what homes
// do (SequenceTable), so that a home never has to refuse a page: pages are granted when a home joins, counted here, and
// the home only checks (decision 0003).
//
// A holder has pages at one home. It may be a sequence, or something that only keeps pages, such as a cached prefix.
// Holders share pages after a fork, as at the home: a shared page counts once, and a holder that writes to a shared
// page (only the last, partial one can be) takes a page for its copy. Shared pages lie in a tree: each node is a run of
// pages that all holders below it have, each holder hangs on a node and has pages of its own besides. A node with one
// child left is merged into it, so that there are fewer nodes than holders. A page is as good as any other: only
// numbers are kept, and an operation costs as much as the tree is deep.
//
// A page that is copied stays shared until the step is over, because a home may read it that long (a GPU does): others
// who write to it meanwhile take a copy, too. For that a holder has a keeper, which hangs on the node where the holder
// hung before the step. A home that copies at once has the page back sooner: the numbers here are never below the
// home's own during a step, and the same after it.
//
// A holder may be kept (Keep): it is a cached prefix, whose pages may go whenever somebody needs them. Pages that only
// kept holders have are idle.
//
// All pages of a home have one size. Layers that keep other tokens than the rest will draw theirs from the same pool.
//
// Owns: the accounts; holders are numbers. Thread: the pipeline thread. Never allocates after construction.
// Bounded: by holders_max.
class HomeLedger {
 public:
  using Holder = uint32_t;
  static constexpr Holder kNobody = UINT32_MAX;

  // open_pages: whether the KV type has them (HasOpenPages).
  HomeLedger(bool open_pages, size_t holders_max);

  // A home with so many pages. REQUIRES: nobody holds pages at this index.
  void AddHome(int home, uint32_t pages);

  // --- holders
  // A holder without pages. REQUIRES: fewer than holders_max.
  Holder Open(int home);
  // Takes pages until the holder has `pages`. False: too few are free, and nothing has changed.
  bool Take(Holder holder, uint32_t pages);
  // Takes what a step needs that appends tokens [first, end). is_whole: the holder needs no more than that once the
  // step is over (EndStep); else it keeps what it has, for tokens that are known already. False as above.
  bool TakeForStep(Holder holder, uint32_t first, uint32_t end, bool is_whole);
  // The pages that TakeForStep would take.
  uint32_t PagesForStep(Holder holder, uint32_t first, uint32_t end) const {
    return OwnForStep(holders_[holder], first, end) - holders_[holder].own;
  }
  // The step is over: pages that it needed and that are not needed any more are free, and so are those that it copied,
  // unless others have them. Returns whether there were any that came free.
  bool EndStep(Holder holder) {
    HolderState& state = holders_[holder];
    if (state.own_after == state.own && !state.copies) return false;
    ++changes_;
    const uint32_t freed = state.own - state.own_after;
    homes_[state.home].free += freed;
    state.own = state.own_after;
    const uint32_t copied = state.copies ? EndCopy(holder) : 0;
    return freed + copied > 0;
  }
  // A new holder that shares the first `tokens` tokens. kNobody: too few pages are free for those that it does not
  // share, and nothing has changed. REQUIRES: the holder has the pages of these tokens.
  Holder Fork(Holder holder, uint32_t tokens);
  // Keeps the pages of the first `tokens` of the `stored` tokens that it has. False: more pages are needed than come
  // free, and nothing has changed. REQUIRES: tokens <= stored, and the holder has the pages of these.
  bool Truncate(Holder holder, uint32_t stored, uint32_t tokens);
  // Gives all pages back that nobody shares, and ends its step. The number may be given to another holder from now on.
  void Release(Holder holder);
  // It takes no pages any more, and what it has is idle where nobody else needs it. It counts as a holder of its home
  // no more. Forks of it are holders as all others. REQUIRES: it is not kept, and its step is over (EndStep).
  void Keep(Holder holder);

  int home(Holder holder) const { return holders_[holder].home; }
  uint32_t pages(Holder holder) const { return holders_[holder].shared + holders_[holder].own; }
  // Pages that it has alone: they come free if it is released. What it copies in a step is not among them.
  uint32_t pages_alone(Holder holder) const { return holders_[holder].own; }
  // How many of its first pages are idle, and would not be any more if a fork shared these. O(depth).
  uint32_t CountIdle(Holder holder, uint32_t pages) const;

  // --- homes
  uint32_t pages_total(int home) const { return homes_[home].total; }
  uint32_t pages_free(int home) const { return homes_[home].free; }
  uint32_t pages_used(int home) const { return homes_[home].total - homes_[home].free; }
  uint32_t pages_idle(int home) const { return homes_[home].idle; }
  // Those that are free, or would be without the kept holders.
  uint32_t pages_available(int home) const { return homes_[home].free + homes_[home].idle; }
  uint32_t pages_needed(int home) const { return homes_[home].total - pages_available(home); }
  uint32_t holders(int home) const { return homes_[home].holders; }  // without those that are kept
  // How often pages came back to this home with a release or a truncation, which the home is told of.
  uint64_t returns(int home) const { return homes_[home].returns; }
  // Grows whenever a number above changes.
  uint64_t changes() const { return changes_; }
  const PageCounts& counts() const { return counts_; }

  // Pages of a home that no holder has alone but kept ones: several share them, or a keeper has them until a step is
  // over, or they are a kept holder's.
  // O(holders).
  uint32_t CountNotAlone(int home) const;
  // Ends the process if the numbers contradict each other. O(holders x depth).
  void CheckInvariants() const;

 private:
  using Node = uint32_t;
  static constexpr uint32_t kNone = UINT32_MAX;

  struct HomeAccount {
    uint32_t total = 0;
    uint32_t free = 0;
    uint32_t idle = 0;
    uint32_t holders = 0;
    uint64_t returns = 0;
  };
  struct HolderState {
    int home = -1;           // -1: the number is free
    Node node = kNone;       // the lowest one with pages that it shares
    uint32_t shared = 0;     // pages of that node and of those above
    uint32_t own = 0;        // pages that nobody else has
    uint32_t own_after = 0;  // the same once the step is over
    bool copies = false;     // the keeper has what it shared before the step, until that is over
    bool kept = false;
  };
  struct NodeState {
    int home = -1;  // -1: the number is free
    Node parent = kNone;
    uint32_t pages = 0;
    uint32_t children = 0;   // holders and nodes
    uint32_t active = 0;     // of these, holders that are not kept, and nodes that have such below them
    uint32_t child_xor = 0;  // of the children's codes: with one child left, its code
  };

  Holder KeeperOf(Holder holder) const { return holder + static_cast<Holder>(holders_max_); }
  static uint32_t CodeOf(Holder holder) { return holder << 1; }
  static uint32_t CodeOfNode(Node node) { return node << 1 | 1; }

  Node MakeNode(int home, Node parent, uint32_t pages);
  bool IsActive(uint32_t code) const {
    return (code & 1) != 0 ? nodes_[code >> 1].active > 0 : !holders_[code >> 1].kept;
  }
  void Activate(Node node);
  void Deactivate(Node node);
  void ResizeNode(Node node, uint32_t pages);
  void AddChild(Node node, uint32_t code);
  void RemoveChild(Node node, uint32_t code);
  void ReplaceChild(Node node, uint32_t code, uint32_t by);
  void MergeIntoChild(Node node);
  void ShareLess(Holder holder, uint32_t pages);
  void BeginCopy(Holder holder);
  uint32_t EndCopy(Holder holder);
  // The pages of its own that a holder must have in a step. A page that is written to must not be shared.
  uint32_t OwnForStep(const HolderState& state, uint32_t first, uint32_t end) const {
    const uint32_t shared = std::min(state.shared, first / kPageTokens);
    const uint32_t pages = counts_.OfStep(first, end);
    return std::max(state.own + state.shared - shared, pages > shared ? pages - shared : 0);
  }

  const PageCounts counts_;
  const size_t holders_max_;
  std::array<HomeAccount, kMaxHomes> homes_;
  std::vector<HolderState> holders_;  // [holders_max], and as many keepers
  std::vector<Holder> free_holders_;  // the last one is the next
  std::vector<NodeState> nodes_;      // [2 * holders_max + 2]
  std::vector<Node> free_nodes_;
  uint64_t changes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_HOME_LEDGER_H_
