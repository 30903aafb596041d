#ifndef FASTDECODE_ENGINE_RPART_PAGE_ACCOUNT_H_
#define FASTDECODE_ENGINE_RPART_PAGE_ACCOUNT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/rpart/kv_pool.h"

namespace fastdecode {

// What one peer holds of a home's pool, and the most that it may hold. A page counts once, however many of the peer's
// sequences share it; one that two peers share (after a hand-over of a forked sequence) counts for both, so that
// either may go. One that is held behind a sequence (PageRuns) counts for nobody. The grants of all accounts of a pool
// together are at most its pages: within its grant a peer always finds a free one.
// Owns: the peer's references. Thread: the team's leader; made by the control thread.
// Bounded: by the grant. Nothing allocates after construction.
class PageAccount {
 public:
  PageAccount(KvPool* pool, uint32_t granted);
  // REQUIRES: all pages were returned.
  ~PageAccount();

  PageAccount(const PageAccount&) = delete;
  PageAccount& operator=(const PageAccount&) = delete;

  // A page with one reference, or kNoPage if the peer has all that it was granted: the single one that a sequence
  // begins with, or one for a sequence that goes on (KvPool::TakeBehind).
  PageId Take() { return TakeBehind(kNoPage, 1); }
  PageId TakeBehind(PageId last, uint32_t sequence_pages);
  // One more sequence of this peer uses a page that it has. O(1).
  void AddReference(PageId page);
  // One sequence less. REQUIRES: the peer has the page.
  void Return(PageId page);
  // A copy of a shared page (KvPool::CopyPage), in place of one of this peer's references to it. REQUIRES:
  // shared(page); free(), unless references(page) is 1, when the peer has one page before and after.
  PageId Unshare(PageId page);
  // One of this peer's references becomes one of `to`, another peer of the pool. O(1). REQUIRES: `to` has the page
  // already, or free().
  void MoveReference(PageId page, PageAccount* to);

  bool has(PageId page) const { return references_[page] > 0; }
  uint32_t references(PageId page) const { return references_[page]; }  // of this peer
  // Whether someone else, of this peer or another, uses it too.
  bool shared(PageId page) const { return pool_->references(page) > 1; }
  // How many of the pages the peer has not. REQUIRES: no page occurs twice.
  uint32_t CountMissing(std::span<const PageId> pages) const;

  uint32_t granted() const { return granted_; }
  uint32_t used() const { return used_; }
  uint32_t free() const { return granted_ - used_; }
  KvPool& pool() const { return *pool_; }

 private:
  // Constant after construction.
  KvPool* const pool_;
  const uint32_t granted_;

  std::vector<uint32_t> references_;  // [page], of this peer's sequences
  uint32_t used_ = 0;                 // pages with a reference
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PAGE_ACCOUNT_H_
