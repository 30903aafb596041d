#ifndef FASTDECODE_ENGINE_RPART_READ_RATE_H_
#define FASTDECODE_ENGINE_RPART_READ_RATE_H_

#include <cstddef>
#include <span>
#include <vector>

namespace fastdecode {

// How fast the cores (OS numbers; -1: not pinned) together read memory, in bytes a second: each its own part of
// `memory`, for some milliseconds. Memory that caches hold is read faster than others. 0: too little of it. REQUIRES:
// AVX2; memory is 64-byte aligned.
double MeasureReadRate(std::span<const std::byte> memory, const std::vector<int>& cores);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_READ_RATE_H_
