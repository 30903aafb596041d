#ifndef FASTDECODE_ENGINE_SPART_CUDA_ROW_BUCKETS_H_
#define FASTDECODE_ENGINE_SPART_CUDA_ROW_BUCKETS_H_

#include <vector>

namespace fastdecode {

// For how many rows graphs are made: every number up to 4, then eighths of the powers of two (at least 8 rows apart
// above 8), up to the first that is enough for rows_max: a step computes at most an eighth of its rows in vain, or 7.
std::vector<unsigned> RowBuckets(unsigned rows_max);
// The index of the smallest bucket that is enough. REQUIRES: rows <= buckets.back().
int BucketFor(const std::vector<unsigned>& buckets, unsigned rows);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_ROW_BUCKETS_H_
