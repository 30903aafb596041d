#include "engine/rpart/page_account.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {

PageAccount::PageAccount(KvPool* pool, uint32_t granted)
    : pool_(pool), granted_(granted), references_(pool->total(), 0) {
  FD_CHECK(granted <= pool->total(), "more pages granted than there are");
}

PageAccount::~PageAccount() { FD_CHECK(used_ == 0, "a page leaked"); }

PageId PageAccount::TakeBehind(PageId last, uint32_t sequence_pages) {
  if (used_ == granted_) return kNoPage;
  const PageId page = pool_->TakeBehind(last, sequence_pages);
  FD_CHECK(page != kNoPage, "the grants of a pool's peers are more than its pages");
  references_[page] = 1;
  ++used_;
  return page;
}

void PageAccount::AddReference(PageId page) {
  FD_CHECK(has(page), "a page of someone else is shared");
  pool_->AddReference(page);
  ++references_[page];
}

void PageAccount::Return(PageId page) {
  FD_CHECK(has(page), "a page of someone else is returned");
  pool_->Return(page);
  if (--references_[page] == 0) --used_;
}

PageId PageAccount::Unshare(PageId page) {
  FD_CHECK(shared(page) && (references_[page] == 1 || free() > 0), "a page is copied beyond the grant");
  // There is one: the page counts for another peer, too, or we have a free one.
  const PageId copy = pool_->Take();
  FD_CHECK(copy != kNoPage, "the grants of a pool's peers are more than its pages");
  pool_->CopyPage(page, copy);
  Return(page);
  references_[copy] = 1;
  ++used_;
  return copy;
}

void PageAccount::MoveReference(PageId page, PageAccount* to) {
  FD_CHECK(to->pool_ == pool_ && has(page), "a page of someone else is handed over");
  FD_CHECK(to->has(page) || to->free() > 0, "a page is handed over beyond the receiver's grant");
  if (--references_[page] == 0) --used_;
  if (++to->references_[page] == 1) ++to->used_;
}

uint32_t PageAccount::CountMissing(std::span<const PageId> pages) const {
  return static_cast<uint32_t>(std::count_if(pages.begin(), pages.end(), [this](PageId page) { return !has(page); }));
}

}  // namespace fastdecode
