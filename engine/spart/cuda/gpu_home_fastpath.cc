// FAST PATH (docs/FAST_PATH.md)
// What kernels of a step are told of the sequences that have their home on the GPU. Nothing here allocates, locks, logs
// or enters the kernel.
#include "engine/spart/cuda/gpu_home.h"
#include "numa/check.h"

namespace fastdecode {

uint32_t GpuHome::TakeStep(int micro_batch, const StepTable& table, const KvStepMemory& memory, StepRow* rows) {
  *memory.board = {};
  const bool attached = index_ >= 0 && table.home_areas[static_cast<size_t>(index_)].send != nullptr;
  if (!attached) return 0;
  uint32_t taken = 0;
  int row = NextRow(table, 0);
  if (row == table.rows) return 0;  // and the roster is that of an earlier step
  // The table has the roster's sequences in its order, each with its rows one after another.
  for (const RosterEntry& roster_entry : rosters_[static_cast<size_t>(micro_batch)].entries()) {
    row = NextRow(table, row);
    const auto first = static_cast<size_t>(row);
    FD_CHECK(row + static_cast<int>(roster_entry.query_tokens) <= table.rows, "the roster has more rows than the step");
    KvEntry entry;
    entry.row = static_cast<uint32_t>(row);
    entry.home_row = table.home_rows[first];
    entry.rows = roster_entry.query_tokens;
    entry.position = static_cast<uint32_t>(table.positions[first]);
    entry.slot = TakePages(roster_entry.sequence, entry.position, entry.rows, memory);
    memory.entries[memory.board->entries++] = entry;
    for (uint32_t i = 0; i < entry.rows; ++i) rows[row++].slot = entry.slot;
    taken += entry.rows;
  }
  return taken;
}

// The first row from `row` on that is here; table.rows: there is none.
int GpuHome::NextRow(const StepTable& table, int row) const {
  while (row < table.rows && table.homes[static_cast<size_t>(row)] != index_) ++row;
  return row;
}

// Returns the slot. The pipeline counts pages: there are enough.
uint32_t GpuHome::TakePages(uint64_t id, uint32_t position, uint32_t rows, const KvStepMemory& memory) {
  KvSequence* const sequence = table_.Find(id);
  FD_CHECK(sequence != nullptr && position <= sequence->stored_tokens[0], "a row that does not follow what is stored");
  FD_CHECK(table_.Grow(sequence, position, rows) == GrowOutcome::kOk, "more pages are taken than were counted");
  sequence->stored_tokens[0] = position + rows;
  Placed& placed = placed_.find(id)->second;
  for (; placed.pages < sequence->pages.size(); ++placed.pages) {
    memory.changes[memory.board->changes++] = {placed.slot, placed.pages, sequence->pages[placed.pages]};
  }
  return placed.slot;
}

}  // namespace fastdecode
