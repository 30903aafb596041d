// Who may wait for a first token, and what is said to the others.
#include "tools/serve/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fastdecode::serve {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStart = 1'000 * kSecond;

// `count` requests of `tokens` tokens come and get their first tokens, one after the other in `gap_ns` each.
uint64_t Serve(int count, uint64_t tokens, uint64_t gap_ns, uint64_t now_ns, Admission* admission) {
  for (int i = 0; i < count; ++i) {
    EXPECT_FALSE(admission->Enter(tokens, now_ns).has_value());
    now_ns += gap_ns;
    admission->Leave(tokens, true, now_ns);
  }
  return now_ns;
}

TEST(Admission, RefusesARequestTooMany) {
  Admission admission({.requests = 2, .tokens = 0});
  EXPECT_FALSE(admission.CheckRequests(kStart).has_value());
  EXPECT_FALSE(admission.Enter(10, kStart).has_value());
  EXPECT_FALSE(admission.Enter(20, kStart).has_value());
  for (const std::optional<ApiError>& refusal : {admission.CheckRequests(kStart), admission.Enter(30, kStart)}) {
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->status, 503);
    EXPECT_EQ(refusal->type, "overloaded_error");
    EXPECT_EQ(refusal->code, "queue_full");
    EXPECT_EQ(refusal->retry_after_s, 5);  // nothing is measured yet
    EXPECT_THAT(refusal->message, HasSubstr("2 requests wait"));
    EXPECT_THAT(refusal->message, HasSubstr("limit is 2"));
    EXPECT_THAT(refusal->message, HasSubstr("in 5 s"));
  }
  EXPECT_EQ(admission.counts().requests, 2u);
  EXPECT_EQ(admission.counts().tokens, 30u);
  EXPECT_EQ(admission.counts().refused_requests, 2u);
  EXPECT_EQ(admission.counts().refused_tokens, 0u);
  admission.Leave(10, false, kStart);
  EXPECT_FALSE(admission.CheckRequests(kStart).has_value());
  EXPECT_FALSE(admission.Enter(30, kStart).has_value());
  EXPECT_EQ(admission.counts().tokens, 50u);
}

TEST(Admission, RefusesTokensTooMany) {
  Admission admission({.requests = 0, .tokens = 100});
  EXPECT_FALSE(admission.Enter(60, kStart).has_value());
  EXPECT_FALSE(admission.Enter(40, kStart).has_value());
  const std::optional<ApiError> refusal = admission.Enter(7, kStart);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->status, 503);
  EXPECT_EQ(refusal->code, "queue_full");
  EXPECT_THAT(refusal->message, HasSubstr("have 100 prompt tokens"));
  EXPECT_THAT(refusal->message, HasSubstr("with the 7 of"));
  EXPECT_THAT(refusal->message, HasSubstr("limit of 100"));
  EXPECT_EQ(admission.counts().refused_tokens, 1u);
  EXPECT_EQ(admission.counts().refused_requests, 0u);
  EXPECT_FALSE(admission.CheckRequests(kStart).has_value());
}

TEST(Admission, TakesALongPromptAlone) {
  Admission admission({.requests = 0, .tokens = 100});
  EXPECT_FALSE(admission.Enter(1000, kStart).has_value());
  EXPECT_TRUE(admission.Enter(1, kStart).has_value());
  admission.Leave(1000, true, kStart + kSecond);
  EXPECT_FALSE(admission.Enter(1, kStart).has_value());
  EXPECT_TRUE(admission.Enter(1000, kStart).has_value());
}

TEST(Admission, HasNoLimitsWhereThereAreNone) {
  Admission admission({});
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(admission.Enter(1'000'000, kStart).has_value());
  EXPECT_FALSE(admission.CheckRequests(kStart).has_value());
}

TEST(Admission, SaysWhenToComeBackByTheRateOfRequests) {
  Admission admission({.requests = 1, .tokens = 0});
  const uint64_t now_ns = Serve(20, 10, 4 * kSecond, kStart, &admission);
  EXPECT_FALSE(admission.Enter(10, now_ns).has_value());
  EXPECT_NEAR(admission.CheckRequests(now_ns)->retry_after_s, 4, 1);
}

