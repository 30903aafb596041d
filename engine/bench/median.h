#ifndef FASTDECODE_ENGINE_BENCH_MEDIAN_H_
#define FASTDECODE_ENGINE_BENCH_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fastdecode {

// The middle value; of an even number the mean of the middle two. REQUIRES: at least one value.
inline double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_MEDIAN_H_
