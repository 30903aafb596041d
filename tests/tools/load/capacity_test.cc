// The highest rate of an engine that plays what prompts say, in real time: so many sequences at once, each for so long.
#include <algorithm>
#include <cmath>
#include <fastdecode/fastdecode.hpp>
#include <iostream>
#include <vector>

#include "gtest/gtest.h"
#include "tools/load/engine_load.h"
#include "tools/load/plan.h"
#include "tools/load/rate_search.h"

namespace fastdecode::load {

namespace {

constexpr double kTarget = 0.9;
constexpr double kServiceS = 0.5;
constexpr int kSequences = 16;

class EvenLoad : public RequestSource {
 public:
  EvenLoad(double rate, size_t count) : rate_(rate), count_(count) {}
  bool Next(double* arrival_s) override {
    if (next_ == count_) return false;
    *arrival_s = static_cast<double>(next_++) / rate_;
    return true;
  }
  void Make(GenerateRequest* request) override { *request = GenerateRequest("{ms:500} a"); }

 private:
  const double rate_;
  const size_t count_;
  size_t next_ = 0;
};

double FindRate(InferenceEngine& engine) {
  EngineLoadOptions open;
  open.open = true;
  open.concurrency = 0;
  // Some more than what a request takes at least, so that a core that is away for a moment fails nothing.
  const Limits limits = ParseLimits({"ttft:700"}, true);
  return FindMaxRate({20, 0.01, 640},
                     [&](double rate, size_t requests) {
                       EvenLoad load(rate, requests);
                       size_t missed = 0;
                       RunHooks hooks;
                       hooks.goes_on = [&](const RequestResult& result) {
                         missed += MeetsAll(result, limits) ? 0 : 1;
                         return static_cast<double>(missed) <= (1 - kTarget) * static_cast<double>(requests);
                       };
                       RatePoint point;
                       point.rate = rate;
                       point.requests = requests;
                       const LoadRun run = EngineLoad(engine, load, open, hooks).Run();
                       point.attainment = Judge(run, limits);
                       point.reached = run.results.size() == requests && point.attainment.Reaches(kTarget);
                       return std::optional(point);
                     })
      .rate;
}

// Both cores may be taken from this process for a while, so that a search finds too little: of three, one must not.
TEST(FindMaxRate, FindsTheCapacityOfAnEngine) {
  EngineOptions options;
  options.Set("model", ".");
  options.Set("max-sequences", std::to_string(kSequences));
  options.Set("stub-pause-us", "0");
  InferenceEngine engine(options);
  constexpr double kCapacity = kSequences / kServiceS;
  double nearest = 0;
  for (int attempt = 0; attempt < 3 && std::abs(nearest / kCapacity - 1) > 0.02; ++attempt) {
    const double found = FindRate(engine);
    std::cout << "found " << found << " of " << kCapacity << " requests/s" << std::endl;
    EXPECT_LE(found, 1.02 * kCapacity);
    if (std::abs(found - kCapacity) < std::abs(nearest - kCapacity)) nearest = found;
  }
  EXPECT_NEAR(nearest / kCapacity, 1, 0.02);
}

}  // namespace

}  // namespace fastdecode::load
