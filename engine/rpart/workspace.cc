#include "engine/rpart/workspace.h"

#include <utility>

#include "engine/rpart/plan.h"

namespace fastdecode {

absl::StatusOr<TeamWorkspace> TeamWorkspace::Create(const AttentionShape& shape, size_t threads, int node,
                                                    size_t partial_floats) {
  constexpr size_t kThreadAlign = 4096;  // no two threads share a line, nor what the prefetcher pulls along
  TeamWorkspace workspace;
  workspace.threads_ = static_cast<int>(threads);
  workspace.scratch_bytes_ = (AttendScratchBytes(shape) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  workspace.tile_floats_ = PartialFloatsMax(shape);
  workspace.query_bytes_ = (SharedQueryBytesMax(shape) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  workspace.open_head_bytes_ = kOpenPieces * OpenPieceBytes(shape);
  const size_t used = workspace.scratch_bytes_ + 2 * workspace.tile_floats_ * sizeof(float) + workspace.query_bytes_ +
                      OpenPagesMax(shape) * workspace.open_head_bytes_;
  workspace.thread_bytes_ = (used + kThreadAlign - 1) / kThreadAlign * kThreadAlign;

  ArenaOptions options;
  options.bytes = threads * workspace.thread_bytes_ + partial_floats * sizeof(float);
  options.node = node;
  absl::StatusOr<Arena> arena = Arena::Create(options);
  if (!arena.ok()) return arena.status();
  workspace.arena_ = *std::move(arena);
  return workspace;
}

}  // namespace fastdecode
