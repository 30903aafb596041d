// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/home_ledger.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {

HomeLedger::HomeLedger(bool open_pages, size_t holders_max) : counts_(open_pages), holders_max_(holders_max) {
  FD_CHECK(holders_max < UINT32_MAX / 8, "too many holders");
  holders_.resize(2 * holders_max);    // at start
  free_holders_.resize(holders_max);   // at start
  nodes_.resize(2 * holders_max + 2);  // at start
  free_nodes_.resize(nodes_.size());   // at start
  for (size_t i = 0; i < holders_max; ++i) free_holders_[i] = static_cast<Holder>(holders_max - 1 - i);
  for (size_t i = 0; i < nodes_.size(); ++i) free_nodes_[i] = static_cast<Node>(nodes_.size() - 1 - i);
}

void HomeLedger::AddHome(int home, uint32_t pages) {
  FD_CHECK(home >= 0 && home < kMaxHomes && homes_[home].holders == 0, "the home's index is in use");
  ++changes_;
  homes_[home] = {.total = pages, .free = pages};
}

HomeLedger::Holder HomeLedger::Open(int home) {
  FD_CHECK(!free_holders_.empty(), "more holders than there is room for");
  ++changes_;
  const Holder holder = free_holders_.back();
  free_holders_.pop_back();
  holders_[holder] = {.home = home};
  ++homes_[home].holders;
  return holder;
}

bool HomeLedger::Take(Holder holder, uint32_t pages) {
  HolderState& state = holders_[holder];
  if (pages <= state.shared + state.own) return true;
  const uint32_t more = pages - state.shared - state.own;
  if (more > homes_[state.home].free) return false;
  ++changes_;
  homes_[state.home].free -= more;
  state.own += more;
  state.own_after = state.own;
  return true;
}

bool HomeLedger::TakeForStep(Holder holder, uint32_t first, uint32_t end, bool is_whole) {
  HolderState& state = holders_[holder];
  const uint32_t more = PagesForStep(holder, first, end);
  if (more > homes_[state.home].free) return false;
  if (more > 0) {
    ++changes_;
    homes_[state.home].free -= more;
    state.own += more;
  }
  if (state.copies) EndCopy(holder);  // a step that begins ends the one before
  if (const uint32_t shared = first / kPageTokens; shared < state.shared) {
    BeginCopy(holder);
    ShareLess(holder, shared);
  }
  const uint32_t pages = counts_.OfStep(first, end);
  state.own_after = is_whole ? std::min(state.own, pages - std::min(pages, state.shared)) : state.own;
  return true;
}

HomeLedger::Holder HomeLedger::Fork(Holder holder, uint32_t tokens) {
  HolderState& from = holders_[holder];
  const uint32_t shared = counts_.Closed(tokens), pieces = counts_.PiecesOfCut(tokens);
  FD_CHECK(shared <= from.shared + from.own, "a fork of more pages than there are");
  if (pieces > homes_[from.home].free) return kNobody;
  const Holder fork = Open(from.home);
  HolderState& state = holders_[fork];
  homes_[from.home].free -= pieces;
  state.own = state.own_after = pieces;
  if (shared == 0) return fork;
  if (shared > from.shared) {
    // The holder's own pages up to there are a node from now on, below which both hang.
    const uint32_t pages = shared - from.shared;
    const Node node = MakeNode(from.home, from.node, pages);
    if (from.node != kNone) ReplaceChild(from.node, CodeOf(holder), CodeOfNode(node));
    from.own -= pages;
    from.own_after -= pages;
    if (from.kept) homes_[from.home].idle -= pages;
    from.node = node;
    from.shared = shared;
    AddChild(node, CodeOf(holder));
  }
  // The fork hangs beside the holder, and then as far up as it shares.
  state.node = from.node;
  state.shared = from.shared;
  AddChild(state.node, CodeOf(fork));
  ShareLess(fork, shared);
  return fork;
}

bool HomeLedger::Truncate(Holder holder, uint32_t stored, uint32_t tokens) {
  HolderState& state = holders_[holder];
  const uint32_t closed = counts_.Closed(tokens), pages = closed + counts_.PiecesOfCut(tokens);
  const uint32_t shared = std::min(state.shared, closed), own = pages - shared;
  FD_CHECK(tokens <= stored && counts_.Closed(stored) <= state.shared + state.own,
           "a truncation to more than there is");
  // A closed page of its own that becomes the open one is read before it comes free.
  const bool reopens = counts_.open_pages() && tokens % kPageTokens != 0 && counts_.Closed(stored) > closed;
  const uint32_t meanwhile = reopens && state.shared <= closed ? 1 : 0;
  if (own + meanwhile > state.own + homes_[state.home].free) return false;
  ++changes_;
  HomeAccount& home = homes_[state.home];
  home.free += state.own;
  home.free -= own;
  if (state.kept) home.idle -= state.own - own;
  ++home.returns;
  state.own = state.own_after = own;
  ShareLess(holder, shared);
  return true;
}

