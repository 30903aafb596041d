#include "tools/latency/analysis/timeline.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/tools/latency/event_maker.h"

namespace fastdecode {
namespace {

uint64_t PlaceNs(const StepTimes& step, Place place) { return step.place_ns[static_cast<size_t>(place)]; }

void ExpectSumsExactly(const Timeline& timeline) {
  for (const StepTimes& step : timeline.steps) {
    const uint64_t parts = std::accumulate(step.place_ns.begin(), step.place_ns.end(), uint64_t{0});
    EXPECT_EQ(static_cast<int64_t>(parts) + step.residual_ns, static_cast<int64_t>(step.end_ns - step.start_ns));
    EXPECT_GE(step.residual_ns, 0);
    uint64_t at_ns = step.start_ns;
    for (uint32_t i = 0; i < step.segments; ++i) {
      const Segment& segment = timeline.segments[step.first_segment + i];
      EXPECT_LE(at_ns, segment.start_ns);
      EXPECT_LT(segment.start_ns, segment.end_ns);
      at_ns = segment.end_ns;
    }
    EXPECT_LE(at_ns, step.end_ns);
  }
  for (const HopTimes& hop : timeline.hops) {
    EXPECT_EQ(hop.wire_ns + hop.queue_ns + hop.pickup_ns + hop.work_ns(), hop.seen_ns - hop.posted_ns);
    EXPECT_LE(hop.wire_there_ns, hop.wire_ns);
  }
}

TEST(Timeline, TakesAStepApartWithoutRemainder) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  make.Add(FD_RECORD_HELD, 0, 0, 12100, 12400);
  make.TwoHomeStep(2, 12500);
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  ExpectSumsExactly(timeline);
  ASSERT_EQ(timeline.steps.size(), 2u);
  EXPECT_EQ(timeline.dropped_events, 0u);
  EXPECT_EQ(timeline.start_ns, 10000u);
  EXPECT_EQ(timeline.end_ns, 14500u);
  EXPECT_EQ(timeline.homes, 2);
  EXPECT_EQ(timeline.least_rest_ns, (std::vector<uint64_t>{40, 50}));

  const StepTimes& first = timeline.steps[0];
  EXPECT_FALSE(first.follows);
  EXPECT_EQ(first.start_ns, 10000u);
  const StepTimes& step = timeline.steps[1];
  EXPECT_TRUE(step.follows);
  EXPECT_EQ(step.start_ns, 12000u);
  EXPECT_EQ(step.composed_ns, 12500u);
  EXPECT_EQ(step.end_ns, 14500u);
  EXPECT_EQ(step.tokens, 2u);
  EXPECT_EQ(step.sequences, 2u);
  EXPECT_FALSE(step.prefill);
  EXPECT_EQ(step.kv_bytes, (std::vector<uint64_t>{1000, 3000}));
  EXPECT_EQ(PlaceNs(step, Place::kBoundary), 200u);
  EXPECT_EQ(PlaceNs(step, Place::kScheduler), 300u);
  EXPECT_EQ(PlaceNs(step, Place::kCompose), 80u);
  EXPECT_EQ(PlaceNs(step, Place::kStage), 200u + 660u);
  EXPECT_EQ(PlaceNs(step, Place::kPost), 25u);
  EXPECT_EQ(PlaceNs(step, Place::kWire), 50u);
  EXPECT_EQ(PlaceNs(step, Place::kQueue), 0u);
  EXPECT_EQ(PlaceNs(step, Place::kPrepare), 100u);
  EXPECT_EQ(PlaceNs(step, Place::kAppend), 40u);
  EXPECT_EQ(PlaceNs(step, Place::kAttend), 500u);
  EXPECT_EQ(PlaceNs(step, Place::kMerge), 60u);
  EXPECT_EQ(PlaceNs(step, Place::kTeam), 70u);
  EXPECT_EQ(PlaceNs(step, Place::kPickup), 100u);
  EXPECT_EQ(PlaceNs(step, Place::kFinish), 100u);
  EXPECT_EQ(step.residual_ns, 15);

  ASSERT_EQ(step.hops, 2u);
  const HopTimes& near = timeline.hops[step.first_hop];
  const HopTimes& far = timeline.hops[step.first_hop + 1];
  EXPECT_EQ(near.home, 0);
  EXPECT_FALSE(near.last);
  EXPECT_EQ(near.waited_for_ns, 0u);
  EXPECT_EQ(near.kv_bytes, 1000u);
  EXPECT_EQ(far.home, 1);
  EXPECT_TRUE(far.last);
  EXPECT_EQ(far.homes, 2);
  EXPECT_EQ(far.waited_for_ns, 340u);

  ASSERT_EQ(step.stages, 2u);
  const StageTimes& head = timeline.stages[step.first_stage + 1];
  ASSERT_EQ(head.parts, 2u);
  EXPECT_EQ(timeline.parts[head.first_part].part, FD_STAGE_O);
  EXPECT_EQ(timeline.parts[head.first_part + 1].part, FD_STAGE_LOGITS);

  ASSERT_EQ(timeline.tokens.size(), 4u);
  EXPECT_EQ(timeline.tokens[3].id, 8u);
  EXPECT_EQ(timeline.tokens[3].index, 2u);
  EXPECT_EQ(timeline.tokens[3].step, 1u);
}

// What is waited for decides, not what is posted last.
TEST(Timeline, PostingTheOthersIsTheLastHopsTime) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  for (fd_record_event& event : make.events) {
    if (event.kind == FD_RECORD_HOP) event.home = static_cast<int16_t>(1 - event.home);
    if (event.kind == FD_RECORD_HOP && event.home == 0) event.start_ns = 10300;  // posted first, seen last
    if (event.kind == FD_RECORD_HOP && event.home == 1) event.start_ns = 10320;
  }
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  ExpectSumsExactly(timeline);
  ASSERT_EQ(timeline.steps.size(), 1u);
  EXPECT_EQ(PlaceNs(timeline.steps[0], Place::kPost), 5u);
  EXPECT_EQ(PlaceNs(timeline.steps[0], Place::kWire), 70u);
  EXPECT_TRUE(timeline.hops[0].last);
  EXPECT_EQ(timeline.hops[0].home, 0);
}

