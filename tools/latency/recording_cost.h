#ifndef FASTDECODE_TOOLS_LATENCY_RECORDING_COST_H_
#define FASTDECODE_TOOLS_LATENCY_RECORDING_COST_H_

#include <fastdecode/fastdecode.hpp>
#include "nlohmann/json.hpp"

namespace fastdecode {

// What recording an engine under load costs it: tokens/s by turns with a reader and without, in pairs whose order
// changes from one to the next, so that what drifts hits both. {pairs, with_tokens_per_s, without_tokens_per_s,
// slowdown_share, slowdown_share_low, slowdown_share_high}: the mean of (time a token with / without) - 1 over the pairs,
// and its 95 % interval, of two pairs or more. Throws Interrupted. REQUIRES: pairs > 0, and a load that stays as it is.
nlohmann::json MeasureRecordingCost(InferenceEngine& engine, int pairs);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_RECORDING_COST_H_
