// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/roster.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace fastdecode {

Roster::Roster(uint32_t micro_batch, uint32_t max_rows, uint32_t max_context)
    : micro_batch_(micro_batch), max_rows_(max_rows), max_context_(max_context) {
  // Each entry has a row, so there are never more entries than rows.
  entries_.reserve(max_rows);  // at start
  incoming_.reserve(max_rows);  // at start
  sorted_ids_.reserve(max_rows);  // at start
}

absl::Status Roster::Replace(std::span<const std::byte> message) {
  RosterMessage header;
  if (message.size() < sizeof(header)) {
    return absl::InvalidArgumentError(absl::StrFormat("roster: %d bytes are less than its header", message.size()));
  }
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.entries > max_rows_) {
    return absl::InvalidArgumentError(absl::StrFormat("roster of micro-batch %d: %d entries, but at most %d rows",
                                                      micro_batch_, header.entries, max_rows_));
  }
  const size_t entries_bytes = header.entries * sizeof(RosterEntry);
  if (message.size() != sizeof(header) + entries_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat("roster of micro-batch %d: %d bytes for %d entries, not %d",
                                                      micro_batch_, message.size(), header.entries,
                                                      sizeof(header) + entries_bytes));
  }
  if (header.version != version_ + 1) {
    return absl::InvalidArgumentError(absl::StrFormat("roster of micro-batch %d: version %d follows version %d",
                                                      micro_batch_, header.version, version_));
  }
  incoming_.resize(header.entries);  // reserved
  if (entries_bytes > 0) std::memcpy(incoming_.data(), message.data() + sizeof(header), entries_bytes);
  uint32_t rows = 0;
  const absl::Status sound = CheckEntries(incoming_, &rows);
  if (!sound.ok()) return sound;
  entries_.swap(incoming_);
  rows_ = rows;
  version_ = header.version;
  return absl::OkStatus();
}

absl::Status Roster::CheckEntries(std::span<const RosterEntry> entries, uint32_t* rows) {
  *rows = 0;
  sorted_ids_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const RosterEntry& entry = entries[i];
    if (entry.query_tokens == 0 || entry.query_tokens > max_rows_ - *rows) {
      return absl::InvalidArgumentError(
          absl::StrFormat("roster of micro-batch %d: entry %d (sequence %d) has query_tokens %d, allowed is 1 to %d",
                          micro_batch_, i, entry.sequence, entry.query_tokens, max_rows_ - *rows));
    }
    if (entry.first_position >= max_context_ || entry.query_tokens > max_context_ - entry.first_position) {
      return absl::InvalidArgumentError(
          absl::StrFormat("roster of micro-batch %d: entry %d (sequence %d) has first_position %d and query_tokens %d, "
                          "max_context is %d",
                          micro_batch_, i, entry.sequence, entry.first_position, entry.query_tokens, max_context_));
    }
    if (entry.first_position < entry.prompt_tokens &&
        entry.query_tokens > entry.prompt_tokens - entry.first_position) {
      return absl::InvalidArgumentError(
          absl::StrFormat("roster of micro-batch %d: entry %d (sequence %d) has first_position %d and query_tokens %d, "
                          "of which prompt_tokens %d leaves some out",
                          micro_batch_, i, entry.sequence, entry.first_position, entry.query_tokens,
                          entry.prompt_tokens));
    }
    *rows += entry.query_tokens;
    sorted_ids_.push_back(entry.sequence);  // reserved
  }
  std::sort(sorted_ids_.begin(), sorted_ids_.end());
  const auto twice = std::adjacent_find(sorted_ids_.begin(), sorted_ids_.end());
  if (twice != sorted_ids_.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("roster of micro-batch %d: sequence %d has two entries", micro_batch_, *twice));
  }
  return absl::OkStatus();
}

}  // namespace fastdecode
