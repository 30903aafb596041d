#ifndef FASTDECODE_TOOLS_BENCH_BRACKETED_RUNS_H_
#define FASTDECODE_TOOLS_BENCH_BRACKETED_RUNS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fastdecode {

// What the machine does when it does nothing else, by tests that the caller chose: GB/s read, GFLOP/s, ...
using TestRates = std::vector<double>;

// Tests before and after a run that differ by more say that the machine was not the same to both.
inline constexpr double kBracketDifferenceMax = 0.15;

// Measures on a machine that has other work too: `test`, then again and again `run` and `test`, until `repetitions`
// runs lie between tests that agree, of which `keep` gets the result and the mean of the two tests. Returns how many
// others were discarded; if not one was good, TooBusy says it. Errors: those of `run`.
//   TestRates test();   StatusOr<Result> run();   void keep(const Result&, const TestRates& around);
template <typename Test, typename Run, typename Keep>
absl::StatusOr<int> RunBracketed(int repetitions, Test test, Run run, Keep keep) {
  const int tries_max = 4 * repetitions + 16;
  int good = 0, discarded = 0;
  TestRates before = test();
  while (good < repetitions && good + discarded < tries_max) {
    const auto result = run();
    if (!result.ok()) return result.status();
    TestRates after = test();
    TestRates around;
    bool same = true;
    for (size_t i = 0; i < after.size(); ++i) {
      same = same && std::abs(after[i] - before[i]) <= kBracketDifferenceMax * std::min(after[i], before[i]);
      around.push_back((before[i] + after[i]) / 2);
    }
    before = std::move(after);  // the next one's
    if (same) {
      keep(*result, around);
      ++good;
    } else {
      ++discarded;
    }
  }
  return discarded;
}

inline absl::Status TooBusy(int discarded) {
  return absl::UnavailableError(
      "the machine is too busy: what it does before and after a run differs by more than 15 % in all " +
      std::to_string(discarded) + " repetitions");
}

// On stderr, if not all repetitions that were wanted are good.
inline void WarnOfDiscarded(size_t good, int discarded, int wanted) {
  if (static_cast<int>(good) >= wanted) return;
  std::fprintf(stderr, "fastdecode: warning: the machine is busy: %zu good repetitions of %d, %d were discarded\n",
               good, wanted, discarded);
}

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_BRACKETED_RUNS_H_
