#ifndef FASTDECODE_ENGINE_RPART_HOP_WORK_H_
#define FASTDECODE_ENGINE_RPART_HOP_WORK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/rpart/kv_pool.h"
#include "engine/rpart/messages.h"
#include "engine/rpart/plan.h"
#include "engine/rpart/served_peers.h"
#include "engine/rpart/workspace.h"
#include "kernels/attention.h"

namespace fastdecode {

// What the leader's share of a hop went into, ticks; attention is what is left of it.
struct LeaderTicks {
  uint64_t append = 0;     // k and v to pages, with the barrier behind chunks
  uint64_t merge = 0;      // of several hands: partials merged, o written
  uint64_t share_end = 0;  // when its share was done
};

// One hop as the team sees it: append k and v, attend, write o, as the plan says. A view; owns nothing.
// With int4 (hop_work_open_fastpath.cc) rows see their own page as an open one. That of a decoding entry is the
// sequence's, which is closed once it is full. A chunk's pages are closed as they are put together, the tiles put their
// own ones together for themselves, and at the end the last one becomes the sequence's: until then that is what the
// first page began with. Thread: every thread of the team runs RunShare once a hop; the leader, thread 0, also adds
// progress.
struct HopWork {
  // Constant while the peer is attached.
  RPartShape shape;
  AttentionKernels kernels;
  const KvPool* pool = nullptr;
  const TeamWorkspace* workspace = nullptr;
  const ServedPeers* served = nullptr;

  // Of this hop.
  HopPlan* plan = nullptr;   // of layers such as this
  AttentionShape attention;  // of the layer
  std::span<const StepEntry> entries;
  int layer = 0;
  const std::byte* rows = nullptr;  // [rows] of q, k, v (RPartShape::hop_row_bytes)
  std::byte* o = nullptr;           // [rows][heads][head_dim]
  LeaderTicks* leader = nullptr;    // thread 0 adds to it; null: nobody asks

  // A TicketTeam::Work; `context` is a HopWork.
  static void RunShare(void* context, int thread, int threads);
  // Its two parts, for measuring: chunks' k and v to pages, and behind a barrier everything else.
  static void AppendShare(void* context, int thread, int threads);
  static void AttendShare(void* context, int thread, int threads);

 private:
  // The q of a chain's rows, from its first head on.
  struct Queries {
    const std::byte* first;
    size_t row_stride_bytes;
    bool set = false;  // the kernel has them from the thread's last block
  };

  void AppendChunks(int thread, int threads) const;
  void AppendRows(const StepEntry& entry, int kv_head, uint32_t first, uint32_t end, bool page_follows = false) const;
  size_t HeadBytes(int kv_heads) const {
    return static_cast<size_t>(kv_heads) * shape.head_dim * shape.element_bytes();
  }
  AppendArgs RowArgs(const StepEntry& entry, int kv_head, uint32_t position, uint32_t tokens,
                     bool page_follows = false) const;
  void RunPiece(const Chain& chain, uint32_t first_block, uint32_t end_block, int thread) const;
  Queries GatherQueries(const Chain& chain, int thread) const;
  Queries QueriesOf(const Chain& chain) const;
  void AttendBlock(const Chain& chain, uint32_t block, const Queries& queries, const Partial& out, const Partial& into,
                   int thread) const;
  std::byte* ResultsOf(const Chain& chain) const;
  void FinishPiece(const Chain& chain) const;
  void MergeAndFinish(const Chain& chain) const;
  void FinishChain(const Chain& chain, const Partial& partial) const;
  void HandOn(const Chain& shared, const Partial& partial) const;
  void CopyRows(const Chain& shared, const Partial& partial, const Sharer& sharer, const Chain& own) const;
  uint64_t* LeaderSum(int thread, uint64_t LeaderTicks::*sum) const {
    return thread == 0 && leader != nullptr ? &(leader->*sum) : nullptr;
  }
  size_t HeadOffset(const Chain& chain) const;
  bool HasOwnRows(const Chain& chain, uint32_t block) const;
  void SetNext(const Chain& chain, uint32_t block, AttendArgs* args) const;
  bool FindNextAppend(const Chain& chain, uint32_t block, int thread, NextAppend* next) const;

  // Of open pages.
  bool has_open_pages() const { return HasOpenPages(attention); }
  bool FindOpenPages(const Chain& chain, uint32_t block, int thread, OpenPage* open) const;
  OpenPage OpenPageOf(const StepEntry& entry) const { return pool->OpenPageAt(layer, entry.sequence->open_pieces); }
  OpenPage OpenHead(int thread, size_t index = 0) const;
  void FillOpenHead(const StepEntry& entry, uint32_t page, int kv_head, const OpenPage& to) const;
  void CloseChunkPage(const StepEntry& entry, uint32_t page, int kv_head, bool page_follows, int thread) const;
  void KeepOpenPages(int thread, int threads) const;
  void CopyOpenHead(const OpenPage& from, const OpenPage& to, int kv_head, uint32_t tokens) const;

  Partial At(const Chain& chain, float* floats) const;
  float* Slot(const Chain& chain, uint32_t slot) const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOP_WORK_H_
