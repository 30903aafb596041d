#ifndef FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_H_
#define FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

// Attention over KV pages in a GPU's memory, in the stream of a step: the R-Part of those of its sequences that have
// their home there. Memory and `bucket` as in step_kernels.h. After a wait in vain (gave_up) these kernels do nothing.

// ---- Which sequences of a step those are

// One of them: consecutive rows of the step, and of the home's area.
struct KvEntry {
  uint32_t slot = 0;      // of the page tables
  uint32_t row = 0;       // its first one in the step
  uint32_t home_row = 0;  // in the area
  uint32_t rows = 0;      // >= 1
  uint32_t position = 0;  // of the first row; the others follow
};

// A page that a sequence has from this step on.
struct KvTableChange {
  uint32_t slot = 0;
  uint32_t index = 0;
  uint32_t page = 0;
};

// Pinned; the host's, unchanged while the step runs.
struct KvBoard {
  uint32_t entries = 0, changes = 0;
};

// The device's own account of them. Zeros before the first step.
struct KvCounts {
  uint32_t entries = 0, items = 0;
};
struct KvRoster {
  KvCounts* counts = nullptr;       // one
  KvEntry* entry = nullptr;         // [entries_max]
  uint32_t* first_items = nullptr;  // [entries_max + 1]: how many items of work the entries before have, and all have
};

// How attention is cut into items of work: each is a tile of queries of one KV head against a cut of the context. The
// queries of a sequence and KV head are numbered row by row, and in a row head by head of the group; a tile is
// tile_queries of them. Where cuts lie follows from the position alone (CutOf), and partials are merged in ascending
// order: a query's result depends on its q, its position and the KV that it sees, bit for bit, and on nothing else.
struct KvSplit {
  int kv_heads = 0, group = 0;
  unsigned tile_queries = 0;  // AttendTileQueries, or TensorTileQueries
  unsigned cuts_max = 0;      // of the longest context
  unsigned window = 0;        // positions that a query sees, its own included; 0: all
};

// ---- Kernels

// First of a step: changes the page tables, takes the entries and counts their items. One block.
struct TakeKvStepArgs {
  const KvBoard* board = nullptr;          // pinned
  const KvEntry* board_entries = nullptr;  // pinned [board->entries]
  const KvTableChange* changes = nullptr;  // pinned [board->changes]
  uint32_t* tables = nullptr;              // [slots][table_pages]
  uint32_t table_pages = 0;
  KvRoster roster;
  KvSplit split;
};

// k and v of those of the step's rows that have a slot, as they came into the home's area, into their pages; rounds to
// nearest even. Of those that have a push row, as they are, there, too. A block a row.
//
// Copy on write: a row with a copied_page is the first of its sequence in the step, and its page, which the tables have
// already, holds nothing yet. Its block copies the tokens of the layer that lie before it in copied_page to the same
// places; other rows of the step write other tokens. The page that is copied must stay as it is until the step is over.
struct AppendKvArgs {
  unsigned bucket = 0;
  const StepState* state = nullptr;
  const StepRow* rows = nullptr;  // device [bucket]
  WireRows wire;
  const std::byte* area = nullptr;  // device: hop rows
  KvPages pages;
  std::byte* push = nullptr;  // pinned: [push rows] of k [kv_heads][padded_head_dim], v
};

