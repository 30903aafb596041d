// When requests arrive, against other implementations' draws and the distributions' moments.
#include "tools/load/arrivals.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tools/load/plan.h"

namespace fastdecode::load {

namespace {

std::vector<double> Times(const Arrivals& arrivals, size_t count) {
  std::vector<double> times;
  for (const PlannedRequest& request : DrawLoad({Lengths(), Lengths(), arrivals, 11}, count)) {
    times.push_back(request.arrival);
  }
  return times;
}

struct Moments {
  double mean = 0, variation = 0;
};
Moments GapsOf(const Arrivals& arrivals) {
  const std::vector<double> times = Times(arrivals, 50'001);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    sum += gap;
    squares += gap * gap;
  }
  const auto count = static_cast<double>(times.size() - 1);
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(Arrivals, AreThoseThatOthersDraw) {
  const std::vector<double> poisson = Times(Arrivals::Poisson(), 4);
  EXPECT_EQ(poisson[0], 0);
  EXPECT_NEAR(poisson[1], 0.380154725, 1e-9);
  EXPECT_NEAR(poisson[3], 1.700689128, 1e-9);
  const std::vector<double> bursty = Times(Arrivals::Gamma(0.25), 4);
  EXPECT_NEAR(bursty[1], 0.205579768, 1e-9);
  EXPECT_NEAR(bursty[3], 2.738025779, 1e-9);
}

TEST(Arrivals, HaveTheirVariation) {
  EXPECT_EQ(GapsOf(Arrivals::Constant()).variation, 0);
  for (const double shape : {0.25, 1.0, 4.0}) {
    const Moments moments = GapsOf(Arrivals::Gamma(shape));
    EXPECT_NEAR(moments.mean, 1, 0.05) << shape;
    EXPECT_NEAR(moments.variation, 1 / std::sqrt(shape), 0.05 / std::sqrt(shape)) << shape;
  }
}

TEST(Arrivals, RateOnlyScales) {
  const Arrivals poisson = Arrivals::Poisson();
  EXPECT_DOUBLE_EQ(poisson.Time(6, 4), 1.5);
}

TEST(Arrivals, OnOffComesInTheOnes) {
  // 2 s on, 3 s off: at 4 a second in the mean it is 10 a second while on, 20 in each cycle.
  const Arrivals arrivals = Arrivals::OnOff(2, 3);
  EXPECT_DOUBLE_EQ(arrivals.Time(0, 4), 0);
  EXPECT_DOUBLE_EQ(arrivals.Time(5, 4), 0.5);
  EXPECT_DOUBLE_EQ(arrivals.Time(20, 4), 5);
  EXPECT_DOUBLE_EQ(arrivals.Time(25, 4), 5.5);
}

TEST(ParseArrivals, TakesWhatIsDocumented) {
  Arrivals arrivals;
  for (const char* text : {"poisson", "constant", "gamma:0.25", "on-off:2:8"}) {
    EXPECT_EQ(ParseArrivals(text, &arrivals), "") << text;
  }
  EXPECT_DOUBLE_EQ(arrivals.Time(10, 1), 10);  // of on-off:2:8, 10 arrive in the first cycle
  for (const char* text :
       {"", "uniform", "gamma", "gamma:", "gamma:0", "gamma:x", "on-off:2", "on-off:2:", "on-off:-1:2"}) {
    EXPECT_NE(ParseArrivals(text, &arrivals).find("gamma:SHAPE"), std::string::npos) << text;
  }
}

}  // namespace

}  // namespace fastdecode::load
