// Structs that the library fills in, of callers who know an older or a newer header than it: what they have room for,
// zeros where a newer one has more, nothing behind their end, and arrays by the stride that the first one says.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/abi/sized_buffer.h"
#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

constexpr uint32_t kTokens = 6;

class GrowthFilledTest : public InterfaceTest {
 protected:
  uint64_t Submit(fd_engine* engine) {
    const int32_t prompt[] = {1, 2, 3};
    fd_request request;
    fd_request_init(&request, sizeof(request));
    request.prompt_ids = prompt;
    request.prompt_id_count = 3;
    request.max_tokens = kTokens;
    request.temperature = 0;
    request.ignore_eos = 1;
    request.logprobs = 2;
    request.user = &user_;
    uint64_t id = 0;
    ThrowIfError(fd_submit(engine, &request, &id));
    return id;
  }

  // What a caller of another version sees of an event of this request. `right`: the same event of another one, which
  // went alike. Fields that a struct of `bytes` bytes lacks are not looked at.
  void ExpectEvent(SizedBuffer* out, size_t index, size_t bytes, uint64_t id, const fd_event& right) {
    fd_event event = {};
    std::memcpy(&event, out->at(index), std::min(bytes, sizeof(event)));
    EXPECT_EQ(event.struct_size, bytes);
    EXPECT_EQ(event.kind, right.kind);
    EXPECT_EQ(event.id, id);
    const auto has = [bytes](size_t offset) { return bytes > offset; };
    if (has(offsetof(fd_event, user))) {
      EXPECT_EQ(event.user, &user_);
    }
    if (has(offsetof(fd_event, tokens))) {
      EXPECT_EQ(event.token_index, right.token_index);
      EXPECT_EQ(event.tokens == nullptr, right.tokens == nullptr);
    }
    if (has(offsetof(fd_event, token_count))) {
      EXPECT_EQ(event.token_count, right.token_count);
      EXPECT_EQ(event.top_logprob_count, right.top_logprob_count);
      for (uint32_t i = 0; i < event.token_count; ++i) EXPECT_EQ(event.tokens[i], tokens_[event.token_index + i]);
    }
    if (has(offsetof(fd_event, top_logprobs))) {
      for (uint32_t i = 0; i < event.token_count; ++i) {
        EXPECT_EQ(event.logprobs[i], logprobs_[event.token_index + i]);
        EXPECT_EQ(event.top_logprobs[2 * i].logprob, event.logprobs[i]) << "greedy: the most likely one was chosen";
      }
    }
    if (has(offsetof(fd_event, text_bytes))) {
      EXPECT_EQ(event.text_bytes, 0u);
      EXPECT_STREQ(event.text, "");
    }
    if (has(offsetof(fd_event, stop_index))) {
      EXPECT_EQ(event.finish, right.finish);
      EXPECT_EQ(event.stop_index, -1);
    }
    if (has(offsetof(fd_event, generated_tokens))) {
      EXPECT_EQ(event.stop_token, -1);
      EXPECT_EQ(event.prompt_tokens, right.prompt_tokens);
      EXPECT_EQ(event.generated_tokens, right.generated_tokens);
    }
    if (has(offsetof(fd_event, error))) {
      EXPECT_STREQ(event.error, "");
    }
    if (has(offsetof(fd_event, time_ns))) {
      EXPECT_GE(event.submit_ns, right.submit_ns);
      EXPECT_GE(event.time_ns, event.submit_ns);
    }
    if (has(offsetof(fd_event, times)) && event.times != nullptr) {
      EXPECT_EQ(event.times->struct_size, sizeof(fd_request_times));
    }
    if (has(offsetof(fd_event, cached_tokens))) {
      EXPECT_EQ(event.cached_tokens, 0u) << "of a prompt that fills no page";
    }
    for (size_t i = sizeof(fd_event); i < bytes; ++i) {
      ASSERT_EQ(out->at(index)[i], 0) << "byte " << i << " of " << bytes;
    }
  }

  // All events of one request of a caller who knows what the library does, and the tokens that all of them have.
  std::vector<fd_event> RightEvents(fd_engine* engine) {
    std::vector<fd_event> events;
    const uint64_t id = Submit(engine);
    fd_event event = {};
    event.struct_size = sizeof(event);
    while (fd_next(engine, id, &event, kAnswerTimeoutNs) == 1) {
      events.push_back(event);
      tokens_.insert(tokens_.end(), event.tokens, event.tokens + event.token_count);
      logprobs_.insert(logprobs_.end(), event.logprobs, event.logprobs + event.token_count);
    }
    EXPECT_EQ(events.size(), kTokens + 1);
    EXPECT_EQ(tokens_.size(), kTokens);
    return events;
  }

  int user_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<float> logprobs_;
};

