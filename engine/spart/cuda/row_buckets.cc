#include "engine/spart/cuda/row_buckets.h"

#include <algorithm>
#include <bit>

namespace fastdecode {

namespace {

constexpr unsigned kSingleRowsMax = 4;
constexpr unsigned kStepMin = 8;

unsigned Next(unsigned bucket) {
  if (bucket < kSingleRowsMax) return bucket + 1;
  if (bucket < kStepMin) return kStepMin;
  return bucket + std::max(kStepMin, std::bit_floor(bucket) / 8);
}

}  // namespace

std::vector<unsigned> RowBuckets(unsigned rows_max) {
  std::vector<unsigned> buckets = {1};
  while (buckets.back() < rows_max) buckets.push_back(Next(buckets.back()));
  return buckets;
}

int BucketFor(const std::vector<unsigned>& buckets, unsigned rows) {
  return static_cast<int>(std::lower_bound(buckets.begin(), buckets.end(), rows) - buckets.begin());
}

}  // namespace fastdecode
