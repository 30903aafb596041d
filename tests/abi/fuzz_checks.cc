// What the poller of a random program does, and what must hold of engine and requests.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/abi/fuzz_program.h"
#include "tests/engine/end_to_end/engine_runs.h"

namespace fastdecode {

namespace {

// Repeats until it holds, for as long as a busy machine may take.
template <class Condition>
bool Soon(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kAnswerTimeoutNs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

// ---- fd_poll

void FuzzProgram::Poll(Dice* dice, size_t capacity, int64_t timeout_ns) {
  CheckBatch();
  size_t bytes = sizeof(fd_event);
  if (dice->OneIn(6)) bytes += 8 * static_cast<size_t>(dice->Between(1, 6));
  if (dice->OneIn(12)) bytes = 8 * static_cast<size_t>(dice->Between(2, sizeof(fd_event) / 8));
  batch_.assign(std::max<size_t>(1, bytes * capacity), 0);
  const uint32_t size = static_cast<uint32_t>(bytes);
  if (capacity > 0) std::memcpy(batch_.data(), &size, sizeof(size));
  const uint64_t began = Tick();
  const int count = fd_poll(engine_->get(), reinterpret_cast<fd_event*>(batch_.data()), capacity, timeout_ns);
  ASSERT_GE(count, 0);
  ASSERT_LE(static_cast<size_t>(count), capacity);
  for (int i = 0; i < count; ++i) {
    fd_event event = {};
    std::memcpy(&event, batch_.data() + i * bytes, std::min(bytes, sizeof(event)));
    // Its caller may not have come back from submitting yet.
    FuzzCall* call = nullptr;
    ASSERT_TRUE(Soon([&] { return (call = Find(event.id)) != nullptr; })) << "nobody submitted " << event.id;
    std::lock_guard lock(call->mutex);
    const uint64_t forgotten_at = call->forgotten_at;
    EXPECT_TRUE(forgotten_at == 0 || forgotten_at > began) << "request " << event.id << " was forgotten before";
    if (call->forgotten) continue;
    call->Take(event, bytes);
    if (call->ended()) --outstanding_;
    if (bytes < offsetof(fd_event, text_bytes) + sizeof(event.text_bytes)) event.text = nullptr;
    taken_.push_back(
        {call, event, {event.tokens, event.tokens + event.token_count}, event.text == nullptr ? "" : event.text});
  }
}

// That what the last fd_poll gave out is still there.
void FuzzProgram::CheckBatch() {
  for (const Taken& taken : taken_) {
    std::lock_guard lock(taken.call->mutex);
    if (taken.call->forgotten) continue;
    EXPECT_TRUE(std::equal(taken.tokens.begin(), taken.tokens.end(), taken.event.tokens));
    if (taken.event.text != nullptr) {
      EXPECT_EQ(taken.event.text, taken.text);
    }
    if (taken.event.error != nullptr) {
      EXPECT_STREQ(taken.event.error, "");
    }
  }
  taken_.clear();
}

bool FuzzProgram::Readable() {
  pollfd wait = {fd_engine_event_fd(engine_->get()), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

// Polls like an event loop. Nobody else takes events, and so what is readable stays so, unless somebody forgets requests.
void FuzzProgram::PollWhenReadable(Dice* dice) {
  if (!engine_->has_event_fd) {
    if (dice->OneIn(3)) AskForEventFd();
    return;
  }
  pollfd wait = {fd_engine_event_fd(engine_->get()), POLLIN, 0};
  const bool readable = poll(&wait, 1, 5) == 1;
  const bool some = engine_->Stats().requests_undelivered > 0;
  if (!forgets_) {
    EXPECT_LE(readable, some) << "readable, but nothing waits";
    EXPECT_LE(some, Readable()) << "an event waits, and the descriptor does not say so";
  }
  if (!readable) return;
  Poll(dice, static_cast<size_t>(dice->Between(1, 64)), 0);
  if (!forgets_) {
    EXPECT_FALSE(taken_.empty()) << "readable, but nothing was there";
  }
}

// The callers are gone and every request has ended: what waits is known exactly.
void FuzzProgram::PollWhatIsLeft(Dice* dice) {
  AwaitQuiet();
  const int outstanding = outstanding_;
  EXPECT_EQ(engine_->Stats().requests_undelivered, static_cast<uint64_t>(outstanding));
  if (engine_->has_event_fd) {
    EXPECT_EQ(Readable(), outstanding > 0);
  }
  Poll(dice, static_cast<size_t>(dice->Between(1, 8)), -1);
}

// ---- What must hold

void FuzzProgram::CheckStats(const fd_stats& stats) {
  const uint64_t ended = stats.finished_stop + stats.finished_length + stats.finished_cancelled + stats.finished_error +
                         stats.finished_deadline;
  EXPECT_EQ(stats.requests_submitted, ended + stats.requests_waiting + stats.requests_running);
  EXPECT_GE(stats.choices_waiting + stats.choices_running, stats.requests_waiting + stats.requests_running);
  EXPECT_EQ(stats.finished_error, 0u);
  EXPECT_GE(stats.requests_submitted, before_.requests_submitted);
  EXPECT_GE(stats.generated_tokens, before_.generated_tokens);
  EXPECT_GE(stats.now_ns, before_.now_ns);
  EXPECT_GE(stats.now_ns, stats.last_step_ns);
  EXPECT_EQ(stats.homes_up, stats.homes);
  EXPECT_LE(stats.kv_pages_used, stats.kv_pages);
  EXPECT_LE(stats.cached_tokens, stats.prefix_tokens);
}

// Until every request has ended, those that were forgotten included.
void FuzzProgram::AwaitQuiet() {
  EXPECT_TRUE(Soon([&] {
    const fd_stats stats = engine_->Stats();
    return stats.requests_waiting + stats.requests_running == 0;
  })) << "requests hang";
}

void FuzzProgram::CountWhatWasSeen(FuzzSeen* seen) const {
  const fd_stats stats = engine_->Stats();
  for (const auto& call : calls_) {
    if (call->finish_known) ++seen->finished[call->finish];
    seen->forgotten += call->forgotten;
    seen->several += call->choices() > 1;
  }
  seen->refused += refused_;
  seen->unavailable += unavailable_;
  seen->destroyed += stats.requests_waiting + stats.requests_running;
  seen->preemptions += stats.preemptions - before_.preemptions;
  seen->cached += stats.cached_tokens - before_.cached_tokens;
}

void FuzzProgram::CheckEnd() {
  AwaitQuiet();
  const fd_stats stats = engine_->Stats();
  CheckStats(stats);
  const auto since = [&](uint64_t fd_stats::*field) { return stats.*field - before_.*field; };
  EXPECT_EQ(since(&fd_stats::requests_submitted), calls_.size());
  EXPECT_EQ(since(&fd_stats::requests_refused), refused_);
  EXPECT_EQ(stats.requests_undelivered, 0u);
  EXPECT_EQ(stats.draining, drain_began_ != 0);
  uint64_t prompt_tokens = 0, tokens = 0, finished[6] = {};
  bool all_known = true;
  for (const auto& call : calls_) {
    prompt_tokens += call->prompt_tokens();
    tokens += call->taken_tokens;
    all_known = all_known && !call->forgotten && call->counts && call->finish_known;
    if (call->finish_known) ++finished[call->finish];
    if (!call->forgotten) {
      EXPECT_TRUE(call->ended()) << "request " << call->id();
    }
  }
  EXPECT_EQ(since(&fd_stats::prompt_tokens), prompt_tokens);
  EXPECT_GE(since(&fd_stats::generated_tokens), tokens);
  const uint64_t counted[] = {0,
                              since(&fd_stats::finished_stop),
                              since(&fd_stats::finished_length),
                              since(&fd_stats::finished_cancelled),
                              since(&fd_stats::finished_error),
                              since(&fd_stats::finished_deadline)};
  for (int finish = FD_FINISH_STOP; finish <= FD_FINISH_DEADLINE; ++finish) {
    EXPECT_GE(counted[finish], finished[finish]) << finish;
    if (all_known) {
      EXPECT_EQ(counted[finish], finished[finish]) << finish;
    }
  }
  if (all_known) {
    EXPECT_EQ(since(&fd_stats::generated_tokens), tokens);
  }
  if (engine_->has_event_fd) {
    EXPECT_FALSE(Readable());
  }
  EXPECT_TRUE(Soon([&] { return engine_->Stats().kv_pages_used == 0; })) << "pages are used by nobody";
  if (engine_->polls) return;
  fd_event event = {};
  event.struct_size = sizeof(event);
  for (const auto& call : calls_) {
    EXPECT_EQ(fd_next(engine_->get(), call->id(), &event, 0), FD_UNKNOWN_REQUEST);
    fd_forget(engine_->get(), call->id());
  }
}

}  // namespace fastdecode
