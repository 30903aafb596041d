// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/micro_batch.h"

#include <algorithm>

namespace fastdecode {

MicroBatch::MicroBatch(uint32_t index, const RPartShape& shape, const PlanLimits& limits)
    : shape_(shape),
      counts_(shape.attention()),
      roster_(index, shape.max_rows, shape.max_context),
      next_layer_(shape.layers) {
  entries_.reserve(shape.max_rows);  // at start
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    std::optional<HopPlan>& plan = plans_[shape.windowed(layer)];
    if (!plan.has_value()) plan.emplace(shape.attention(layer), limits);  // at start
  }
}

const char* MicroBatch::Check(const HopHeader& header) const {
  if (header.roster_version != roster_.version()) return "hop: its roster was replaced already";
  if (header.rows == 0 || header.rows != roster_.rows()) return "hop: rows are not those of its roster";
  if (header.payload_bytes != header.rows * shape_.hop_row_bytes()) return "hop: payload_bytes do not fit its rows";
  if (header.layer >= shape_.layers) return "hop: layer is beyond the model";
  if (header.layer == 0) {
    if (header.step <= step_) return "hop: step does not follow the last one";
  } else if (header.step != step_ || header.layer != next_layer_) {
    return "hop: layer does not follow the last one";
  } else if (header.roster_version != step_version_) {
    return "hop: roster changed within a step";
  }
  return nullptr;
}

const char* MicroBatch::Prepare(const HopHeader& header, SequenceTable* table) {
  if (header.layer == 0) entries_.clear();
  if (header.layer == 0 || table->changes() != table_changes_) {
    if (const char* error = ResolveEntries(header.step, *table)) return error;
    for (StepEntry& entry : entries_) entry.bad = entry.bad || !TakePages(&entry, table);
    for (std::optional<HopPlan>& plan : plans_) {
      if (plan.has_value()) plan->Build(entries_);
    }
    table_changes_ = table->changes();
  }
  for (StepEntry& entry : entries_) {
    if (entry.bad) continue;
    entry.bad = entry.sequence->Append(header.layer, entry.first_position) == AppendRule::kProtocolError;
    entry.write_from = std::max(entry.first_position, entry.sequence->stored_tokens[header.layer]);
    // Another micro-batch's step may have gone on with the sequence, which no engine has a reason for.
    const bool uses_open_page = entry.write_from < entry.end_position() || !entry.is_chunk();
    entry.bad |= uses_open_page && entry.sequence->pieces < counts_.Pieces(entry.end_position());
  }
  step_ = header.step;
  step_version_ = header.roster_version;
  next_layer_ = header.layer + 1u;
  return nullptr;
}

// Fills in entries_ for this step. What was bad or reported earlier in the step stays so, because the layers before are
// missing for good.
const char* MicroBatch::ResolveEntries(uint64_t step, const SequenceTable& table) {
  entries_.resize(roster_.entries().size());  // reserved
  uint32_t row = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const RosterEntry& from = roster_.entries()[i];
    StepEntry& entry = entries_[i];
    if (step < from.step_from) return "hop: step comes before its roster entry holds";
    if (step > from.step_from && from.query_tokens > 1) return "hop: a roster entry of several rows held for one step";
    const uint64_t position = from.first_position + (step - from.step_from);
    entry.sequence = table.Find(from.sequence);
    entry.first_row = row;
    entry.rows = from.query_tokens;
    entry.first_position = static_cast<uint32_t>(position);
    entry.of_prompt = position < from.prompt_tokens;
    if (entry.sequence == nullptr || position + entry.rows > shape_.max_context) entry.bad = true;
    if (counts_.open_pages() && entry.sequence != nullptr) {
      const uint64_t page_end = (position / kPageTokens + 1) * kPageTokens;
      entry.in_open_page = position + entry.rows <= page_end && entry.sequence->StoredTokensMax() <= page_end;
    }
    row += entry.rows;
  }
  return nullptr;
}

// False if the entry cannot be computed: tokens before it are missing, or there is no page left.
bool MicroBatch::TakePages(StepEntry* entry, SequenceTable* table) {
  KvSequence* const sequence = entry->sequence;
  if (entry->first_position > sequence->StoredTokensMax()) return false;
  const uint32_t write_from = std::max(entry->first_position, sequence->StoredTokensMin());
  if (write_from >= entry->end_position()) return true;  // a replay: all of it is stored
  return table->Grow(sequence, write_from, entry->end_position() - write_from) == GrowOutcome::kOk;
}

void MicroBatch::Finish(uint32_t layer) {
  for (const StepEntry& entry : entries_) {
    if (entry.bad) continue;
    uint32_t& stored = entry.sequence->stored_tokens[layer];
    stored = std::max(stored, entry.end_position());
  }
}

const StepEntry* MicroBatch::ReportBadEntry() {
  for (StepEntry& entry : entries_) {
    if (!entry.bad || entry.reported) continue;
    entry.reported = true;
    return &entry;
  }
  return nullptr;
}

bool MicroBatch::has_unreported_bad_entry() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const StepEntry& e) { return e.bad && !e.reported; });
}

}  // namespace fastdecode