TEST_F(GrowthFilledTest, NextFillsInWhatItsCallerHas) {
  const auto engine = MakeEngine(Options());
  const std::vector<fd_event> right = RightEvents(engine->get());
  for (size_t bytes = 16; bytes <= sizeof(fd_event) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    const uint64_t id = Submit(engine->get());
    for (const fd_event& event : right) {
      SizedBuffer out(bytes, 1);
      ASSERT_EQ(fd_next(engine->get(), id, out.get<fd_event>(), kAnswerTimeoutNs), 1);
      ExpectEvent(&out, 0, bytes, id, event);
      out.ExpectUntouchedFrom(1);
    }
    SizedBuffer out(bytes, 1);
    EXPECT_EQ(fd_next(engine->get(), id, out.get<fd_event>(), kAnswerTimeoutNs), FD_UNKNOWN_REQUEST);
    out.ExpectUntouchedFrom(0);
  }
}

// The first one says how large each is, and no more are written than there is room for.
TEST_F(GrowthFilledTest, PollHasItsCallersStride) {
  const auto engine = MakeEngine(Options());
  const std::vector<fd_event> right = RightEvents(engine->get());
  constexpr size_t kRoom = 3, kRequests = 2;
  for (size_t bytes = 16; bytes <= sizeof(fd_event) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    std::map<uint64_t, size_t> taken;
    for (size_t i = 0; i < kRequests; ++i) taken[Submit(engine->get())] = 0;
    for (size_t all = 0; all < kRequests * right.size();) {
      SizedBuffer out(bytes, kRoom + 2);
      const int count = fd_poll(engine->get(), out.get<fd_event>(), kRoom, kAnswerTimeoutNs);
      ASSERT_GE(count, 1);
      ASSERT_LE(count, static_cast<int>(kRoom));
      for (int i = 0; i < count; ++i) {
        uint64_t id = 0;
        std::memcpy(&id, out.at(i) + offsetof(fd_event, id), sizeof(id));
        ASSERT_EQ(taken.count(id), 1u);
        ASSERT_LT(taken[id], right.size());
        ExpectEvent(&out, i, bytes, id, right[taken[id]++]);
      }
      out.ExpectUntouchedFrom(count);
      all += count;
    }
    SizedBuffer out(bytes, 1);
    EXPECT_EQ(fd_poll(engine->get(), out.get<fd_event>(), 1, 0), FD_TIMEOUT);
    out.ExpectUntouchedFrom(0);
  }
}

TEST_F(GrowthFilledTest, SizesThatAreNoneTakeNothing) {
  const auto engine = MakeEngine(Options());
  fd_record* record = nullptr;
  ThrowIfError(fd_record_open(engine->get(), &record));
  const uint64_t id = Submit(engine->get());
  engine->Drain();
  for (const uint32_t size : kSizesThatAreNone) {
    SCOPED_TRACE(size);
    SizedBuffer out(sizeof(fd_stats), 1);  // larger than the others
    out.SetSize(size);
    EXPECT_EQ(fd_next(engine->get(), id, out.get<fd_event>(), 0), FD_BAD_STRUCT_SIZE);
    EXPECT_EQ(fd_poll(engine->get(), out.get<fd_event>(), 1, 0), FD_BAD_STRUCT_SIZE);
    EXPECT_EQ(fd_engine_stats(engine->get(), out.get<fd_stats>()), FD_BAD_STRUCT_SIZE);
    EXPECT_EQ(fd_engine_home(engine->get(), 0, out.get<fd_home_stats>()), FD_BAD_STRUCT_SIZE);
    EXPECT_EQ(fd_option_at(0, out.get<fd_option_info>()), FD_BAD_STRUCT_SIZE);
    uint64_t lost = 0;
    EXPECT_EQ(fd_record_read(record, out.get<fd_record_event>(), 1, &lost, nullptr), FD_BAD_STRUCT_SIZE);
    out.ExpectUntouchedFrom(0);
    uint32_t kept = 0;
    std::memcpy(&kept, out.at(0), sizeof(kept));
    EXPECT_EQ(kept, size);
  }
  fd_record_event recorded = {};
  recorded.struct_size = sizeof(recorded);
  EXPECT_EQ(fd_record_read(record, &recorded, 1, nullptr, nullptr), 1);
  fd_record_close(record);
  fd_event event = {};
  event.struct_size = sizeof(event);
  for (uint32_t i = 0; i < kTokens; ++i) {
    ASSERT_EQ(fd_next(engine->get(), id, &event, 0), 1);
    EXPECT_EQ(event.kind, FD_EVENT_TOKEN);
    EXPECT_EQ(event.token_index, i);
  }
  ASSERT_EQ(fd_next(engine->get(), id, &event, 0), 1);
  EXPECT_EQ(event.kind, FD_EVENT_FINISHED);
}

TEST_F(GrowthFilledTest, OptionsOfOtherSizes) {
  fd_option_info right;
  right.struct_size = sizeof(right);
  size_t index = 0;
  for (; fd_option_at(index, &right) == 1; ++index) {
    for (size_t bytes = 16; bytes <= sizeof(right) + 64; bytes += 8) {
      SizedBuffer out(bytes, 1);
      EXPECT_EQ(fd_option_at(index, out.get<fd_option_info>()), 1);
      out.ExpectBeginsAs(right);
      out.ExpectUntouchedFrom(1);
    }
  }
  EXPECT_GT(index, 20u);
  SizedBuffer out(sizeof(right), 1);
  EXPECT_EQ(fd_option_at(index, out.get<fd_option_info>()), 0);
  out.ExpectUntouchedFrom(0);
}

