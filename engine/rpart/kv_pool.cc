#include "engine/rpart/kv_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "numa/check.h"

namespace fastdecode {

namespace {

size_t PagesIn(const AttentionShape& shape, int layers, size_t bytes) {
  FD_CHECK(layers > 0 && PageBytes(shape) > 0, "a pool needs a shape with layers and page bytes");
  return std::min(bytes / KvPool::PageBytesAllLayers(shape, layers), PageRuns::kPagesMax);
}

}  // namespace

KvPool::KvPool(const AttentionShape& shape, int layers, std::span<std::byte> memory, PageCopies copies)
    : shape_(shape),
      base_(memory.data()),
      layers_(layers),
      page_stride_bytes_(PageBytes(shape)),
      copies_(copies),
      references_(PagesIn(shape, layers, memory.size()), 0),
      runs_(references_.size(), RunPages(shape)) {
  layer_stride_bytes_ = references_.size() * page_stride_bytes_;
}

size_t KvPool::PageBytesAllLayers(const AttentionShape& shape, int layers) {
  return PageBytes(shape) * static_cast<size_t>(layers);
}

uint32_t KvPool::RunPages(const AttentionShape& shape) {
  const size_t pages = std::bit_floor(kRunBytes / PageBytes(shape));
  return static_cast<uint32_t>(std::clamp<size_t>(pages, 1, PageRuns::kRunPagesMax));
}

PageId KvPool::TakeBehind(PageId last, uint32_t sequence_pages) {
  const PageId page = runs_.Take(last, sequence_pages);
  if (page == kNoPage) return kNoPage;
  FD_CHECK(references_[page] == 0, "a free page is in use");
  references_[page] = 1;
  return page;
}

void KvPool::AddReference(PageId page) {
  FD_CHECK(page < references_.size() && references_[page] > 0, "a free page is shared");
  ++references_[page];
}

void KvPool::Return(PageId page) {
  FD_CHECK(page < references_.size() && references_[page] > 0, "a free page is returned");
  if (--references_[page] == 0) runs_.Return(page);
}

OpenPage KvPool::OpenPageAt(int layer, const PageId (&pieces)[kOpenPieces]) const {
  OpenPage open;
  for (int i = 0; i < kOpenPieces; ++i) open.pieces[i] = pieces[i] == kNoPage ? nullptr : Address(layer, pieces[i]);
  open.head_stride_bytes = page_stride_bytes_ / static_cast<size_t>(shape_.kv_heads);
  return open;
}

void KvPool::CopyPage(PageId from, PageId to) {
  if (copies_ == PageCopies::kElsewhere) return;
  for (int layer = 0; layer < layers_; ++layer) {
    std::memcpy(Address(layer, to), Address(layer, from), page_stride_bytes_);
  }
}

}  // namespace fastdecode
