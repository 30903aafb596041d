#ifndef FASTDECODE_TOOLS_LOAD_PLAN_H_
#define FASTDECODE_TOOLS_LOAD_PLAN_H_

#include <cstdint>
#include <vector>

#include "tools/load/arrivals.h"
#include "tools/load/lengths.h"
#include "tools/load/random.h"

namespace fastdecode::load {

// One request of a load that is still to be made up.
struct PlannedRequest {
  double arrival = 0;  // at a rate of 1 a second, from the first on; Arrivals::Time says when that is at another
  int64_t prompt_tokens = 1, output_tokens = 1;
};

// What a load consists of, as distributions.
struct LoadShape {
  Lengths prompt, output;
  Arrivals arrivals;
  uint64_t seed = 0;
};

// Draws the requests of a load, one after the other and without end. Lengths do not depend on how requests arrive, nor
// arrivals on how long they are. Thread: one.
class LoadDrawer {
 public:
  explicit LoadDrawer(const LoadShape& shape);
  PlannedRequest Next();

 private:
  const LoadShape shape_;
  Random gaps_, lengths_;
  double arrival_ = 0;
};

std::vector<PlannedRequest> DrawLoad(const LoadShape& shape, size_t count);

// So many token ids from first to last.
std::vector<int32_t> DrawIds(int64_t count, int32_t first, int32_t last, Random& random);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_PLAN_H_
