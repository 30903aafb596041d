// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_RPART_ROSTER_H_
#define FASTDECODE_ENGINE_RPART_ROSTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/rpart/messages.h"

namespace fastdecode {

// Which sequence sits in which rows of one micro-batch at this home.
// Owns: a copy of the last good roster message's entries.
// Thread: the team's leader.
// Bounded: by max_rows; Replace allocates nothing after construction unless it fails.
class Roster {
 public:
  Roster(uint32_t micro_batch, uint32_t max_rows, uint32_t max_context);

  // Takes the message over if it is sound and its version is the next one; otherwise nothing changes.
  // Errors: InvalidArgument that names micro-batch, entry, field and value.
  absl::Status Replace(std::span<const std::byte> message);

  uint32_t version() const { return version_; }  // 0: none came yet
  // Whether that version is here, or a later one: versions wrap around, and no two in use are far apart.
  bool Reached(uint32_t version) const { return static_cast<int32_t>(version - version_) <= 0; }
  uint32_t rows() const { return rows_; }
  std::span<const RosterEntry> entries() const { return entries_; }

 private:
  absl::Status CheckEntries(std::span<const RosterEntry> entries, uint32_t* rows);

  // Constant after construction.
  const uint32_t micro_batch_;
  const uint32_t max_rows_;
  const uint32_t max_context_;

  uint32_t version_ = 0;
  uint32_t rows_ = 0;
  std::vector<RosterEntry> entries_;
  std::vector<RosterEntry> incoming_;  // the message's, before they are known to be sound
  std::vector<uint64_t> sorted_ids_;   // to find duplicates
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_ROSTER_H_
