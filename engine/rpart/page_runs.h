#ifndef FASTDECODE_ENGINE_RPART_PAGE_RUNS_H_
#define FASTDECODE_ENGINE_RPART_PAGE_RUNS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdecode {

using PageId = uint32_t;
inline constexpr PageId kNoPage = UINT32_MAX;

// Which pages of a pool are free, and which of them a sequence takes next, so that a long sequence lies in long
// stretches of memory and a short one does not break these up.
//
// A run is run_pages pages from a multiple of run_pages on; a piece is 2^k of them from a multiple of 2^k on (buddies:
// a piece splits into halves, and two free halves become one again). A short sequence takes single pages out of the
// smallest pieces there are. A grown one takes a piece of its own length, up to a run, or the next smaller one there
// is; of this it uses the first page and holds the rest: nobody else gets a held page as long as there is another free
// one. When there is none, the holding that was used least recently gives back its far half. So every free page is
// found, held or not, and when none is left nothing is held.
//
// A holding lies directly behind the page that its sequence took last: that page says whose it is, nobody has to keep
// an account. It ends with that page's return; forks and hand-overs need not know of it.
//
// Owns: the free pieces and the holdings, nothing else. Thread: one at a time.
// Bounded: by `pages`; all functions take O(log run_pages) steps, but for Return, which takes that many for each of the
// few pieces that were held behind the page. Nothing allocates after construction.
class PageRuns {
 public:
  static constexpr uint32_t kRunPagesMax = 32;
  // A sequence with at most min(run_pages, kShortPagesMax) pages is short: 128 tokens, or fewer where a run is less.
  static constexpr uint32_t kShortPagesMax = 4;
  static constexpr size_t kPagesMax = kNoPage - 16;  // there are list heads besides

  // All pages free. REQUIRES: pages <= kPagesMax, run_pages is a power of two and at most kRunPagesMax.
  PageRuns(size_t pages, uint32_t run_pages);

  // The page for a sequence whose last one is `last` (kNoPage: it has none) and that will have `sequence_pages` after
  // the growth that this page is part of. kNoPage: all pages are in use.
  PageId Take(PageId last, uint32_t sequence_pages);
  // The page is free again, and with it what is held behind it. REQUIRES: it was taken.
  void Return(PageId page);

  uint32_t run_pages() const { return 1u << order_max_; }
  uint32_t total() const { return pages_; }
  // What Take finds, held pages included.
  uint32_t free() const { return free_unheld_ + held_; }
  // Of these.
  uint32_t held() const { return held_; }

 private:
  static constexpr int kOrders = 6;
  static_assert(kRunPagesMax == 1u << (kOrders - 1));
  // Which list a piece is in: the free ones of its order, or the holdings, the least recently used one first.
  static constexpr uint8_t kHoldings = kOrders;
  static constexpr uint8_t kLists = kOrders + 1;
  static constexpr uint8_t kNoList = kLists;

  // What begins at a page: a free piece, a holding or nothing.
  struct Node {
    PageId previous = kNoPage;
    PageId next = kNoPage;
    uint8_t list = kNoList;
    uint8_t held_pages = 0;  // of a holding
  };

  int OrderWanted(uint32_t sequence_pages) const;
  PageId ChoosePiece(PageId last, int order_wanted) const;
  PageId TakeHeld(PageId first);
  PageId TakePiece(PageId first, int order_wanted);
  void Hold(PageId first, uint32_t pages);
  void GiveBackFarHalf(PageId holding);
  void Free(PageId first, int order);

  PageId Head(uint8_t list) const { return pages_ + list; }
  PageId Front(uint8_t list) const { return nodes_[Head(list)].next; }
  bool IsEmpty(uint8_t list) const { return Front(list) == Head(list); }
  bool BeginsHolding(PageId page) const { return page < pages_ && nodes_[page].list == kHoldings; }
  bool BeginsFreePiece(PageId page) const { return page < pages_ && nodes_[page].list < kOrders; }
  void InsertBefore(PageId position, PageId page, uint8_t list);
  void Remove(PageId page);

  // Constant after construction.
  const uint32_t pages_;
  const int order_max_;  // of a run

  std::vector<Node> nodes_;  // [page], then the lists' heads; each list is a ring through its head
  uint32_t free_unheld_ = 0;
  uint32_t held_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PAGE_RUNS_H_
