#ifndef FASTDECODE_ENGINE_RPART_KV_POOL_H_
#define FASTDECODE_ENGINE_RPART_KV_POOL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/rpart/page_runs.h"
#include "kernels/attention.h"

namespace fastdecode {

// Who copies what is in a page that is given in place of a shared one.
enum class PageCopies : uint8_t {
  kByPool,     // CopyPage, at once: the memory is the host's
  kElsewhere,  // whoever writes to the page: CopyPage touches no memory, which the host may not reach
};

// The KV memory of one home, cut into pages of 32 tokens that cover all layers. Physical order: [layer][page][kv
// head][K|V], so that consecutive pages are contiguous in every layer; what lies inside a (layer, page) is the kernels'
// business. Owns: the pages' reference counts and which of them are free; the memory is the caller's and must outlive
// it. Thread: the team's leader alone takes and returns pages; addresses are anyone's. Bounded: by the memory. Nothing
// allocates after construction.
class KvPool {
 public:
  // What a grown sequence takes at once, of each layer: the CPU's prefetcher has to begin anew with each piece, and
  // from here on that costs next to nothing.
  static constexpr size_t kRunBytes = 256 * 1024;

  // It has as many pages as fit into `memory` (64-byte aligned), maybe none. With PageCopies::kElsewhere the pool only
  // counts: it never reads or writes the memory.
  KvPool(const AttentionShape& shape, int layers, std::span<std::byte> memory, PageCopies copies = PageCopies::kByPool);

  // Bytes of one page, all layers.
  static size_t PageBytesAllLayers(const AttentionShape& shape, int layers);

  // Pages of a run: as many as fit kRunBytes in one layer, a power of two from 1 to PageRuns::kRunPagesMax.
  static uint32_t RunPages(const AttentionShape& shape);

  // A single page with one reference, or kNoPage if all are in use. Its content is whatever its last user left.
  PageId Take() { return TakeBehind(kNoPage, 1); }
  // The same for a sequence whose last page is `last` (kNoPage: it has none) and that will have `sequence_pages` after
  // the growth that this page is part of: where it lies best, and with what PageRuns holds behind it for the next.
  PageId TakeBehind(PageId last, uint32_t sequence_pages);
  // One more user of a page that is in use. O(1).
  void AddReference(PageId page);
  // One user less; the last one frees it. REQUIRES: the page is in use.
  void Return(PageId page);
  uint32_t references(PageId page) const { return references_[page]; }

  // Copies all layers of `from` to `to`, unless that is done elsewhere.
  void CopyPage(PageId from, PageId to);

  // An open page that lies in these; kNoPage: it has no such piece.
  OpenPage OpenPageAt(int layer, const PageId (&pieces)[kOpenPieces]) const;
  const AttentionShape& shape() const { return shape_; }

  std::byte* LayerBase(int layer) const { return base_ + static_cast<size_t>(layer) * layer_stride_bytes_; }
  std::byte* Address(int layer, PageId page) const { return LayerBase(layer) + page * page_stride_bytes_; }
  // Of one page in one layer, all KV heads.
  size_t page_stride_bytes() const { return page_stride_bytes_; }

  uint32_t total() const { return static_cast<uint32_t>(references_.size()); }
  // Those that nobody uses: as long as there is one, Take finds one.
  uint32_t free() const { return runs_.free(); }
  // Of these, the ones held behind sequences that grow, for as long as there are others.
  uint32_t held() const { return runs_.held(); }

 private:
  // Constant after construction.
  const AttentionShape shape_;
  std::byte* const base_;
  const int layers_;
  const size_t page_stride_bytes_;
  const PageCopies copies_;
  size_t layer_stride_bytes_ = 0;

  std::vector<uint32_t> references_;  // [page]; 0: free
  PageRuns runs_;                     // the free ones
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_KV_POOL_H_
