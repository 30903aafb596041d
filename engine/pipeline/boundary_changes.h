#ifndef FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_
#define FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_

#include <cstdint>

#include "engine/pipeline/fixed_vector.h"
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
  };
  Kind kind = Kind::kLeft;
  LeaveReason reason = LeaveReason::kEnds;  // kLeft
  Seat seat{};                              // kLeft, kSettled: that it had
  Seat push_seat{};                         // kLeft: where its prompt was pushed to
  Sequence* sequence = nullptr;
};

// In the order in which they came about. Bounded: by twice the sequences that are active at once.
using BoundaryChanges = FixedVector<BoundaryChange>;

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_BOUNDARY_CHANGES_H_