// o of the step's rows. Their k and v have been appended.
struct AttendKvArgs {
  const StepState* state = nullptr;
  KvRoster roster;
  KvSplit split;
  KvPages pages;
  WireRows wire;
  const std::byte* area = nullptr;       // device: hop rows, for q
  float scale = 0, soft_cap = 0;         // as AttentionShape
  ElementType type = ElementType::kF32;  // of out
  void* out = nullptr;                   // T [rows of the step][heads * wire.head_dim]; other rows are left alone
  unsigned blocks = 1;                   // at most, that share the items: who has done one takes the next
  // By tensor cores, where TensorCoresAttend to the KV: tiles are of TensorTileQueries; products are of q and weights
  // rounded to the type of the KV, or for int8 to fp16, after a power of two that makes the largest of a query's q less
  // than 2^15. Bits depend on the tile's size. Else products are of f32, and this says how many queries a thread
  // accumulates.
  bool tensor_cores = false;
  int thread_queries = 0;  // AttendThreadQueries
  // Of queries whose context has several cuts; query i is that of home row i / heads, head i % heads.
  float* partials = nullptr;  // [queries][cuts_max][head_dim]
  float* maxima = nullptr;    // [queries][cuts_max]; in units of log2
  float* sums = nullptr;      // [queries][cuts_max]
  // Zeros between kernels:
  uint32_t* arrived = nullptr;  // [queries]
  uint32_t* drawn = nullptr;    // how often blocks have asked for another item than their first
};

// A block of kAttendThreads is AttendGroups(head_dim) groups of threads, one of which has two dims of each query and
// accumulates thread_queries of them: 2, 4, 8 or 16.
inline constexpr unsigned kAttendThreads = 128;
inline constexpr int AttendGroups(int head_dim) { return 2 * static_cast<int>(kAttendThreads) / head_dim; }
// The least that make a tile of `queries`, or 16.
inline constexpr int AttendThreadQueries(int queries, int head_dim) {
  int of_thread = 2;
  while (of_thread < 16 && of_thread * AttendGroups(head_dim) < queries) of_thread *= 2;
  return of_thread;
}
inline constexpr unsigned AttendTileQueries(int thread_queries, int head_dim) {
  return static_cast<unsigned>(thread_queries * AttendGroups(head_dim));
}
// A block that attends by tensor cores has a tile of so many queries: of a chunk 16 a warp; of a decode step, which is
// read rather than computed, those of a KV head, 8 or 16, of which all warps have all and a part of the tokens.
inline constexpr unsigned kChunkQueries = kAttendThreads / 32 * 16, kReadQueriesMax = 16;
// Their operands then have at least the bits of those of GEMMs in `compute`.
inline constexpr bool TensorCoresAttend(KvType type, ElementType compute) {
  if (type == KvType::kBf16) return compute == ElementType::kBf16;
  return compute != ElementType::kF32 && (type == KvType::kFp16 || type == KvType::kInt8);
}
// Chunks and larger groups with longer heads would need more registers than a thread has.
inline constexpr unsigned TensorTileQueries(bool of_chunks, int head_dim, int group) {
  if (of_chunks && head_dim <= 128) return kChunkQueries;
  return group <= 8 || head_dim > 128 ? 8 : kReadQueriesMax;
}
// Cuts are kBlockTokens long up to the 16th. From there on they are twice as long after each doubling of the position,
// kCutsOfDoubling to a doubling: [8192, 16384) has 8 of 1024 tokens. So short contexts are cut finely, and partials
// grow with the logarithm of long ones: 131072 tokens have 48 cuts.
inline constexpr unsigned kCutsOfDoubling = 8;
// That the position is in. REQUIRES of both: positions below 2^31.
inline constexpr unsigned CutOf(unsigned position) {
  const unsigned block = position / kBlockTokens;
  const int doublings = BitWidth(block | kCutsOfDoubling) - BitWidth(kCutsOfDoubling);
  return kCutsOfDoubling * static_cast<unsigned>(doublings) + (block >> doublings);
}
// Its first position.
inline constexpr unsigned CutBegin(unsigned cut) {
  const unsigned doublings = cut < kCutsOfDoubling ? 0 : cut / kCutsOfDoubling - 1;
  return ((cut - kCutsOfDoubling * doublings) << doublings) * kBlockTokens;
}

LaunchShape ShapeOf(const TakeKvStepArgs& args);
LaunchShape ShapeOf(const AppendKvArgs& args);
LaunchShape ShapeOf(const AttendKvArgs& args);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_H_