TEST(Admission, SaysWhenToComeBackByTheRateOfTokens) {
  Admission admission({.requests = 0, .tokens = 1000});
  const uint64_t now_ns = Serve(100, 100, kSecond, kStart, &admission);  // 100 tokens/s
  EXPECT_FALSE(admission.Enter(1000, now_ns).has_value());
  EXPECT_NEAR(admission.Enter(500, now_ns)->retry_after_s, 5, 1);
  // What is longer than the limit has to wait until nobody else does.
  EXPECT_NEAR(admission.Enter(5000, now_ns)->retry_after_s, 10, 1);
}

TEST(Admission, TheRateIsThatOfTheLastHalfMinute) {
  Admission admission({.requests = 1, .tokens = 0});
  uint64_t now_ns = Serve(1000, 10, kSecond / 10, kStart, &admission);
  now_ns = Serve(20, 10, 8 * kSecond, now_ns, &admission);
  EXPECT_FALSE(admission.Enter(10, now_ns).has_value());
  EXPECT_NEAR(admission.CheckRequests(now_ns)->retry_after_s, 8, 1);
}

TEST(Admission, IdleTimeDoesNotCount) {
  Admission admission({.requests = 1, .tokens = 0});
  const uint64_t now_ns = Serve(20, 10, 3 * kSecond, kStart, &admission) + 3600 * kSecond;
  EXPECT_FALSE(admission.Enter(10, now_ns).has_value());
  EXPECT_NEAR(admission.CheckRequests(now_ns)->retry_after_s, 3, 1);
}

TEST(Admission, StaysWithinItsBounds) {
  Admission admission({.requests = 1, .tokens = 0});
  uint64_t now_ns = Serve(100, 10, kSecond / 100, kStart, &admission);
  EXPECT_FALSE(admission.Enter(10, now_ns).has_value());
  EXPECT_EQ(admission.CheckRequests(now_ns)->retry_after_s, 1);
  // An engine that hangs makes it longer, up to two minutes.
  now_ns += 60 * kSecond;
  const int after_a_minute = admission.CheckRequests(now_ns)->retry_after_s;
  EXPECT_GE(after_a_minute, 1);
  now_ns += 600 * kSecond;
  EXPECT_EQ(admission.CheckRequests(now_ns)->retry_after_s, 120);
}

TEST(Admission, WhoLeftWithoutATokenIsNoProgress) {
  Admission admission({.requests = 1, .tokens = 0});
  EXPECT_FALSE(admission.Enter(10, kStart).has_value());
  admission.Leave(10, false, kStart + kSecond);
  EXPECT_FALSE(admission.Enter(10, kStart + kSecond).has_value());
  EXPECT_EQ(admission.CheckRequests(kStart + kSecond)->retry_after_s, 5);
}

TEST(Admission, AClockThatWasReadEarlierDoesNoHarm) {
  Admission admission({.requests = 1, .tokens = 0});
  const uint64_t now_ns = Serve(20, 10, 4 * kSecond, kStart, &admission);
  EXPECT_FALSE(admission.Enter(10, now_ns).has_value());
  EXPECT_NEAR(admission.CheckRequests(now_ns - kSecond)->retry_after_s, 4, 1);
}

TEST(AdmissionDeathTest, NobodyLeavesTwice) {
  Admission admission({});
  EXPECT_DEATH(admission.Leave(1, true, kStart), "a request left that did not wait");
}

TEST(Admission, PlacesAreNotLostAmongThreads) {
  Admission admission({.requests = 3, .tokens = 40});
  constexpr int kThreads = 4, kTurns = 2000;
  std::vector<uint64_t> refused(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kTurns; ++i) {
        if (admission.Enter(15)) {
          ++refused[thread];
        } else {
          EXPECT_LE(admission.counts().requests, 3u);
          admission.Leave(15, true, MonotonicNs());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Admission::Counts counts = admission.counts();
  EXPECT_EQ(counts.requests, 0u);
  EXPECT_EQ(counts.tokens, 0u);
  EXPECT_EQ(counts.refused_requests + counts.refused_tokens, refused[0] + refused[1] + refused[2] + refused[3]);
}

}  // namespace
}  // namespace fastdecode::serve