void HomeLedger::Release(Holder holder) {
  HolderState& state = holders_[holder];
  FD_CHECK(state.home >= 0, "a holder is released twice");
  ++changes_;
  if (state.copies) EndCopy(holder);
  HomeAccount& home = homes_[state.home];
  home.free += state.own;
  ++home.returns;
  if (state.kept) {
    home.idle -= state.own;
  } else {
    --home.holders;
  }
  if (state.node != kNone) RemoveChild(state.node, CodeOf(holder));
  state = {};
  free_holders_.push_back(holder);  // reserved
}

void HomeLedger::Keep(Holder holder) {
  HolderState& state = holders_[holder];
  FD_CHECK(state.home >= 0 && !state.kept && !state.copies, "a holder that cannot be kept");
  ++changes_;
  state.own_after = state.own;
  state.kept = true;
  homes_[state.home].idle += state.own;
  --homes_[state.home].holders;
  if (state.node != kNone) Deactivate(state.node);
}

uint32_t HomeLedger::CountIdle(Holder holder, uint32_t pages) const {
  const HolderState& state = holders_[holder];
  uint32_t idle = state.kept && pages > state.shared ? pages - state.shared : 0;
  uint32_t end = state.shared;
  for (Node node = state.node; node != kNone; node = nodes_[node].parent) {
    const uint32_t first = end - nodes_[node].pages;
    if (nodes_[node].active == 0 && pages > first) idle += std::min(pages, end) - first;
    end = first;
  }
  return idle;
}

// The keeper hangs beside the holder, which goes on with less.
void HomeLedger::BeginCopy(Holder holder) {
  HolderState& state = holders_[holder];
  ++changes_;
  holders_[KeeperOf(holder)] = {.home = state.home, .node = state.node, .shared = state.shared};
  AddChild(state.node, CodeOf(KeeperOf(holder)));
  state.copies = true;
}

// Returns how many pages came free.
uint32_t HomeLedger::EndCopy(Holder holder) {
  HolderState& keeper = holders_[KeeperOf(holder)];
  const uint32_t freed = keeper.own;
  homes_[keeper.home].free += freed;
  if (keeper.node != kNone) RemoveChild(keeper.node, CodeOf(KeeperOf(holder)));
  keeper = {};
  holders_[holder].copies = false;
  return freed;
}

// The holder shares the first `pages` pages and no more; those behind are the others'.
void HomeLedger::ShareLess(Holder holder, uint32_t pages) {
  HolderState& state = holders_[holder];
  if (pages >= state.shared) return;
  const Node from = state.node;
  // The node that has the last of them, and where it ends.
  Node node = from;
  uint32_t end = state.shared;
  while (node != kNone && end - nodes_[node].pages >= pages) {
    end -= nodes_[node].pages;
    node = nodes_[node].parent;
  }
  if (node != kNone && end > pages) {
    // The boundary lies within the node: its first pages become a node above it.
    const Node above = MakeNode(state.home, nodes_[node].parent, nodes_[node].pages - (end - pages));
    if (nodes_[node].parent != kNone) ReplaceChild(nodes_[node].parent, CodeOfNode(node), CodeOfNode(above));
    nodes_[node].parent = above;
    ResizeNode(node, end - pages);
    AddChild(above, CodeOfNode(node));
    node = above;
  }
  state.node = node;
  state.shared = pages;
  if (node != kNone) AddChild(node, CodeOf(holder));
  RemoveChild(from, CodeOf(holder));
}

HomeLedger::Node HomeLedger::MakeNode(int home, Node parent, uint32_t pages) {
  FD_CHECK(!free_nodes_.empty(), "more nodes than holders");
  const Node node = free_nodes_.back();
  free_nodes_.pop_back();
  nodes_[node] = {.home = home, .parent = parent, .pages = pages};
  homes_[home].idle += pages;
  return node;
}

// One more child of the node is active.
void HomeLedger::Activate(Node node) {
  for (; node != kNone && nodes_[node].active++ == 0; node = nodes_[node].parent) {
    homes_[nodes_[node].home].idle -= nodes_[node].pages;
  }
}

void HomeLedger::Deactivate(Node node) {
  for (; node != kNone && --nodes_[node].active == 0; node = nodes_[node].parent) {
    homes_[nodes_[node].home].idle += nodes_[node].pages;
  }
}

void HomeLedger::ResizeNode(Node node, uint32_t pages) {
  NodeState& state = nodes_[node];
  if (state.active == 0) homes_[state.home].idle += pages - state.pages;
  state.pages = pages;
}

