#ifndef FASTDECODE_ENGINE_RPART_STEP_ENTRY_H_
#define FASTDECODE_ENGINE_RPART_STEP_ENTRY_H_

#include <cstdint>

#include "engine/rpart/sequence_table.h"
#include "kernels/attention.h"

namespace fastdecode {

// Entries of up to this many rows append and attend in one go; longer ones ("chunks") are cut into tiles of rows that
// all need all of the chunk's K and V, so these are appended first, and a barrier follows. With int4 so are those with
// rows outside the sequence's one open page: in several pages, or replayed in an earlier one.
inline constexpr uint32_t kDecodeRowsMax = kMaxRowsOfHeads;

// One roster entry as one step sees it.
struct StepEntry {
  KvSequence* sequence = nullptr;  // null: unknown here, and then bad
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t first_position = 0;
  uint32_t write_from = 0;  // of this hop's layer: positions below are stored already
  bool bad = false;         // cannot be computed in this step: its rows' o are zero
  bool reported = false;    // the engine knows

  bool of_prompt = false;    // its rows: some kernels have other arithmetic for these
  bool in_open_page = true;  // or the KV has none

  bool is_chunk() const { return rows > kDecodeRowsMax || !in_open_page; }
  uint32_t end_position() const { return first_position + rows; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_STEP_ENTRY_H_
