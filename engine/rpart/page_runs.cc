#include "engine/rpart/page_runs.h"

#include <algorithm>
#include <bit>

#include "numa/check.h"

namespace fastdecode {

namespace {

int FloorLog2(uint32_t value) { return std::bit_width(value) - 1; }

}  // namespace

PageRuns::PageRuns(size_t pages, uint32_t run_pages)
    : pages_(static_cast<uint32_t>(pages)), order_max_(FloorLog2(run_pages)) {
  FD_CHECK(pages <= kPagesMax && std::has_single_bit(run_pages) && run_pages <= kRunPagesMax, "runs of no such size");
  nodes_.resize(pages + kLists);
  for (uint8_t list = 0; list < kLists; ++list) nodes_[Head(list)] = {Head(list), Head(list), kNoList, 0};
  // Ascending addresses first. What follows the last whole run makes smaller pieces.
  int order = order_max_;
  for (PageId first = 0; first < pages_; first += 1u << order) {
    while ((1u << order) > pages_ - first) --order;
    InsertBefore(Head(static_cast<uint8_t>(order)), first, static_cast<uint8_t>(order));
  }
  free_unheld_ = pages_;
}

PageId PageRuns::Take(PageId last, uint32_t sequence_pages) {
  if (last != kNoPage && BeginsHolding(last + 1)) return TakeHeld(last + 1);
  if (free() == 0) return kNoPage;
  if (free_unheld_ == 0) GiveBackFarHalf(Front(kHoldings));
  const int order_wanted = OrderWanted(sequence_pages);
  return TakePiece(ChoosePiece(last, order_wanted), order_wanted);
}

void PageRuns::Return(PageId page) {
  while (BeginsHolding(page + 1)) GiveBackFarHalf(page + 1);
  Free(page, 0);
}

// Never more than the sequence has, so that what it holds stays in proportion.
int PageRuns::OrderWanted(uint32_t sequence_pages) const {
  if (sequence_pages <= std::min(run_pages(), kShortPagesMax)) return 0;
  return FloorLog2(std::min(run_pages(), sequence_pages));
}

// REQUIRES: some page is free and not held.
PageId PageRuns::ChoosePiece(PageId last, int order_wanted) const {
  // Going on where the last page ends is best, unless it breaks a run that another could have whole. A free piece that
  // has the next page begins with it, because the last one is in use.
  if (last != kNoPage && BeginsFreePiece(last + 1)) {
    if (order_wanted == order_max_ || nodes_[last + 1].list < order_max_) return last + 1;
  }
  for (int order = order_wanted; order <= order_max_; ++order) {
    if (!IsEmpty(static_cast<uint8_t>(order))) return Front(static_cast<uint8_t>(order));
  }
  int order = order_wanted - 1;
  while (IsEmpty(static_cast<uint8_t>(order))) --order;
  return Front(static_cast<uint8_t>(order));
}

PageId PageRuns::TakeHeld(PageId first) {
  const uint32_t pages = nodes_[first].held_pages;
  Remove(first);
  held_ -= pages;
  Hold(first + 1, pages - 1);
  return first;
}

// The first page of a free piece; of the others, those up to the wanted order are held and the rest stays free.
PageId PageRuns::TakePiece(PageId first, int order_wanted) {
  int order = nodes_[first].list;
  Remove(first);
  free_unheld_ -= 1u << order;
  for (; order > order_wanted; --order) Free(first + (1u << (order - 1)), order - 1);
  Hold(first + 1, (1u << order) - 1);
  return first;
}

void PageRuns::Hold(PageId first, uint32_t pages) {
  if (pages == 0) return;
  InsertBefore(Head(kHoldings), first, kHoldings);
  nodes_[first].held_pages = static_cast<uint8_t>(pages);
  held_ += pages;
}

// The far half, or less if that is no piece: what the sequence comes to last.
void PageRuns::GiveBackFarHalf(PageId holding) {
  const uint32_t pages = nodes_[holding].held_pages;
  const PageId end = holding + pages;
  const int order = std::min(FloorLog2((pages + 1) / 2), std::countr_zero(end));
  const uint32_t given = 1u << order;
  if (given == pages) {
    Remove(holding);
  } else {
    nodes_[holding].held_pages = static_cast<uint8_t>(pages - given);
  }
  held_ -= given;
  Free(end - given, order);
}

void PageRuns::Free(PageId first, int order) {
  free_unheld_ += 1u << order;
  for (; order < order_max_; ++order) {
    const PageId buddy = first ^ (1u << order);
    if (!BeginsFreePiece(buddy) || nodes_[buddy].list != order) break;
    Remove(buddy);
    first = std::min(first, buddy);
  }
  const uint8_t list = static_cast<uint8_t>(order);
  InsertBefore(Front(list), first, list);
}

void PageRuns::InsertBefore(PageId position, PageId page, uint8_t list) {
  Node& node = nodes_[page];
  node = {nodes_[position].previous, position, list, 0};
  nodes_[node.previous].next = page;
  nodes_[position].previous = page;
}

void PageRuns::Remove(PageId page) {
  Node& node = nodes_[page];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  node = Node();
}

}  // namespace fastdecode
