#ifndef FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_
#define FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_

#include <cstdint>

#include "engine/pipeline/fixed_vector.h"
#include "engine/pipeline/prefix_hit.h"
#include "engine/pipeline/sequence.h"

namespace fastdecode {

// Why a sequence has left its micro-batch.
enum class LeaveReason : uint8_t {
  kEnds,       // it is cancelled, has failed, or has its last token: it is no longer the batcher's
  kPreempted,  // another sequence has its pages: it waits again, and is computed again from its tokens
  kHomeLost,   // its home was lost: it waits again, and is computed again from its tokens
};

// What has become of a sequence at a step boundary. The homes have not been told yet: that is the pipeline's.
struct BoundaryChange {
  enum class Kind : uint8_t {
    kLeft,     // its micro-batch; the pages that it had are free
    kJoined,   // its micro-batch, with pages of the tokens that it has
    kSettled,  // its prompt is stored at the home that it was pushed to, where it lives now
    kMoved,    // to another micro-batch
    kCut,      // a cached prefix, which has fewer pages, or none, from now on
  };
  Kind kind = Kind::kLeft;
  LeaveReason reason = LeaveReason::kEnds;  // kLeft
  Seat seat{};                              // kLeft, kSettled, kCut: that it had
  Seat push_seat{};                         // kLeft: where its prompt was pushed to
  Sequence* sequence = nullptr;             // kCut: null
  uint32_t kept_tokens = 0;                 // kLeft, kCut: that stay at the seat as a cached prefix; 0: none
  PrefixHit hit{};                          // kJoined: what it began with
};

// In the order in which they came about, but for cached prefixes, each of which is cut once between two forks of it.
// Bounded: by four times the sequences that are active at once, and those that are cached.
using BoundaryChanges = FixedVector<BoundaryChange>;

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_
