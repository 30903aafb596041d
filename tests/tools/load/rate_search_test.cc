// The search for the highest rate, on servers that are computed and whose capacity is known.
#include "tools/load/rate_search.h"

#include <algorithm>
#include <queue>
#include <vector>

#include "gtest/gtest.h"
#include "tools/load/plan.h"

namespace fastdecode::load {

namespace {

constexpr double kTarget = 0.9;

// So many places, each of which a request takes for the same time: it serves places / service_s requests a second and
// no more. Requests wait in the order in which they come.
struct Places {
  size_t count = 8;
  double service_s = 0.1;

  double capacity() const { return static_cast<double>(count) / service_s; }
  LoadRun Serve(const std::vector<double>& arrivals_s) const {
    LoadRun run;
    std::priority_queue<double, std::vector<double>, std::greater<>> free_s;
    for (size_t i = 0; i < count; ++i) free_s.push(0);
    for (const double arrival_s : arrivals_s) {
      const double start_s = std::max(arrival_s, free_s.top());
      free_s.pop();
      free_s.push(start_s + service_s);
      RequestResult& result = run.results.emplace_back();
      result.intended_ns = static_cast<int64_t>(arrival_s * 1e9);
      result.ttft_ns = static_cast<int64_t>((start_s - arrival_s) * 1e9);
      result.latency_ns = result.ttft_ns + static_cast<int64_t>(service_s * 1e9);
      result.end_ns = result.last_token_ns() + 1;
      result.output_tokens = 2;
    }
    return run;
  }
};

RateSearchResult Find(const Places& places, const Arrivals& arrivals, const char* limit, RateSearchOptions options) {
  const std::vector<PlannedRequest> load = DrawLoad({Lengths(), Lengths(), arrivals, 1}, options.requests);
  return FindMaxRate(options, [&](double rate, size_t requests) {
    std::vector<double> arrivals_s;
    for (size_t i = 0; i < requests; ++i) arrivals_s.push_back(arrivals.Time(load[i].arrival, rate));
    RatePoint point;
    point.rate = rate;
    point.requests = requests;
    point.attainment = Judge(places.Serve(arrivals_s), ParseLimits({limit}, true));
    point.reached = point.attainment.Reaches(kTarget);
    return std::optional(point);
  });
}

TEST(FindMaxRate, FindsTheCapacityOfAServer) {
  for (const double service_s : {0.01, 0.1, 3.0}) {
    for (const size_t count : {size_t{1}, size_t{8}, size_t{64}}) {
      const Places places = {count, service_s};
      // What queues of an even load wait is known: nothing below the capacity, more and more above it.
      const std::string limit = "ttft:" + std::to_string(service_s * 1e3);
      const RateSearchResult found = Find(places, Arrivals::Constant(), limit.c_str(), {0.25, 0.01, 20'000});
      EXPECT_TRUE(found.complete);
      EXPECT_NEAR(found.rate / places.capacity(), 1, 0.02) << count << " places, " << service_s << " s";
      EXPECT_LT(found.points.size(), 40u);
    }
  }
}

TEST(FindMaxRate, BurstyLoadsFitLess) {
  const Places places;
  const double even = Find(places, Arrivals::Poisson(), "ttft:50", {1, 0.02, 5000}).rate;
  const double bursty = Find(places, Arrivals::Gamma(0.25), "ttft:50", {1, 0.02, 5000}).rate;
  EXPECT_LT(even, places.capacity());
  EXPECT_LT(bursty, 0.9 * even);
  EXPECT_GT(bursty, 0.1 * places.capacity());
}

// A run that says yes up to a rate. `few_lie`: runs of few requests say the opposite.
RateSearchResult FindEdge(double edge, bool few_lie, RateSearchOptions options, size_t* runs_of_all = nullptr) {
  return FindMaxRate(options, [=](double rate, size_t requests) {
    RatePoint point;
    point.rate = rate;
    point.requests = requests;
    point.reached = (rate <= edge) != (few_lie && requests < 1200);
    if (runs_of_all != nullptr && requests == 1200) ++*runs_of_all;
    return std::optional(point);
  });
}

TEST(FindMaxRate, FindsAnEdgeFromBelowAndAbove) {
  for (const double start : {0.01, 0.25, 7.0, 5000.0}) {
    const RateSearchResult found = FindEdge(7.3, false, {start, 0.02, 1200});
    EXPECT_LE(found.rate, 7.3);
    EXPECT_GE(found.rate, 7.3 / 1.02 * 0.999) << start;
  }
}

TEST(FindMaxRate, RunsOfFewRequestsDoNotDecide) {
  const RateSearchResult found = FindEdge(7.3, true, {0.25, 0.02, 1200});
  EXPECT_LE(found.rate, 7.3);
  EXPECT_GE(found.rate, 7.3 / 1.03);
}

TEST(FindMaxRate, TheRateItselfAndOneAboveAreRunInFull) {
  size_t runs_of_all = 0;
  const RateSearchResult found = FindEdge(7.3, false, {0.25, 0.05, 1200}, &runs_of_all);
  EXPECT_GE(runs_of_all, 2u);
  const auto full_at = [&](bool reached, auto matches) {
    return std::any_of(found.points.begin(), found.points.end(), [&](const RatePoint& point) {
      return point.requests == 1200 && point.reached == reached && matches(point.rate);
    });
  };
  EXPECT_TRUE(full_at(true, [&](double rate) { return rate == found.rate; }));
  EXPECT_TRUE(full_at(false, [&](double rate) { return rate > found.rate && rate <= found.rate * 1.0501; }));
}

TEST(FindMaxRate, NothingServesNothing) {
  const RateSearchResult found = FindEdge(0, false, {0.25, 0.05, 1200});
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(found.rate, 0);
}

// A request alone takes longer than it may: at lower and lower rates nothing changes, but that each run takes longer.
TEST(FindMaxRate, ARequestThatMissesAloneEndsTheSearch) {
  double least = 1e9;
  size_t runs = 0;
  const RateSearchResult found = FindMaxRate({16, 0.05, 1200}, [&](double rate, size_t requests) {
    ++runs;
    least = std::min(least, rate);
    RatePoint point = {.rate = rate, .requests = requests, .cut = true, .overlapped = rate > 1};
    point.attainment.requests = 3;
    return std::optional(point);
  });
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(found.rate, 0);
  EXPECT_EQ(least, 1);
  EXPECT_EQ(runs, 6u) << "twice at 16, with all requests once, and at 8, 4, 2 and 1";
}

TEST(FindMaxRate, EndsWhenAllIsServed) { EXPECT_GT(FindEdge(1e9, false, {0.25, 0.05, 1200}).rate, 1e5); }

TEST(FindMaxRate, KeepsWhatItHasWhenInterrupted) {
  int runs = 0;
  const RateSearchResult found = FindMaxRate({100, 0.05, 1200}, [&](double rate, size_t requests) {
    RatePoint point;
    point.rate = rate;
    point.requests = requests;
    point.reached = rate < 1000;
    return ++runs > 8 ? std::nullopt : std::optional(point);
  });
  EXPECT_FALSE(found.complete);
  EXPECT_EQ(found.points.size(), 8u);
  EXPECT_GE(found.rate, 100);
}

}  // namespace

}  // namespace fastdecode::load
