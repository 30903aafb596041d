// What the pipeline's thread writes of a prompt and of a request's time, as whoever has its events may read it.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/request/serving.h"
#include "tests/logprob_check.h"

namespace fastdecode {
namespace {

// A request whose sequence its caller looks at, which lives until its last event is taken.
struct Watched {
  uint64_t id = 0;
  const Sequence* sequence = nullptr;
  std::vector<int32_t> prompt;
  ServingAsk ask;
};

Watched Submit(Serving* serving, std::vector<int32_t> prompt, const ServingAsk& ask) {
  absl::StatusOr<std::unique_ptr<Request>> request = serving->Build(prompt, ask);
  EXPECT_TRUE(request.ok()) << request.status();
  Watched watched{.id = 0, .sequence = &(*request)->first(), .prompt = std::move(prompt), .ask = ask};
  EXPECT_TRUE(serving->desk().Submit(*std::move(request), &watched.id).ok());
  return watched;
}

void CheckPrompt(const Serving& serving, const Watched& watched) {
  const FakeOracle::Result expected = serving.Expect(watched.prompt, watched.ask);
  const auto top = static_cast<size_t>(watched.ask.prompt_logprobs);
  ASSERT_TRUE(std::isnan(watched.sequence->log.prompt_logprobs[0]));
  for (size_t p = 1; p < watched.prompt.size(); ++p) {
    std::vector<float> logits;
    for (int token = 0; token < kServingVocab; ++token) {
      logits.push_back(LogitOf(expected.prompt_residuals[p - 1], token));
    }
    const TokenLogprob* const listed = watched.sequence->log.prompt_top_logprobs.data() + p * top;
    ASSERT_NO_FATAL_FAILURE(
        CheckLogprobs(logits, watched.prompt[p], watched.sequence->log.prompt_logprobs[p], {listed, top}))
        << "request " << watched.id << ", position " << p;
  }
}

// While sequences that came later are preempted and computed again.
TEST(PromptLogprobsTest, AreThereWithTheFirstTokenWhileTheSequenceGoesOn) {
  Serving serving({.pages = 12});
  std::vector<Watched> all;
  for (uint64_t i = 0; i < 12; ++i) {
    const ServingAsk ask = {.max_tokens = 100, .prompt_logprobs = static_cast<int32_t>(i % 4)};
    all.push_back(Submit(&serving, Serving::Prompt(20 + static_cast<uint32_t>(i) * 5, i), ask));
  }
  for (const Watched& watched : all) {
    ServingEvent event;
    ASSERT_EQ(serving.Next(watched.id, &event, -1), RequestDesk::NextResult::kEvent);
    ASSERT_EQ(event.kind, RequestEvent::Kind::kPrompt) << event.end.error;
    CheckPrompt(serving, watched);
    ASSERT_EQ(serving.Next(watched.id, &event, -1), RequestDesk::NextResult::kEvent);
    ASSERT_EQ(event.kind, RequestEvent::Kind::kToken) << event.end.error;
    const SequenceTimes so_far = watched.sequence->times_so_far.Load();
    EXPECT_GE(so_far.prefill.steps, 1u);
    EXPECT_GT(so_far.queue_ns, 0u);
    const uint64_t known_ns = so_far.queue_ns + so_far.prefill.total_ns + so_far.decode.total_ns;
    EXPECT_GE(watched.sequence->submit_ns + known_ns, event.time_ns) << "of that step, or of a later moment";
  }
  serving.desk().Drain(-1);
  for (const Watched& watched : all) {
    CheckPrompt(serving, watched);
    ServingEvent event;
    while (!event.finished) {
      ASSERT_EQ(serving.Next(watched.id, &event, 0), RequestDesk::NextResult::kEvent);
      EXPECT_NE(event.kind, RequestEvent::Kind::kPrompt) << "though some were preempted, and computed again";
    }
  }
  EXPECT_GT(serving.pipeline().statistics().preemptions.value(), 0u);
}

TEST(PromptLogprobsTest, APromptAloneHasNoTokenAndEndsByItsLength) {
  Serving serving({});
  const Watched watched = Submit(&serving, Serving::Prompt(70, 1), {.max_tokens = 0, .prompt_logprobs = 20});
  serving.desk().Drain(-1);
  CheckPrompt(serving, watched);
  const SequenceTimes times = watched.sequence->times;
  EXPECT_EQ(times.prefill.steps, 3u);
  EXPECT_EQ(times.decode.steps, 0u);
  EXPECT_GT(times.prefill.total_ns, 0u);
  ServingEvent event;
  ASSERT_EQ(serving.Next(watched.id, &event, 0), RequestDesk::NextResult::kEvent);
  EXPECT_EQ(event.kind, RequestEvent::Kind::kPrompt);
  ASSERT_EQ(serving.Next(watched.id, &event, 0), RequestDesk::NextResult::kEvent);
  EXPECT_TRUE(event.finished);
  EXPECT_EQ(event.end.finish, RequestFinish::kLength);
  EXPECT_EQ(event.end.generated_tokens, 0u);
  EXPECT_EQ(event.text, "");
}

// With every thread there is: the places of a request add up to what its events say.
TEST(SequenceTimesTest, AddUpToTheTimeOfTheLastToken) {
  Serving serving({.pages = 30});
  std::vector<Watched> all;
  for (uint64_t i = 0; i < 20; ++i) {
    all.push_back(Submit(&serving, Serving::Prompt(10, i), {.max_tokens = 50 + static_cast<uint32_t>(i)}));
  }
  serving.desk().Drain(-1);
  for (const Watched& watched : all) {
    const SequenceTimes times = watched.sequence->times;
    EXPECT_EQ(watched.sequence->times_so_far.Load(), times);
    for (const StepTimes& steps : {times.prefill, times.decode}) {
      EXPECT_EQ(steps.total_ns,
                steps.s_ns + steps.wait_ns + steps.home_ns + steps.wire_ns + steps.boundary_ns + steps.sampling_ns);
      EXPECT_GT(steps.s_ns, 0u);
      EXPECT_GT(steps.home_ns, 0u);
      EXPECT_GT(steps.sampling_ns, 0u);
      EXPECT_GT(steps.boundary_ns, 0u);
    }
    ServingEvent event, last_token;
    while (!event.finished) {
      last_token = event;
      ASSERT_EQ(serving.Next(watched.id, &event, 0), RequestDesk::NextResult::kEvent);
    }
    EXPECT_EQ(watched.sequence->submit_ns + times.queue_ns + times.prefill.total_ns + times.decode.total_ns,
              last_token.time_ns);
  }
}

}  // namespace
}  // namespace fastdecode
