#include "tools/load/plan.h"

#include <algorithm>

namespace fastdecode::load {

namespace {

constexpr uint64_t kLengthsSeed = 1'000'003;  // added to the load's

}  // namespace

LoadDrawer::LoadDrawer(const LoadShape& shape)
    : shape_(shape), gaps_(shape.seed), lengths_(shape.seed + kLengthsSeed) {}

PlannedRequest LoadDrawer::Next() {
  PlannedRequest request;
  request.arrival = arrival_;
  lengths_.Uniform();  // for loads of several classes, which draw theirs here
  request.prompt_tokens = shape_.prompt.Draw(lengths_);
  request.output_tokens = shape_.output.Draw(lengths_);
  arrival_ += shape_.arrivals.DrawGap(gaps_);
  return request;
}

std::vector<PlannedRequest> DrawLoad(const LoadShape& shape, size_t count) {
  LoadDrawer drawer(shape);
  std::vector<PlannedRequest> requests(count);
  std::generate(requests.begin(), requests.end(), [&] { return drawer.Next(); });
  return requests;
}

std::vector<int32_t> DrawIds(int64_t count, int32_t first, int32_t last, Random& random) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::generate(ids.begin(), ids.end(), [&] { return static_cast<int32_t>(random.Between(first, last)); });
  return ids;
}

}  // namespace fastdecode::load
