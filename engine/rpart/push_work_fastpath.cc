// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>

#include "engine/rpart/push_work.h"

namespace fastdecode {

// This thread's part of the segment's (page, KV head) pairs.
void PushWork::RunShare(void* context, int thread, int threads) {
  const PushWork& push = *static_cast<const PushWork*>(context);
  const auto heads = static_cast<uint32_t>(push.attention.kv_heads);
  const uint32_t first_page = push.write_from / kPageTokens;
  const size_t pairs = size_t{(push.end - 1) / kPageTokens + 1 - first_page} * heads;
  const size_t begin = pairs * static_cast<size_t>(thread) / static_cast<size_t>(threads);
  const size_t end = pairs * (static_cast<size_t>(thread) + 1) / static_cast<size_t>(threads);
  for (size_t i = begin; i < end; ++i) {
    push.AppendPage(first_page + static_cast<uint32_t>(i / heads), static_cast<int>(i % heads));
  }
  EndStreams();
}

void PushWork::AppendPage(uint32_t page, int kv_head) const {
  const uint32_t position = std::max(page * kPageTokens, write_from);
  const size_t head_bytes = static_cast<size_t>(attention.head_dim) * ElementBytes(attention.type);
  AppendArgs args = {};
  args.page = pool->Address(layer, sequence->pages[page]);
  args.kv_head = kv_head;
  args.first_slot = static_cast<int>(position % kPageTokens);
  args.tokens = static_cast<int>(std::min((page + 1) * kPageTokens, end) - position);
  args.k = rows + (position - write_from) * row_bytes + static_cast<size_t>(kv_head) * head_bytes;
  args.v = args.k + row_bytes / 2;
  args.row_stride_bytes = row_bytes;
  if (kv_head + 1 < attention.kv_heads) args.next_k = args.k + head_bytes;
  append(attention, args);
}

}  // namespace fastdecode