TEST_F(GrowthFilledTest, StatisticsOfOtherSizes) {
  const auto engine = MakeEngine(Options());
  RightEvents(engine->get());
  engine->Drain();
  ExpectSoon(*engine, "active_sequences", 0);  // then no page is taken any more
  fd_stats right = {};
  right.struct_size = sizeof(right);
  EXPECT_EQ(fd_engine_stats(engine->get(), &right), 0);
  EXPECT_EQ(right.generated_tokens, kTokens);
  for (size_t bytes = 16; bytes <= sizeof(right) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    SizedBuffer out(bytes, 1);
    EXPECT_EQ(fd_engine_stats(engine->get(), out.get<fd_stats>()), 0);
    if (bytes > offsetof(fd_stats, now_ns)) {  // the one field that changes while nothing runs
      EXPECT_GE(out.get<fd_stats>()->now_ns, right.now_ns);
      right.now_ns = out.get<fd_stats>()->now_ns;
    }
    out.ExpectBeginsAs(right);
    out.ExpectUntouchedFrom(1);
  }
}

TEST_F(GrowthFilledTest, StatisticsOfHomesOfOtherSizes) {
  const auto engine =
      MakeEngine(Options() + OptionList{{"core-plan", "split"}});  // hops go to homes with cores of their own
  RightEvents(engine->get());
  engine->Drain();
  ExpectSoon(*engine, "active_sequences", 0);  // then no page is taken any more, and nothing changes
  fd_home_stats right = {};
  right.struct_size = sizeof(right);
  EXPECT_EQ(fd_engine_home(engine->get(), 0, &right), 1);
  EXPECT_GT(right.hops, 0u);
  for (size_t bytes = 16; bytes <= sizeof(right) + 64; bytes += 8) {
    SCOPED_TRACE(bytes);
    SizedBuffer out(bytes, 1);
    EXPECT_EQ(fd_engine_home(engine->get(), 0, out.get<fd_home_stats>()), 1);
    out.ExpectBeginsAs(right);
    out.ExpectUntouchedFrom(1);
    SizedBuffer past(bytes, 1);
    EXPECT_EQ(fd_engine_home(engine->get(), 1, past.get<fd_home_stats>()), 0);
    past.ExpectUntouchedFrom(0);
  }
}

// Readers of several versions see the same.
TEST_F(GrowthFilledTest, RecordsHaveTheirCallersStride) {
  const auto engine = MakeEngine(Options());
  constexpr size_t kRoom = 5;
  std::vector<fd_record*> readers;
  std::vector<size_t> sizes;
  for (size_t bytes = 16; bytes <= sizeof(fd_record_event) + 64; bytes += 16) sizes.push_back(bytes);
  sizes.push_back(sizeof(fd_record_event));
  for (size_t i = 0; i < sizes.size(); ++i) ThrowIfError(fd_record_open(engine->get(), &readers.emplace_back()));
  RightEvents(engine->get());
  engine->Drain();
  // Only these events come once a request or token; others go on while there is no request.
  const auto wanted = [](const fd_record_event& event) {
    return event.kind == FD_RECORD_SUBMIT || event.kind == FD_RECORD_JOIN || event.kind == FD_RECORD_TOKEN;
  };
  std::vector<fd_record_event> right;
  fd_record_event event = {};
  event.struct_size = sizeof(event);
  while (fd_record_read(readers.back(), &event, 1, nullptr, nullptr) == 1) {
    if (wanted(event)) right.push_back(event);
  }
  ASSERT_EQ(right.size(), 2 + kTokens);
  for (size_t r = 0; r + 1 < sizes.size(); ++r) {
    SCOPED_TRACE(sizes[r]);
    size_t seen = 0;
    for (size_t count = 1; count > 0;) {
      SizedBuffer out(sizes[r], kRoom + 2);
      count = fd_record_read(readers[r], out.get<fd_record_event>(), kRoom, nullptr, nullptr);
      ASSERT_LE(count, kRoom);
      for (size_t i = 0; i < count; ++i) {
        fd_record_event own = {};
        std::memcpy(&own, out.at(i), std::min(sizes[r], sizeof(own)));
        if (sizes[r] < offsetof(fd_record_event, micro_batch)) {  // its kind is not known here
          EXPECT_EQ(own.struct_size, sizes[r]);
          continue;
        }
        if (!wanted(own)) continue;
        ASSERT_LT(seen, right.size());
        out.ExpectBeginsAs(right[seen++], i);
      }
      out.ExpectUntouchedFrom(count);
    }
    EXPECT_EQ(seen, sizes[r] < offsetof(fd_record_event, micro_batch) ? 0 : right.size());
  }
  for (fd_record* reader : readers) fd_record_close(reader);
}

}  // namespace
}  // namespace fastdecode
