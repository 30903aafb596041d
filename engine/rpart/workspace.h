#ifndef FASTDECODE_ENGINE_RPART_WORKSPACE_H_
#define FASTDECODE_ENGINE_RPART_WORKSPACE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "numa/arena.h"

namespace fastdecode {

// What a team computes in: per thread the kernels' scratch, two partials (the running one and the one of a block), the
// q of a shared chain and one KV head of a tile's open pages, and one area for the partials of chains of several hands.
// All of it on the team's node, touched beforehand. Owns: its memory. Thread: thread t has scratch(t), running(t),
// block(t), queries(t) and open_head(t, i) to itself; a HopPlan says whose the shared slots are.
class TeamWorkspace {
 public:
  // Errors: those of Arena::Create.
  static absl::StatusOr<TeamWorkspace> Create(const AttentionShape& shape, size_t threads, int node,
                                              size_t partial_floats);

  std::byte* scratch(int thread) const { return ThreadBase(thread); }
  float* running(int thread) const { return reinterpret_cast<float*>(ThreadBase(thread) + scratch_bytes_); }
  float* block(int thread) const { return running(thread) + tile_floats_; }
  std::byte* queries(int thread) const { return reinterpret_cast<std::byte*>(block(thread) + tile_floats_); }
  // Of open page `index` of a tile; aligned to 64 bytes.
  std::byte* open_head(int thread, size_t index) const {
    return queries(thread) + query_bytes_ + index * open_head_bytes_;
  }
  float* partials() const { return reinterpret_cast<float*>(ThreadBase(threads_)); }

 private:
  std::byte* ThreadBase(int thread) const {
    return reinterpret_cast<std::byte*>(arena_.data()) + static_cast<size_t>(thread) * thread_bytes_;
  }

  Arena arena_;
  int threads_ = 0;
  size_t scratch_bytes_ = 0;
  size_t tile_floats_ = 0;
  size_t query_bytes_ = 0;
  size_t open_head_bytes_ = 0;
  size_t thread_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_WORKSPACE_H_
