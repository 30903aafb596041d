#include "engine/rpart/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "numa/check.h"

namespace fastdecode {

KvPool::KvPool(const AttentionShape& shape, int layers, std::span<std::byte> memory)
    : base_(memory.data()), layers_(layers), page_stride_bytes_(PageBytes(shape)) {
  FD_CHECK(layers > 0 && page_stride_bytes_ > 0, "a pool needs a shape with layers and page bytes");
  // kNoPage itself is no page.
  const size_t pages = std::min<size_t>(memory.size() / PageBytesAllLayers(shape, layers), kNoPage);
  layer_stride_bytes_ = pages * page_stride_bytes_;
  references_.assign(pages, 0);
  free_list_.resize(pages);
  // Ascending addresses first: a sequence that grows alone gets neighbours.
  for (size_t i = 0; i < pages; ++i) free_list_[i] = static_cast<PageId>(pages - 1 - i);
}

size_t KvPool::PageBytesAllLayers(const AttentionShape& shape, int layers) {
  return PageBytes(shape) * static_cast<size_t>(layers);
}

PageId KvPool::Take() {
  if (free_list_.empty()) return kNoPage;
  const PageId page = free_list_.back();
  free_list_.pop_back();
  FD_CHECK(references_[page] == 0, "a page on the free list is in use");
  references_[page] = 1;
  return page;
}

void KvPool::AddReference(PageId page) {
  FD_CHECK(page < references_.size() && references_[page] > 0, "a free page is shared");
  ++references_[page];
}

void KvPool::Return(PageId page) {
  FD_CHECK(page < references_.size() && references_[page] > 0, "a free page is returned");
  if (--references_[page] == 0) free_list_.push_back(page);  // within the constructor's capacity
}

void KvPool::CopyPage(PageId from, PageId to) {
  for (int layer = 0; layer < layers_; ++layer) {
    std::memcpy(Address(layer, to), Address(layer, from), page_stride_bytes_);
  }
}

}  // namespace fastdecode
