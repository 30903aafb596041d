// FAST PATH (docs/FAST_PATH.md)
// What kernels of a step are told of the sequences that have their home on the GPU. Nothing here allocates, locks, logs
// or enters the kernel.
#include <algorithm>

#include "engine/spart/cuda/gpu_home.h"
#include "numa/check.h"

namespace fastdecode {

static_assert(kNoCopy == kNoPage);

uint32_t GpuHome::TakeStep(int micro_batch, const StepTable& table, const KvStepMemory& memory, StepRow* rows) {
  *memory.board = {};
  const bool attached = index_ >= 0 && table.home_areas[static_cast<size_t>(index_)].send != nullptr;
  if (!attached) return 0;
  uint32_t taken = 0;
  int row = NextRow(table, 0);
  if (row == table.rows) return 0;  // and the roster is that of an earlier step
  FD_CHECK(kept_[static_cast<size_t>(micro_batch)].empty(), "a step begins before the one before is over");
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
    rows[row].copied_page = TakePages(micro_batch, roster_entry.sequence, memory, &entry);
    memory.entries[memory.board->entries++] = entry;
    for (uint32_t i = 0; i < entry.rows; ++i) rows[row++].slot = entry.slot;
    taken += entry.rows;
  }
  TellIfDue();
  return taken;
}

void GpuHome::EndStep(int micro_batch) {
  std::vector<PageId>& kept = kept_[static_cast<size_t>(micro_batch)];
  for (; !kept.empty(); kept.pop_back()) account_.Return(kept.back());
}

// The first row from `row` on that is here; table.rows: there is none.
int GpuHome::NextRow(const StepTable& table, int row) const {
  while (row < table.rows && table.homes[static_cast<size_t>(row)] != index_) ++row;
  return row;
}

// Fills in the entry's slot and returns its first row's copied_page. The pipeline counts pages, kept ones among them:
// there are enough.
PageId GpuHome::TakePages(int micro_batch, uint64_t id, const KvStepMemory& memory, KvEntry* entry) {
  KvSequence* const sequence = table_.Find(id);
  const uint32_t position = entry->position, first_page = position / kPageTokens;
  FD_CHECK(sequence != nullptr && position <= sequence->stored_tokens[0], "a row that does not follow what is stored");
  const PageId before = first_page < sequence->pages.size() ? sequence->pages[first_page] : kNoPage;
  FD_CHECK(table_.Grow(sequence, position, entry->rows) == GrowOutcome::kOk, "more pages are taken than were counted");
  sequence->stored_tokens[0] = position + entry->rows;
  Placed& placed = placed_.find(id)->second;
  const bool unshared = before != kNoPage && sequence->pages[first_page] != before;
  if (unshared) placed.pages = std::min(placed.pages, first_page);
  for (; placed.pages < sequence->pages.size(); ++placed.pages) {
    memory.changes[memory.board->changes++] = {placed.slot, placed.pages, sequence->pages[placed.pages]};
  }
  entry->slot = placed.slot;
  if (!unshared || position % kPageTokens == 0) return kNoPage;
  account_.AddReference(before);
  kept_[static_cast<size_t>(micro_batch)].push_back(before);  // reserved
  return before;
}

bool GpuHome::TakeMessage(void* buffer, size_t* bytes) {
  TellIfDue();
  return outbox_.TryTake(buffer, bytes);
}

// Tells the engine what pages there are, if it does not know that yet and has not been told anything for a while.
void GpuHome::TellIfDue() {
  const bool known = told_once_ && told_.sequences == table_.size() && told_.pages_free == account_.free() &&
                     told_.pages_held == pool_.held();
  if (known) return;
  const uint64_t now_ns = options_.now_ns();
  if (!told_once_ || now_ns - told_ns_ >= kStatsPeriodNs) Tell(now_ns, /*idle=*/0);
}

// Dropped if there is no room: it counts as not told.
void GpuHome::Tell(uint64_t now_ns, uint32_t idle) {
  StatsMessage now;
  now.idle = idle;
  now.sequences = table_.size();
  now.pages_total = account_.granted();
  now.pages_free = account_.free();
  now.pages_held = pool_.held();
  told_ns_ = now_ns;
  if (!outbox_.TryPut(now)) return;
  told_ = now;
  told_once_ = true;
}

}  // namespace fastdecode
