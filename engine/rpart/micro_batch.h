// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_RPART_MICRO_BATCH_H_
#define FASTDECODE_ENGINE_RPART_MICRO_BATCH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/rpart/page_counts.h"
#include "engine/rpart/plan.h"
#include "engine/rpart/roster.h"
#include "engine/rpart/sequence_table.h"
#include "rdma/wire.h"

namespace fastdecode {

// One micro-batch at a home: its roster, and the step that it is in: entries, plans, progress through the layers.
// Owns: roster, entries and plans.
// Thread: the team's leader; the team reads entries and a plan while the leader waits for it.
// Bounded: by the shape; allocates nothing after construction.
class MicroBatch {
 public:
  // `limits`: those of layers without a window, if there are any; the others' plans need no more.
  MicroBatch(uint32_t index, const RPartShape& shape, const PlanLimits& limits);

  Roster& roster() { return roster_; }
  const Roster& roster() const { return roster_; }
  // That of the layer's hops.
  HopPlan& plan(uint32_t layer) { return *plans_[shape_.windowed(layer)]; }
  std::span<const StepEntry> entries() const { return entries_; }

  // What about the header does not fit the shape, the roster and the hops before; null if all does.
  // REQUIRES: its roster version is not above ours.
  const char* Check(const HopHeader& header) const;

  // Before the hop runs: at layer 0, or when sequences changed under it, looks the sequences up, takes the pages that
  // the step needs and plans; at every layer finds out what is to be appended. Entries that fail become bad until the
  // step ends. Null, or what about the roster does not fit the step.
  const char* Prepare(const HopHeader& header, SequenceTable* table);

  // After the hop ran: what was appended is stored.
  void Finish(uint32_t layer);

  // The first bad entry that the engine has not been told of, which then counts as told; null if none.
  const StepEntry* ReportBadEntry();
  bool has_unreported_bad_entry() const;

 private:
  const char* ResolveEntries(uint64_t step, const SequenceTable& table);
  static bool TakePages(StepEntry* entry, SequenceTable* table);

  // Constant after construction.
  const RPartShape shape_;
  const PageCounts counts_;

  Roster roster_;
  std::optional<HopPlan> plans_[2];  // [windowed], where there are such layers
  std::vector<StepEntry> entries_;
  uint64_t step_ = 0;           // the current or last one
  uint32_t step_version_ = 0;   // of its roster
  uint32_t next_layer_ = 0;     // of that step; `layers` when it is over
  uint64_t table_changes_ = 0;  // of the sequence table when the plan was made
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_MICRO_BATCH_H_
