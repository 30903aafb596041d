#ifndef FASTDECODE_ENGINE_RPART_RANDOM_KV_H_
#define FASTDECODE_ENGINE_RPART_RANDOM_KV_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/rpart/sequence_table.h"
#include "kernels/attention.h"
#include "numa/ticket_team.h"

namespace fastdecode {

// Fills pages with random K and V in [-1, 1), for measuring. What a page gets depends on sequence, page, layer and
// head. Owns: a table of random elements, of which every head's tokens are a window. Thread: the team's leader.
class RandomKv {
 public:
  RandomKv(const AttentionShape& shape, const AttentionKernels& kernels, const KvPool* pool);

  // One page of a sequence that has `tokens` tokens, as far as they go, all layers and heads, by the whole team.
  void FillPage(TicketTeam* team, const KvSequence& sequence, uint32_t page_index, uint32_t tokens);

 private:
  static void FillShare(void* context, int thread, int threads);
  void FillHead(int layer, int kv_head) const;

  const AttentionShape shape_;
  const AttentionKernels kernels_;
  const KvPool* const pool_;
  std::vector<std::byte> elements_;  // kWindowStarts more than K and V of a head's page need

  // Of the page being filled.
  const KvSequence* sequence_ = nullptr;
  uint32_t page_index_ = 0;
  uint32_t tokens_ = 0;  // in it
  bool open_ = false;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_RANDOM_KV_H_