void HomeLedger::AddChild(Node node, uint32_t code) {
  ++nodes_[node].children;
  nodes_[node].child_xor ^= code;
  if (IsActive(code)) Activate(node);
}

void HomeLedger::RemoveChild(Node node, uint32_t code) {
  nodes_[node].child_xor ^= code;
  if (IsActive(code)) Deactivate(node);
  if (--nodes_[node].children == 1) MergeIntoChild(node);
}

void HomeLedger::ReplaceChild(Node node, uint32_t code, uint32_t by) {
  const bool was_active = IsActive(code), is_active = IsActive(by);
  nodes_[node].child_xor ^= code ^ by;
  if (is_active && !was_active) Activate(node);
  if (was_active && !is_active) Deactivate(node);
}

// Nobody shares its pages any more but its one child, a holder or a node, which has them from now on.
void HomeLedger::MergeIntoChild(Node node) {
  const NodeState gone = nodes_[node];
  if ((gone.child_xor & 1) != 0) {
    const Node child = gone.child_xor >> 1;
    nodes_[child].parent = gone.parent;
    ResizeNode(child, nodes_[child].pages + gone.pages);
  } else {
    HolderState& child = holders_[gone.child_xor >> 1];
    child.node = gone.parent;
    child.shared -= gone.pages;
    child.own += gone.pages;
    child.own_after += gone.pages;
    if (child.kept) homes_[gone.home].idle += gone.pages;
  }
  if (gone.active == 0) homes_[gone.home].idle -= gone.pages;
  if (gone.parent != kNone) ReplaceChild(gone.parent, CodeOfNode(node), gone.child_xor);
  nodes_[node] = {};
  free_nodes_.push_back(node);  // reserved
}

uint32_t HomeLedger::CountNotAlone(int home) const {
  uint32_t pages = 0;
  for (const NodeState& node : nodes_) pages += node.home == home ? node.pages : 0;
  for (size_t holder = 0; holder < holders_.size(); ++holder) {
    const bool counts = holder >= holders_max_ || holders_[holder].kept;
    pages += counts && holders_[holder].home == home ? holders_[holder].own : 0;
  }
  return pages;
}

void HomeLedger::CheckInvariants() const {
  std::array<uint64_t, kMaxHomes> used = {}, idle = {};
  std::array<uint32_t, kMaxHomes> holders = {};
  size_t held = 0, nodes = 0, children = 0, children_of_nodes = 0, active = 0, active_of_nodes = 0;
  for (size_t i = 0; i < holders_.size(); ++i) {
    const HolderState& state = holders_[i];
    const bool is_keeper = i >= holders_max_;
    FD_CHECK(!is_keeper || (state.home >= 0) == holders_[i - holders_max_].copies, "a keeper without a copy");
    if (state.home < 0) continue;
    held += is_keeper ? 0 : 1;
    holders[state.home] += is_keeper || state.kept ? 0 : 1;
    used[state.home] += state.own;
    idle[state.home] += state.kept ? state.own : 0;
    uint32_t shared = 0;
    for (Node node = state.node; node != kNone; node = nodes_[node].parent) shared += nodes_[node].pages;
    FD_CHECK(shared == state.shared, "a holder's shared pages are not those of its nodes");
    FD_CHECK(state.own_after <= state.own, "a step leaves more pages than it had");
    children += state.node != kNone;
    active += state.node != kNone && !state.kept;
  }
  for (const NodeState& node : nodes_) {
    if (node.home < 0) continue;
    ++nodes;
    used[node.home] += node.pages;
    idle[node.home] += node.active == 0 ? node.pages : 0;
    FD_CHECK(node.children >= 2 && node.pages > 0, "a node that nobody shares");
    FD_CHECK(node.parent == kNone || nodes_[node.parent].home == node.home, "nodes of two homes in one tree");
    children += node.parent != kNone;
    children_of_nodes += node.children;
    active += node.parent != kNone && node.active > 0;
    active_of_nodes += node.active;
  }
  FD_CHECK(children == children_of_nodes, "a node's children are miscounted");
  FD_CHECK(active == active_of_nodes, "a node's children that are not kept are miscounted");
  FD_CHECK(held + free_holders_.size() == holders_max_, "a holder's number is lost");
  FD_CHECK(nodes + free_nodes_.size() == nodes_.size(), "a node's number is lost");
  for (int h = 0; h < kMaxHomes; ++h) {
    FD_CHECK(holders[h] == homes_[h].holders, "a home's holders are miscounted");
    FD_CHECK(used[h] == homes_[h].total - homes_[h].free, "a home's pages are miscounted");
    FD_CHECK(idle[h] == homes_[h].idle, "a home's idle pages are miscounted");
  }
}

}  // namespace fastdecode
