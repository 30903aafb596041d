#include "tests/abi/fuzz_program.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "numa/check.h"
#include "tests/engine/end_to_end/engine_runs.h"

namespace fastdecode {

namespace {

void Sleep(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// A size of a caller's struct: mostly the library's, else an older or newer header's.
size_t DrawSize(Dice* dice, size_t bytes) {
  if (dice->OneIn(6)) return bytes + 8 * static_cast<size_t>(dice->Between(1, 6));
  if (dice->OneIn(6)) return 8 * static_cast<size_t>(dice->Between(2, static_cast<int>(bytes) / 8));
  return bytes;
}

// A struct of `bytes` bytes, in memory of this size.
std::vector<uint8_t> MakeStruct(size_t bytes, size_t count = 1) {
  std::vector<uint8_t> memory(bytes * count);
  const uint32_t size = static_cast<uint32_t>(bytes);
  if (!memory.empty()) std::memcpy(memory.data(), &size, sizeof(size));
  return memory;
}

fd_event FirstBytes(const uint8_t* from, size_t bytes) {
  fd_event event = {};
  std::memcpy(&event, from, std::min(bytes, sizeof(event)));
  return event;
}

}  // namespace

FuzzEngine::FuzzEngine(Dice* dice, const FuzzModel& given) : model(given) {
  polls = dice->OneIn(2);
  OptionList options = FuzzOptions(model);
  const auto set = [&](const char* name, const std::string& value) { options.push_back({name, value}); };
  const int context = dice->OneIn(2) ? 128 : 256;
  const int sequences = dice->Between(1, 8);
  set("max-context", std::to_string(context));
  set("max-sequences", std::to_string(sequences));
  set("homes", dice->OneIn(3) ? "local:2" : "local:1");
  // Threads that meet at each layer wait for their cores, where others have them.
  const bool alone = !dice->OneIn(4);
  if (alone) set("s-threads", "1");
  if (alone) set("r-threads", "1");
  if (dice->OneIn(2)) set("micro-batches", std::to_string(dice->Between(1, 3)));
  if (dice->OneIn(2)) set("max-queue", std::to_string(dice->Between(1, 12)));
  if (dice->OneIn(2)) set("prefill-chunk", std::to_string(dice->Between(1, 40)));
  if (!dice->OneIn(3)) set("record-socket", "off");
  // Little room, so that sequences are preempted.
  if (dice->OneIn(2)) set("kv-gib", std::to_string(model.kv_gib_of_token * context * dice->Between(10, 16) / 10));
  if (dice->OneIn(2)) {
    set("fault", "seed=" + std::to_string(dice->Between(1, 1000)) + ",delay=0." + std::to_string(dice->Between(1, 9)) +
                     ":" + std::to_string(dice->Between(50, 1500)) + "us");
  }
  set("hop-timeout-ms", "120000");
  EngineOptions made;
  for (const auto& [name, value] : options) made.Set(name, value);
  made.SetLog([](void* user, int, const char*) { ++static_cast<FuzzEngine*>(user)->log_lines; }, this,
              dice->Between(0, 3));
  ThrowIfError(fd_engine_create(made.get(), &engine_));
  max_context = fd_max_context(engine_);
  max_choices = fd_max_choices(engine_);
}

FuzzEngine::~FuzzEngine() { fd_engine_destroy(engine_); }

fd_stats FuzzEngine::Stats() const {
  fd_stats stats = {};
  stats.struct_size = sizeof(stats);
  EXPECT_EQ(fd_engine_stats(engine_, &stats), 0);
  return stats;
}

FuzzProgram::FuzzProgram(uint64_t seed, const FuzzOracle& oracle, std::unique_ptr<FuzzEngine>* kept)
    : dice_(seed), kept_(kept), to_the_end_(!dice_.OneIn(4)) {
  engine_ = std::move(*kept);
  if (engine_ == nullptr || !dice_.OneIn(2)) {
    engine_.reset();
    engine_ = std::make_unique<FuzzEngine>(&dice_, oracle.models()[dice_.OneIn(4) ? 1 : 0]);
  }
  before_ = engine_->Stats();
  forgets_ = dice_.OneIn(2);
  actions_ = dice_.Between(3, 25);
}

void FuzzProgram::Run(FuzzSeen* seen) {
  const int callers = dice_.Between(1, 3);
  callers_left_ = callers;
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) threads.emplace_back([this, seed = dice_.Seed()] { Caller(seed); });
  if (engine_->polls) threads.emplace_back([this, seed = dice_.Seed()] { Poller(seed); });
  if (dice_.OneIn(2)) threads.emplace_back([this, seed = dice_.Seed()] { Watcher(seed); });
  for (std::thread& thread : threads) thread.join();
  if (to_the_end_ && !testing::Test::HasFailure()) CheckEnd();
  CountWhatWasSeen(seen);
  const bool again = to_the_end_ && drain_began_ == 0 && dice_.OneIn(2);
  if (again) *kept_ = std::move(engine_);
  engine_.reset();
  // Where a request's logits went is its caller's again only now, if the engine ended first.
  calls_.clear();
}

// ---- Threads

void FuzzProgram::Caller(uint64_t seed) {
  Dice dice(seed);
  std::vector<std::shared_ptr<FuzzCall>> own;
  for (int i = 0; i < actions_ && !testing::Test::HasFailure(); ++i) {
    const int what = dice.Between(0, 99);
    if (what < 35) {
      for (int many = dice.OneIn(6) ? 10 : 1; many > 0; --many) Submit(&dice, &own);
    } else if (what < 43) {
      if (const auto call = Any(&dice)) Cancel(call.get());
    } else if (what < 49) {
      if (const auto call = Any(&dice); call != nullptr && forgets_) Forget(call.get());
    } else if (what < 56) {
      Sleep(dice.Between(0, 3000));
    } else if (what < 80) {
      if (!own.empty() && !engine_->polls) Next(&dice, dice.Of(own).get(), dice.Between(0, 5) * 1'000'000);
    } else if (what < 84) {
      AskForEventFd();
    } else if (what < 85) {
      if (dice.OneIn(2)) Drain(&dice);
    } else {
      CallAnything(&dice);
    }
  }
  for (const auto& call : own) {
    if (!engine_->polls && to_the_end_ && !testing::Test::HasFailure()) ReadToEnd(&dice, call.get());
  }
  if (--callers_left_ == 0) callers_done_ = true;
}

void FuzzProgram::Watcher(uint64_t seed) {
  Dice dice(seed);
  std::vector<fd_record*> records;
  while (!callers_done_ && !testing::Test::HasFailure()) {
    Sleep(dice.Between(0, 2000));
    if (records.size() < 3 && dice.OneIn(4)) {
      fd_record* record = nullptr;
      ThrowIfError(fd_record_open(engine_->get(), &record));
      records.push_back(record);
    }
    if (!records.empty() && dice.OneIn(2)) ReadRecord(&dice, dice.Of(records));
    if (!records.empty() && dice.OneIn(5)) {
      fd_record_close(records.back());
      records.pop_back();
    }
    CallAnything(&dice);
  }
  for (fd_record* record : records) fd_record_close(record);
}

void FuzzProgram::Poller(uint64_t seed) {
  Dice dice(seed);
  const bool quiet_first = dice.OneIn(2);
  while (!testing::Test::HasFailure()) {
    if (callers_done_ && (!to_the_end_ || outstanding_ == 0)) break;
    if (callers_done_ && quiet_first) {
      PollWhatIsLeft(&dice);
      continue;
    }
    const int what = dice.Between(0, 9);
    if (what < 4) {
      const int64_t timeouts[] = {0, 1, 1'000'000, 20'000'000};
      Poll(&dice, static_cast<size_t>(dice.OneIn(10) ? 5000 : dice.Between(0, 40)), dice.Of(timeouts));
    } else if (what < 8) {
      PollWhenReadable(&dice);
    } else if (what < 9) {
      Sleep(dice.Between(0, 5000));  // a slow reader
    } else {
      std::vector<uint8_t> none = MakeStruct(sizeof(fd_event));
      none[0] = dice.OneIn(2) ? 3 : 0;
      EXPECT_EQ(fd_poll(engine_->get(), reinterpret_cast<fd_event*>(none.data()), 1, 0), FD_BAD_STRUCT_SIZE);
    }
  }
  CheckBatch();
}

// ---- What they do

void FuzzProgram::Submit(Dice* dice, std::vector<std::shared_ptr<FuzzCall>>* own) {
  auto call = std::make_shared<FuzzCall>(dice, engine_->model, engine_->max_context, engine_->max_choices);
  if (dice->OneIn(8)) {
    call->SubmitWrong(dice, engine_->get());
    return;
  }
  const uint64_t drain_ended = drain_ended_;
  fd_status* const status = call->Submit(engine_->get());
  const std::string message = fd_status_message(status);
  switch (fd_status_code(status)) {
    case FD_OK: {
      EXPECT_EQ(drain_ended, 0u) << "a draining engine took a request";
      ++outstanding_;
      own->push_back(call);
      std::lock_guard lock(calls_mutex_);
      calls_.push_back(std::move(call));
      break;
    }
    case FD_RESOURCE_EXHAUSTED:
      EXPECT_NE(message.find("max-queue"), std::string::npos) << message;
      ++refused_;
      break;
    case FD_UNAVAILABLE:
      EXPECT_NE(drain_began_, 0u) << message;
      ++unavailable_;
      break;
    default:
      ADD_FAILURE() << message;
  }
  fd_status_destroy(status);
}

void FuzzProgram::Cancel(FuzzCall* call) {
  call->cancel_asked = true;
  fd_cancel(engine_->get(), call->id());
}

void FuzzProgram::Forget(FuzzCall* call) {
  {
    std::lock_guard lock(call->mutex);
    if (call->forgotten) return;
    call->forgotten = true;
    if (!call->ended()) --outstanding_;
  }
  fd_forget(engine_->get(), call->id());
  call->forgotten_at = Tick();
  std::lock_guard lock(call->mutex);
  call->FreeLogits();
}

void FuzzProgram::Drain(Dice* dice) {
  const int64_t timeouts[] = {0, 1'000'000, 20'000'000, -1};
  const int64_t timeout_ns = dice->Of(timeouts);
  if (drain_began_ == 0) drain_began_ = Tick();
  const size_t left = fd_drain(engine_->get(), timeout_ns);
  if (timeout_ns < 0) {
    EXPECT_EQ(left, 0u);
  }
  drain_ended_ = Tick();
}

void FuzzProgram::AskForEventFd() {
  const int fd = fd_engine_event_fd(engine_->get());
  EXPECT_GE(fd, 0);
  EXPECT_EQ(fd_engine_event_fd(engine_->get()), fd);
  engine_->has_event_fd = true;
}

// Calls one of the functions that change nothing.
void FuzzProgram::CallAnything(Dice* dice) {
  fd_engine* const engine = engine_->get();
  switch (dice->Between(0, 8)) {
    case 0: {
      std::vector<uint8_t> memory = MakeStruct(DrawSize(dice, sizeof(fd_home_stats)));
      const size_t index = static_cast<size_t>(dice->Between(0, 3));
      EXPECT_EQ(fd_engine_home(engine, index, reinterpret_cast<fd_home_stats*>(memory.data())),
                index < engine_->Stats().homes);
      int32_t core = 0;
      EXPECT_EQ(fd_engine_front_cores(engine, &core, 1), 0u);
      const uint64_t bound_ns = static_cast<uint64_t>(dice->Between(0, 1000));
      uint64_t at_most = UINT64_MAX;
      const uint64_t all = fd_engine_durations(engine, dice->Between(-1, 5), &bound_ns, 1, &at_most, nullptr);
      EXPECT_LE(at_most, all);
      break;
    }
    case 1: {
      std::vector<uint8_t> memory = MakeStruct(DrawSize(dice, sizeof(fd_stats)));
      EXPECT_EQ(fd_engine_stats(engine, reinterpret_cast<fd_stats*>(memory.data())), 0);
      CheckStats(engine_->Stats());
      break;
    }
    case 2:
      fd_string_free(fd_engine_describe(engine));
      break;
    case 3:
      fd_string_free(fd_engine_stats_json(engine));
      break;
    case 4:
      fd_engine_stats_reset(engine);
      break;
    case 5:
      if (dice->OneIn(3)) fd_string_free(fd_engine_pages_json(engine));
      break;
    case 6: {
      std::vector<uint8_t> memory = MakeStruct(DrawSize(dice, sizeof(fd_option_info)));
      EXPECT_GE(
          fd_option_at(static_cast<size_t>(dice->Between(0, 60)), reinterpret_cast<fd_option_info*>(memory.data())), 0);
      break;
    }
    case 7: {  // requests that never were
      const uint64_t id = dice->OneIn(2) ? 0 : UINT64_MAX - static_cast<uint64_t>(dice->Between(0, 9));
      fd_event event = {};
      event.struct_size = sizeof(event);
      fd_cancel(engine, id);
      fd_forget(engine, id);
      if (!engine_->polls) {
        EXPECT_EQ(fd_next(engine, id, &event, -1), FD_UNKNOWN_REQUEST);
      }
      break;
    }
    default: {
      const int32_t ids[] = {1, 2, dice->Between(0, engine_->model.vocab - 1)};
      char* text = nullptr;
      size_t bytes = 0;
      const bool special = dice->OneIn(2);
      fd_status* const status = (special ? fd_detokenize_special : fd_detokenize)(engine, ids, 3, &text, &bytes);
      EXPECT_EQ(status == nullptr, engine_->model.has_tokenizer);
      char token[4];
      const size_t token_bytes = fd_token_bytes(engine, ids[2], token, sizeof(token));
      EXPECT_TRUE(token_bytes == 0 || engine_->model.has_tokenizer);
      fd_string_free(fd_model_describe(engine));
      fd_status_destroy(status);
      fd_string_free(text);
    }
  }
}

void FuzzProgram::ReadRecord(Dice* dice, fd_record* record) {
  const size_t bytes = DrawSize(dice, sizeof(fd_record_event));
  const size_t room = static_cast<size_t>(dice->Between(1, 200));
  std::vector<uint8_t> memory = MakeStruct(bytes, room);
  uint64_t lost = 0;
  int ended = 0;
  const size_t count = fd_record_read(record, reinterpret_cast<fd_record_event*>(memory.data()), room, &lost, &ended);
  EXPECT_LE(count, room);
  EXPECT_EQ(ended, 0);
  for (size_t i = 0; i < count; ++i) {
    uint32_t size = 0;
    std::memcpy(&size, memory.data() + i * bytes, sizeof(size));
    EXPECT_EQ(size, bytes);
  }
  if (dice->OneIn(4)) fd_string_free(fd_record_describe(record));
}

FuzzCall* FuzzProgram::Find(uint64_t id) {
  std::lock_guard lock(calls_mutex_);
  for (const auto& call : calls_) {
    if (call->id() == id) return call.get();
  }
  return nullptr;
}

std::shared_ptr<FuzzCall> FuzzProgram::Any(Dice* dice) {
  std::lock_guard lock(calls_mutex_);
  return calls_.empty() ? nullptr : dice->Of(calls_);
}

// ---- fd_next

// Whether there may be more.
bool FuzzProgram::Next(Dice* dice, FuzzCall* call, int64_t timeout_ns) {
  const size_t bytes = DrawSize(dice, sizeof(fd_event));
  std::vector<uint8_t> memory = MakeStruct(bytes);
  const int got = fd_next(engine_->get(), call->id(), reinterpret_cast<fd_event*>(memory.data()), timeout_ns);
  std::lock_guard lock(call->mutex);
  if (call->forgotten) return false;  // by another thread: nothing may be looked at any more
  switch (got) {
    case 1: {
      const fd_event event = FirstBytes(memory.data(), bytes);
      EXPECT_EQ(event.id, call->id());
      call->Take(event, bytes);
      if (call->ended()) --outstanding_;
      return true;
    }
    case FD_TIMEOUT:
      EXPECT_FALSE(call->ended()) << "its last event was taken";
      return true;
    default:
      EXPECT_EQ(got, FD_UNKNOWN_REQUEST);
      EXPECT_TRUE(call->ended()) << "request " << call->id() << " is unknown before its last event was taken";
      return false;
  }
}

void FuzzProgram::ReadToEnd(Dice* dice, FuzzCall* call) {
  for (int events = 0; events < 5000; ++events) {
    {
      std::lock_guard lock(call->mutex);
      if (call->forgotten || (call->ended() && dice->OneIn(2))) return;  // or it stays until the engine goes
    }
    if (dice->OneIn(20)) Sleep(dice->Between(0, 1000));
    if (!Next(dice, call, kAnswerTimeoutNs) || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "request " << call->id() << " does not end";
}

}  // namespace fastdecode
