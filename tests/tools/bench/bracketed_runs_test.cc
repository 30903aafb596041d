#include "tools/bench/bracketed_runs.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;

// A machine whose tests give these rates one after the other, the last one from then on. A run's result is its number.
class BracketedRunsTest : public testing::Test {
 protected:
  absl::StatusOr<int> Measure(int repetitions, std::vector<TestRates> rates) {
    size_t tests = 0;
    return RunBracketed(
        repetitions, [&] { return rates[std::min(tests++, rates.size() - 1)]; },
        [&]() -> absl::StatusOr<int> {
          if (runs_ == fails_at_) return absl::InternalError("broken");
          return runs_++;
        },
        [&](int run, const TestRates& around) {
          kept_.push_back(run);
          around_.push_back(around);
        });
  }

  int runs_ = 0, fails_at_ = -1;
  std::vector<int> kept_;
  std::vector<TestRates> around_;
};

TEST_F(BracketedRunsTest, KeepsRunsBetweenTestsThatAgree) {
  EXPECT_EQ(*Measure(3, {{100}, {110}, {100}, {114}}), 0);
  EXPECT_THAT(kept_, ElementsAre(0, 1, 2));
  EXPECT_THAT(around_, ElementsAre(TestRates{105}, TestRates{105}, TestRates{107}));
}

TEST_F(BracketedRunsTest, DiscardsTheOthersAndGoesOn) {
  // 16 % more, then the same, then 16 % less.
  EXPECT_EQ(*Measure(2, {{100}, {116}, {116}, {100}, {100}}), 2);
  EXPECT_THAT(kept_, ElementsAre(1, 3));
}

TEST_F(BracketedRunsTest, EveryTestHasToAgree) {
  EXPECT_EQ(*Measure(1, {{100, 5}, {100, 6}, {100, 6}}), 1);
  EXPECT_THAT(around_, ElementsAre(TestRates{100, 6}));
}

TEST_F(BracketedRunsTest, GivesUpOnAMachineThatNeverAgrees) {
  std::vector<TestRates> rates;
  for (int i = 0; i < 100; ++i) rates.push_back({i % 2 == 0 ? 100.0 : 200.0});
  EXPECT_EQ(*Measure(2, rates), 4 * 2 + 16);
  EXPECT_THAT(kept_, ElementsAre());
  EXPECT_EQ(TooBusy(24).code(), absl::StatusCode::kUnavailable);
}

TEST_F(BracketedRunsTest, ARunThatFailsEndsIt) {
  fails_at_ = 1;
  EXPECT_EQ(Measure(3, {{100}}).status().message(), "broken");
  EXPECT_THAT(kept_, ElementsAre(0));
}

}  // namespace
}  // namespace fastdecode
