#ifndef FASTDECODE_ENGINE_RPART_PUSH_WORK_H_
#define FASTDECODE_ENGINE_RPART_PUSH_WORK_H_

#include <cstddef>
#include <cstdint>

#include "engine/rpart/kv_pool.h"
#include "engine/rpart/sequence_table.h"
#include "kernels/attention.h"

namespace fastdecode {

// One bulk segment as the team sees it: K and V of a sequence's tokens, to be put into its pages. A view; owns nothing.
// Thread: every thread of the team runs RunShare once a segment.
struct PushWork {
  // Constant while the peer is attached.
  AttentionShape attention;
  AppendFn append = nullptr;
  const KvPool* pool = nullptr;

  // Of this segment.
  const KvSequence* sequence = nullptr;  // has the pages
  int layer = 0;
  uint32_t write_from = 0;
  uint32_t end = 0;                 // > write_from
  const std::byte* rows = nullptr;  // [end - write_from] of k, v
  size_t row_bytes = 0;

  // A TicketTeam::Work; `context` is a PushWork.
  static void RunShare(void* context, int thread, int threads);

 private:
  void AppendPage(uint32_t page, int kv_head) const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PUSH_WORK_H_
