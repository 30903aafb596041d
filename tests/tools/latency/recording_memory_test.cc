// What a recording takes of memory while it is analysed: a long one must fit beside the engine that it is of.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/latency/simulated_run.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/requests.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/findings/findings.h"

namespace fastdecode {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsOurs = false;
#else
constexpr bool kMemoryIsOurs = true;
#endif

// "VmHWM:     12345 kB"; 0: the kernel does not say.
double StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// From now on VmHWM is the peak since now. False: the kernel does not do it.
bool ForgetPeak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

TEST(RecordingMemoryTest, AnalysisTakesHalfAsMuchAgainAsTheEvents) {
  if (!kMemoryIsOurs) GTEST_SKIP() << "a sanitizer's memory is not ours";
  SimulatedRun run;
  run.seconds = 60;
  Recording recording = Simulate(run);
  std::vector<fd_record_event> events;
  events.reserve(recording.events.size());  // as it is while it is recorded: no more memory than is written to
  events.assign(recording.events.begin(), recording.events.end());
  recording.events = std::exchange(events, {});
  const double bytes = static_cast<double>(recording.events.size() * sizeof(fd_record_event));
  ASSERT_GT(bytes, 30e6);
  malloc_trim(0);
  if (!ForgetPeak() || StatusBytes("VmHWM") == 0) GTEST_SKIP() << "the kernel does not say what the peak is";
  const double before = StatusBytes("VmRSS");

  const Timeline timeline = BuildTimeline(&recording);
  LatencyResult result = Analyze(recording, timeline, 3);
  result.requests = MeasureRequests(recording);
  result.findings = FindFaults(recording, timeline);

  EXPECT_LE(StatusBytes("VmHWM") - before, 0.5 * bytes);
  EXPECT_GT(result.tokens, 10'000u);
}

TEST(RecordingTest, EventsAreSortedIn) {
  const auto event = [](uint64_t end_ns, uint64_t id) {
    fd_record_event made = {};
    made.end_ns = end_ns;
    made.id = id;
    return made;
  };
  std::vector<fd_record_event> events = {event(5, 1), event(3, 2), event(5, 3)};
  SortIn(0, &events);
  SortIn(events.size(), &events);
  events.push_back(event(9, 4));
  events.push_back(event(4, 5));
  events.push_back(event(5, 6));
  SortIn(3, &events);
  std::vector<uint64_t> ids;
  for (const fd_record_event& one : events) ids.push_back(one.id);
  EXPECT_EQ(ids, (std::vector<uint64_t>{2, 5, 1, 3, 6, 4}));
}

TEST(RecordingTest, WhatIsReleasedLeavesTheRest) {
  std::vector<fd_record_event> events(10'000);
  for (size_t i = 0; i < events.size(); ++i) events[i].id = i;
  events.resize(1234);
  ReleaseBehindEnd(&events);
  for (size_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i].id, i);
  events.resize(10'000);
  EXPECT_EQ(events.back().id, 0u);
  std::vector<fd_record_event> none;
  ReleaseBehindEnd(&none);
}

}  // namespace
}  // namespace fastdecode
