#ifndef FASTDECODE_ENGINE_RPART_RPART_SHAPE_H_
#define FASTDECODE_ENGINE_RPART_RPART_SHAPE_H_

#include <string>

#include "absl/status/status.h"
#include "engine/rpart/messages.h"
#include "rdma/link.h"

namespace fastdecode {

// Errors: InvalidArgument that names the first field out of range, its value and what is allowed. A shape that passes
// bounds everything that a home allocates for it, so that no peer can make a home run out of memory.
absl::Status ValidateShape(const RPartShape& shape);

// "kv_heads is 8 here and 4 there; ..." for every field of the model that differs; empty if none does. The element type
// and the sizes of batches and context are the run's, not the model's.
std::string DescribeModelDifference(const RPartShape& here, const RPartShape& there);
// As that, and the element type: what peers that share a home's pages must agree on.
std::string DescribePageDifference(const RPartShape& here, const RPartShape& there);

// Whether a home, by its ISA, may attend to rows of prompts with a kernel of their own, whose bits differ (decision
// 0021).
bool MayHavePromptKernel(const RPartShape& shape);

// Tokens of a bulk segment at most; 0: K and V of this shape cannot be pushed.
uint32_t PushTokensMax(const RPartShape& shape);
// The link that carries this shape's hops and replies; `push`: and bulk segments, where that can be.
LinkSize LinkSizeFor(const RPartShape& shape, bool push = false);
// Errors: InvalidArgument if a link of this size does not. The control ring may have any size, and there may be no bulk
// channel.
absl::Status CheckLinkCarries(const RPartShape& shape, const LinkSize& size);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_RPART_SHAPE_H_
