#include "tools/latency/recording_cost.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "numa/clock.h"
#include "tools/interrupt.h"

namespace fastdecode {

namespace {

constexpr uint64_t kHalfNs = 500'000'000;
constexpr uint64_t kSettleNs = 50'000'000;
constexpr std::chrono::milliseconds kReadMeanwhileEvery(20);

// Tokens a second in half a second.
double TokensPerS(InferenceEngine& engine, EngineRecord* record) {
  std::vector<fd_record_event> events;
  const auto wait = [&](uint64_t ns) {
    for (const uint64_t end_ns = NowNs() + ns; NowNs() < end_ns;) {
      std::this_thread::sleep_for(kReadMeanwhileEvery);
      events.clear();
      if (record != nullptr) record->ReadInto(&events);
      ThrowIfInterrupted();
    }
  };
  wait(kSettleNs);
  engine.ResetStatistics();
  wait(kHalfNs);
  return nlohmann::json::parse(engine.StatisticsJson())["tokens_per_s"].get<double>();
}

}  // namespace

nlohmann::json MeasureRecordingCost(InferenceEngine& engine, int pairs) {
  std::vector<double> slowdowns;
  double with_sum = 0, without_sum = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    double with = 0, without = 0;
    for (int half = 0; half < 2; ++half) {
      if ((half + pair) % 2 == 0) {
        without = TokensPerS(engine, nullptr);
      } else {
        EngineRecord record(engine);
        with = TokensPerS(engine, &record);
      }
    }
    if (with > 0) slowdowns.push_back(without / with - 1);
    with_sum += with;
    without_sum += without;
  }
  if (slowdowns.empty()) throw Error(FD_UNAVAILABLE, "--cost-pairs: the engine made no tokens");
  const double count = static_cast<double>(slowdowns.size());
  double mean = 0, squares = 0;
  for (const double slowdown : slowdowns) mean += slowdown / count;
  for (const double slowdown : slowdowns) squares += (slowdown - mean) * (slowdown - mean);
  // Student's t for 95 %, by its expansion around the normal distribution's 1.96.
  const double freedom = count - 1;
  const double t = 1.96 + 2.372 / freedom + 2.823 / (freedom * freedom);
  const double error = slowdowns.size() > 1 ? t * std::sqrt(squares / freedom / count) : 0;
  nlohmann::json out = {{"pairs", slowdowns.size()},
                        {"with_tokens_per_s", with_sum / pairs},
                        {"without_tokens_per_s", without_sum / pairs},
                        {"slowdown_share", mean}};
  if (slowdowns.size() > 1) out.update({{"slowdown_share_low", mean - error}, {"slowdown_share_high", mean + error}});
  return out;
}

}  // namespace fastdecode
