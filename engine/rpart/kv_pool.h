#ifndef FASTDECODE_ENGINE_RPART_KV_POOL_H_
#define FASTDECODE_ENGINE_RPART_KV_POOL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace fastdecode {

using PageId = uint32_t;
inline constexpr PageId kNoPage = UINT32_MAX;

// The KV memory of one home, cut into pages of 32 tokens that cover all layers. Physical order: [layer][page][kv
// head][K|V]; what lies inside a (layer, page) is the kernels' business. Owns: the pages' reference counts and the free
// list; the memory is the caller's and must outlive it. Thread: the team's leader alone takes and returns pages;
// addresses are anyone's. Bounded: by the memory. Nothing allocates after construction.
class KvPool {
 public:
  // As many pages as fit into `memory` (64-byte aligned); may be none.
  KvPool(const AttentionShape& shape, int layers, std::span<std::byte> memory);

  // Bytes of one page, all layers.
  static size_t PageBytesAllLayers(const AttentionShape& shape, int layers);

  // A page with one reference, or kNoPage. Its content is whatever its last user left. O(1).
  PageId Take();
  // One more user of a page that is in use. O(1).
  void AddReference(PageId page);
  // One user less; the last one frees it. O(1). REQUIRES: the page is in use.
  void Return(PageId page);
  uint32_t references(PageId page) const { return references_[page]; }

  // Copies all layers of `from` to `to`.
  void CopyPage(PageId from, PageId to);

  std::byte* LayerBase(int layer) const { return base_ + static_cast<size_t>(layer) * layer_stride_bytes_; }
  std::byte* Address(int layer, PageId page) const { return LayerBase(layer) + page * page_stride_bytes_; }
  // Of one page in one layer, all KV heads.
  size_t page_stride_bytes() const { return page_stride_bytes_; }

  uint32_t total() const { return static_cast<uint32_t>(references_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_list_.size()); }

 private:
  // Constant after construction.
  std::byte* const base_;
  const int layers_;
  const size_t page_stride_bytes_;
  size_t layer_stride_bytes_ = 0;

  std::vector<uint32_t> references_;  // [page]; 0: free
  std::vector<PageId> free_list_;     // the last one is taken next
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_KV_POOL_H_