TEST(Timeline, DropsStepsThatBeganBeforeOrEndedAfter) {
  EventMaker make;
  for (uint32_t step = 1; step <= 5; ++step) make.TwoHomeStep(step, step * 2000);
  const size_t step_events = make.events.size() / 5;
  std::vector<fd_record_event> events(make.events.begin() + 4, make.events.end() - 7);
  const Timeline timeline = BuildTimeline(MakeRecording(events, 1));
  ASSERT_EQ(timeline.steps.size(), 3u);
  EXPECT_EQ(timeline.steps.front().step, 2u);
  EXPECT_TRUE(timeline.steps.front().follows);  // the end of the step before was seen
  EXPECT_EQ(timeline.steps.back().step, 4u);
  EXPECT_EQ(timeline.tokens.size(), 6u);
  EXPECT_EQ(timeline.dropped_events, 2 * step_events - 4 - 7);
}

TEST(Timeline, GoesOnAfterAHole) {
  EventMaker make;
  for (uint32_t step = 1; step <= 9; ++step) make.TwoHomeStep(step, step * 2000);
  const size_t step_events = make.events.size() / 9;
  // From within step 3 to within step 6.
  const auto hole = make.events.begin() + static_cast<ptrdiff_t>(2 * step_events + 6);
  make.events.erase(hole, hole + static_cast<ptrdiff_t>(3 * step_events));
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  ExpectSumsExactly(timeline);
  std::vector<uint32_t> steps;
  for (const StepTimes& step : timeline.steps) steps.push_back(step.step);
  EXPECT_EQ(steps, (std::vector<uint32_t>{1, 2, 7, 8, 9}));
  EXPECT_TRUE(timeline.steps[2].follows);
  EXPECT_EQ(timeline.dropped_events, step_events);
}

// Any single lost event costs its step and no other.
TEST(Timeline, AnyLostEventOfAStepDropsIt) {
  EventMaker make;
  for (uint32_t step = 1; step <= 3; ++step) make.TwoHomeStep(step, step * 2000);
  const size_t step_events = make.events.size() / 3;
  for (size_t i = 0; i < step_events; ++i) {
    std::vector<fd_record_event> events = make.events;
    const fd_record_event lost = events[step_events + i];
    events.erase(events.begin() + static_cast<ptrdiff_t>(step_events + i));
    const Timeline timeline = BuildTimeline(MakeRecording(events, 1));
    ExpectSumsExactly(timeline);
    const bool needed = lost.kind == FD_RECORD_COMPOSE || lost.kind == FD_RECORD_STAGE || lost.kind == FD_RECORD_POST ||
                        lost.kind == FD_RECORD_HOP || lost.kind == FD_RECORD_FINISH;
    EXPECT_EQ(timeline.steps.size(), needed ? 2u : 3u) << "kind " << int{lost.kind};
    // Without the end of the second, nobody knows from when the third counts.
    EXPECT_EQ(timeline.steps.back().follows, lost.kind != FD_RECORD_FINISH) << "kind " << int{lost.kind};
  }
}

TEST(Timeline, AStepOfNewSequencesAloneFollowsNothing) {
  for (const int joined : {1, 2}) {
    EventMaker make;
    make.TwoHomeStep(1, 10000);
    for (int i = 0; i < joined; ++i) make.Add(FD_RECORD_JOIN, 0, 0, 11000, 90000);
    make.TwoHomeStep(2, 90000);
    const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
    ASSERT_EQ(timeline.steps.size(), 2u);
    EXPECT_EQ(timeline.steps[1].follows, joined == 1);
    EXPECT_EQ(timeline.steps[1].start_ns, joined == 1 ? 12000u : 90000u);
  }
}

TEST(Timeline, NonsenseIsDroppedAndCounted) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  make.Add(static_cast<fd_record_kind>(99), 0, 1, 12000, 12001);
  make.Hop(0, 9, 0, -1, 12001, 12002, 0);
  make.Hop(0, 9, 0, 30000, 12001, 12002, 0);
  make.Hop(3, 9, 0, 0, 12005, 12003, 0);  // ends before it begins
  make.Token(5, 5, 12010, 1, 1);
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  EXPECT_EQ(timeline.steps.size(), 1u);
  EXPECT_EQ(timeline.homes, 2);
  EXPECT_EQ(timeline.dropped_events, 5u);
  EXPECT_TRUE(BuildTimeline(Recording()).steps.empty());
}

// Hops that claim more work than their round trip has, and spans that overlap, still leave sums exact.
TEST(Timeline, ContradictingTimesStillSum) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  for (fd_record_event& event : make.events) {
    if (event.kind == FD_RECORD_HOP) event.attend_ns = 5000;
    if (event.kind == FD_RECORD_STAGE && event.layer == 1) event.start_ns -= 700;
    if (event.kind == FD_RECORD_POST) event.end_ns += 5000;
  }
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  ASSERT_EQ(timeline.steps.size(), 1u);
  ExpectSumsExactly(timeline);
}

}  // namespace
}  // namespace fastdecode
