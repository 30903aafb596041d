// The public interface, used wrongly and at its edges: an error that names what is wrong, or nothing at all; never a
// crash, a hang, or a lost request.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

TEST_F(InterfaceTest, EveryOptionTakesItsDefaultAndRefusesNonsenseByName) {
  fd_option_info info;
  info.struct_size = sizeof(info);
  size_t index = 0;
  int refused = 0;
  for (; fd_option_at(index, &info) == 1; ++index) {
    EngineOptions options;
    EXPECT_NO_THROW(options.Set(info.name, info.default_value)) << info.name;
    EXPECT_NE(std::string(info.help), "") << info.name;
    for (const char* nonsense : {"-1", "1e9x", "99999999999999999999", "\x01"}) {
      try {
        options.Set(info.name, nonsense);
      } catch (const Error& error) {
        ExpectError(error, FD_INVALID_ARGUMENT, info.name);
        ExpectError(error, FD_INVALID_ARGUMENT, nonsense);
        ++refused;
      }
    }
  }
  EXPECT_EQ(fd_option_at(index + 1000, &info), 0);
  EXPECT_GE(refused, 40) << "numbers and choices are checked when they are set";
  EngineOptions options;
  // Texts, as far as the text alone tells.
  for (const auto& [name, nonsense] : OptionList{{"homes", "???"},
                                                 {"homes", "local,local"},
                                                 {"isa", "foo"},
                                                 {"front-cores", "all"},
                                                 {"front-cores", ""},
                                                 {"listen", "zzz"},
                                                 {"fault", "bogus"},
                                                 {"model", std::string("a\0b", 3)}}) {
    try {
      options.Set(name, nonsense);
      ADD_FAILURE() << name << " took " << nonsense;
    } catch (const Error& error) {
      ExpectError(error, FD_INVALID_ARGUMENT, name);
    }
  }
  try {
    options.Set("no-such-option", "17");
    ADD_FAILURE() << "an unknown option was taken";
  } catch (const Error& error) {
    ExpectError(error, FD_INVALID_ARGUMENT, "no-such-option");
  }
}

TEST_F(InterfaceTest, EngineThatCannotBeMadeSaysWhy) {
  ExpectError(EngineError({}), FD_INVALID_ARGUMENT, "model");
  ExpectError(EngineError(Options() + OptionList{{"model", dir_.File("none")}}), FD_NOT_FOUND, dir_.File("none"));
  ExpectError(EngineError(Options() + OptionList{{"homes", "remote:1"}}), FD_INVALID_ARGUMENT, "remote:1");
  ExpectError(EngineError(Options() + OptionList{{"homes", ""}}), FD_INVALID_ARGUMENT, "homes");
  ExpectError(EngineError(Options() + OptionList{{"homes", "local:0"}}), FD_INVALID_ARGUMENT, "local:0");
  ExpectError(EngineError(Options() + OptionList{{"homes", "local:100000"}}), FD_INVALID_ARGUMENT, "homes");
  ExpectError(EngineError(Options() + OptionList{{"max-context", "257"}}), FD_INVALID_ARGUMENT, "257");
  ExpectError(EngineError(Options() + OptionList{{"s-cores", "0,x"}}), FD_INVALID_ARGUMENT, "s-cores");
  ExpectError(EngineError(Options() + OptionList{{"r-cores", "99999"}}), FD_INVALID_ARGUMENT, "r-cores");
  ExpectError(EngineError(Options() + OptionList{{"front-cores", "99999"}}), FD_INVALID_ARGUMENT,
              "--front-cores: '99999': core 99999 is not there");
  ExpectError(EngineError(Options() + OptionList{{"front-cores", "3-"}}), FD_INVALID_ARGUMENT,
              "--front-cores: '3-': '3-' is not a core or a range");
  ExpectError(EngineError(Options() + OptionList{{"isa", "sse2"}}), FD_INVALID_ARGUMENT, "sse2");
  ExpectError(EngineError(Options() + OptionList{{"fault", "drop=2"}}), FD_INVALID_ARGUMENT, "drop=2");
  ExpectError(EngineError(Options() + OptionList{{"kv-gib", "0.00001"}}), FD_RESOURCE_EXHAUSTED, "kv-gib");
  ExpectError(EngineError(Options() + OptionList{{"spart", "cpu"}, {"homes", "local,gpu"}}), FD_INVALID_ARGUMENT,
              "--homes: 'local,gpu': 'gpu' is for an S-Part that runs on one");
  ExpectError(EngineError(Options() + OptionList{{"gpu-kv-gib", "2"}}), FD_INVALID_ARGUMENT,
              "--gpu-kv-gib: 2 GiB, but 'gpu' is none of --homes");
  ExpectError(EngineError(Options() + OptionList{{"gpudirect", "maybe"}}), FD_INVALID_ARGUMENT, "gpudirect");
  const OptionList direct = Options() + OptionList{{"spart", "cpu"}, {"gpudirect", "true"}};
  ExpectError(EngineError(direct), FD_INVALID_ARGUMENT, "--gpudirect: --homes 'local:1' names no HOST:PORT");
  const OptionList elsewhere = direct + OptionList{{"homes", "127.0.0.1:1"}};
  ExpectError(EngineError(elsewhere), FD_INVALID_ARGUMENT, "--gpudirect: the S-Part does not run on a GPU");
  ExpectError(EngineError(elsewhere + OptionList{{"fault", "corrupt-payload=0.1"}}), FD_INVALID_ARGUMENT,
              "--fault corrupt-payload is for memory");
  // The pages of all tokens, but none for those that are open.
  ExpectError(EngineError(Options() + OptionList{{"kv-type", "int4"}, {"kv-gib", "0.000021"}}), FD_RESOURCE_EXHAUSTED,
              "kv-gib");
  ExpectError(EngineError(Options() + OptionList{{"kv-gib", "1000000"}}), FD_RESOURCE_EXHAUSTED, "");
}

// All of these work, where the machine has the memory, but for more sequences than a micro-batch can have.
TEST_F(InterfaceTest, EngineAtTheLimitsOfItsOptions) {
  const struct {
    OptionList options;
    std::string refusal = "";
  } cases[] = {
      {{{"max-sequences", "1"}, {"micro-batches", "16"}}},
      {{{"max-sequences", "1"}, {"prefill-chunk", "1"}, {"micro-batches", "1"}}},
      {{{"max-sequences", "16384"}, {"micro-batches", "2"}, {"kv-gib", "0.001"}}},
      {{{"max-sequences", "16384"}, {"micro-batches", "1"}, {"kv-gib", "0.001"}},
       "--max-sequences: 16384 over 1 micro-batches are 16384 a micro-batch"},
      {{{"max-sequences", "16384"}, {"max-queue", "8192"}, {"kv-gib", "0.001"}}},
      // The micro-batches' shares, rounded up, are together more.
      {{{"max-sequences", "16384"}, {"max-queue", "8192"}, {"micro-batches", "15"}, {"kv-gib", "0.001"}}},
      {{{"prefill-chunk", "8192"}, {"max-queue", "1"}}},
      {{{"max-context", "2"}, {"s-threads", "9"}, {"r-threads", "9"}}},
  };
  for (const auto& [options, refusal] : cases) {
    SCOPED_TRACE(options[0].first + " " + options[0].second);
    std::unique_ptr<InferenceEngine> engine;
    try {
      engine = MakeEngine(Options() + options);
    } catch (const Error& error) {
      if (refusal.empty() && error.code() == FD_RESOURCE_EXHAUSTED) continue;
      ExpectError(error, FD_INVALID_ARGUMENT, refusal.empty() ? "nothing to refuse" : refusal);
      continue;
    }
    EXPECT_EQ(refusal, "") << "it must be refused";
    EXPECT_EQ(RunAll(*engine, {GreedyRequest({1}, 1)}, false)[0].finish, FD_FINISH_LENGTH);
  }
}

TEST_F(InterfaceTest, LongestPromptAndLongestAnswer) {
  const auto engine = MakeEngine(Options());
  EXPECT_EQ(engine->max_context(), kContext);
  std::mt19937_64 random(1);
  const std::vector<Answer> answers = RunAll(
      *engine, {GreedyRequest(RandomPrompt(random, kVocab, kContext - 1), 100), GreedyRequest({7}, 1u << 30)}, false);
  EXPECT_EQ(answers[0].tokens.size(), 1u);
  EXPECT_EQ(answers[1].tokens.size(), static_cast<size_t>(kContext) - 1);
  for (const Answer& answer : answers) EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
}

// Over all micro-batches, also if these are more.
TEST_F(InterfaceTest, NoMoreSequencesAdvanceAtOnceThanWanted) {
  const auto engine = MakeEngine(Options() + OptionList{{"max-sequences", "1"}, {"micro-batches", "4"}});
  std::vector<TokenStream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(engine->Submit(GreedyRequest({i + 1}, 40)));
  uint64_t last_ended_ns = 0;
  for (TokenStream& stream : streams) {  // in the order in which they came
    std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs);
    ASSERT_TRUE(event.has_value());
    EXPECT_GE(event->time_ns, last_ended_ns) << "its first token is there before another sequence's last";
    while (event.has_value() && !event->finished) event = stream.Next(kAnswerTimeoutNs);
    ASSERT_TRUE(event.has_value());
    last_ended_ns = event->time_ns;
  }
}

TEST_F(InterfaceTest, UnknownAndEndedIds) {
  const auto engine = MakeEngine(Options());
  fd_event event;
  event.struct_size = sizeof(event);
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    EXPECT_EQ(fd_next(engine->get(), id, &event, -1), FD_UNKNOWN_REQUEST);
    fd_cancel(engine->get(), id);
    fd_forget(engine->get(), id);
  }
  EXPECT_EQ(fd_poll(engine->get(), &event, 1, 0), FD_TIMEOUT);
  TokenStream stream = engine->Submit(GreedyRequest({1}, 2));
  Answer answer;
  ReadToEnd(stream, &answer);
  EXPECT_EQ(answer.tokens.size(), 2u);
  // Its last event was taken: it is unknown now.
  EXPECT_EQ(fd_next(engine->get(), stream.id(), &event, -1), FD_UNKNOWN_REQUEST);
  stream.Cancel();
  EXPECT_EQ(fd_poll(engine->get(), &event, 1, 1'000'000), FD_TIMEOUT);
}

TEST_F(InterfaceTest, ForgottenRequestsSayNothingMore) {
  const auto engine = MakeEngine(Options());
  fd_event event;
  event.struct_size = sizeof(event);
  for (int i = 0; i < 20; ++i) {
    TokenStream stream = engine->Submit(GreedyRequest({1, 2}, 200));
    if (i % 2 == 0) stream.Next(kAnswerTimeoutNs);
    const uint64_t id = stream.id();
    fd_forget(engine->get(), id);
    EXPECT_EQ(fd_next(engine->get(), id, &event, -1), FD_UNKNOWN_REQUEST);
    fd_forget(engine->get(), id);
  }
  EXPECT_EQ(fd_poll(engine->get(), &event, 1, 1'000'000), FD_TIMEOUT);
  engine->Drain();
  ExpectSoon(*engine, "ready_sequences", 0);
  ExpectSoon(*engine, "active_sequences", 0);
}

TEST_F(InterfaceTest, CancelledRequestsEndOnce) {
  const auto engine = MakeEngine(Options() + OptionList{{"fault", "delay=1:10ms"}});  // 4 s for a whole one
  std::vector<TokenStream> streams;
  for (int i = 0; i < 24; ++i)
    streams.push_back(engine->Submit(GreedyRequest({1, 2}, 200)));  // three times what runs at once
  for (TokenStream& stream : streams) stream.Cancel();
  for (TokenStream& stream : streams) stream.Cancel();
  for (TokenStream& stream : streams) {
    Answer answer;
    ReadToEnd(stream, &answer);
    EXPECT_EQ(answer.finish, FD_FINISH_CANCELLED);
  }
}

TEST_F(InterfaceTest, FullQueueRefusesAndRecovers) {
  const auto engine = MakeEngine(Options() + OptionList{{"max-queue", "2"}, {"fault", "delay=1:4ms"}});  // 2 s for both
  TokenStream first = engine->Submit(GreedyRequest({1}, 250));
  TokenStream second = engine->Submit(GreedyRequest({2}, 250));
  ExpectError(SubmitError(*engine, GreedyRequest({3}, 1)), FD_RESOURCE_EXHAUSTED, "max-queue");
  // Nor is there room once they run, though none waits.
  std::vector<Answer> answers(2);
  const std::vector<TokenStream*> streams = {&first, &second};
  for (size_t i = 0; i < 2; ++i) {
    const std::optional<TokenEvent> event = streams[i]->Next(kAnswerTimeoutNs);
    ASSERT_TRUE(event.has_value());
    Record(*event, &answers[i]);
  }
  ExpectError(SubmitError(*engine, GreedyRequest({3}, 1)), FD_RESOURCE_EXHAUSTED,
              "2 requests are waiting or running (--max-queue)");
  for (size_t i = 0; i < 2; ++i) {
    ReadToEnd(*streams[i], &answers[i]);
    EXPECT_EQ(answers[i].finish, FD_FINISH_LENGTH);
  }
  EXPECT_EQ(RunAll(*engine, {GreedyRequest({3}, 1)}, false)[0].finish, FD_FINISH_LENGTH);
}

TEST_F(InterfaceTest, DrainWaitsForAllAndRefusesMore) {
  const auto engine = MakeEngine(Options());
  std::vector<TokenStream> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(engine->Submit(GreedyRequest({1, 2}, 50)));
  engine->Drain();
  ExpectError(SubmitError(*engine, GreedyRequest({1}, 1)), FD_UNAVAILABLE, "drain");
  engine->Drain();
  for (TokenStream& stream : streams) {
    // All has been said already.
    Answer answer;
    while (const std::optional<TokenEvent> event = stream.Next(0)) Record(*event, &answer);
    EXPECT_TRUE(answer.ended);
    EXPECT_EQ(answer.tokens.size(), 50u);
  }
}

TEST_F(InterfaceTest, EngineIsDestroyedWithRequestsInAllStates) {
  for (int round = 0; round < 5; ++round) {
    auto engine = MakeEngine(Options() + OptionList{{"micro-batches", std::to_string(1 + round % 3)}});
    uint64_t id = 0;
    for (int i = 0; i < 30; ++i) {
      // Streams would have to go first: ids only.
      fd_request request;
      fd_request_init(&request, sizeof(request));
      const int32_t prompt[] = {1, 2, 3, 4};
      request.prompt_ids = prompt;
      request.prompt_id_count = 4;
      request.max_tokens = 200;
      ThrowIfError(fd_submit(engine->get(), &request, &id));
      if (i % 10 == 3) fd_cancel(engine->get(), id);
    }
    fd_event event;
    event.struct_size = sizeof(event);
    if (round > 1) fd_poll(engine->get(), &event, 1, 20'000'000);
    if (round > 2) fd_next(engine->get(), id, &event, 0);
    engine.reset();
  }
}

// 200 to 219 tokens lie on seven pages. Whether the first four came singly, with the first chunks of the prompt, or as
// a piece of four: the others are of a piece of four, whose last page is held.
TEST_F(InterfaceTest, HomesSayWhichPagesAreUsedAndHeld) {
  const auto engine = MakeEngine(
      Options() + OptionList{{"kv-gib", "0.0625"}, {"fault", "delay=1:400ms"}, {"prefix-cache", "off"}});
  for (int round = 0; round < 2; ++round) {
    std::optional<HomesPages> pages =
        AwaitPages(*engine, 0, [](const HomesPages& said) { return said.used + said.held == 0; });
    ASSERT_TRUE(pages.has_value());
    const uint64_t all = pages->all;
    EXPECT_GT(all, 100u);
    EXPECT_EQ(pages->free, all);
    EXPECT_EQ(pages->used + pages->held, 0u);
    std::mt19937_64 random(1);
    TokenStream stream = engine->Submit(GreedyRequest(RandomPrompt(random, kVocab, 200), 20));  // 16 s for all of them
    Answer answer;
    const std::optional<TokenEvent> first = stream.Next(kAnswerTimeoutNs);
    ASSERT_TRUE(first.has_value());
    Record(*first, &answer);
    pages = AwaitPages(*engine, 0, [](const HomesPages& said) { return said.used == 7; });
    ASSERT_TRUE(pages.has_value());
    EXPECT_EQ(pages->used, 7u);
    EXPECT_EQ(pages->free, all - 7);
    EXPECT_EQ(pages->held, 1u);
    stream.Cancel();
    ReadToEnd(stream, &answer);
    EXPECT_EQ(answer.finish, FD_FINISH_CANCELLED);
  }
}

TEST_F(InterfaceTest, TwoEnginesInOneProcess) {
  const std::string other = WriteTinyModel(dir_.path(), "other", kContext, /*seed=*/10);
  const GenerateRequest request = GreedyRequest({5, 6, 7}, 40);
  const std::vector<int32_t> first_right = RunAll(*MakeEngine(Options()), {request}, false)[0].tokens;
  const std::vector<int32_t> second_right =
      RunAll(*MakeEngine(Options() + OptionList{{"model", other}}), {request}, false)[0].tokens;
  EXPECT_NE(first_right, second_right) << "the two models must differ for this test to say something";

  const auto first = MakeEngine(Options());
  auto second = MakeEngine(Options() + OptionList{{"model", other}});
  std::vector<TokenStream> first_streams, second_streams;
  for (int i = 0; i < 6; ++i) {
    first_streams.push_back(first->Submit(request));
    second_streams.push_back(second->Submit(request));
  }
  const auto expect = [](std::vector<TokenStream>& streams, const std::vector<int32_t>& right) {
    for (TokenStream& stream : streams) {
      Answer answer;
      ReadToEnd(stream, &answer);
      EXPECT_EQ(answer.tokens, right);
    }
  };
  expect(second_streams, second_right);
  second_streams.clear();
  second.reset();
  expect(first_streams, first_right);
}

TEST_F(InterfaceTest, ManyThreadsSubmitCancelAndRead) {
  const auto engine = MakeEngine(Options());
  const std::vector<int32_t> right = RunAll(*engine, {GreedyRequest({9, 8}, 12)}, false)[0].tokens;
  std::atomic<int> whole{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&engine, &right, &whole, t] {
      for (int i = 0; i < 30; ++i) {
        TokenStream stream = engine->Submit(GreedyRequest({9, 8}, 12));
        if ((i + t) % 5 == 0) stream.Cancel();
        if ((i + t) % 7 == 0) continue;  // forgotten
        Answer answer;
        ReadToEnd(stream, &answer);
        if (answer.finish != FD_FINISH_LENGTH) continue;
        EXPECT_EQ(answer.tokens, right);
        ++whole;
      }
    });
  }
  std::atomic<bool> stop{false};
  std::thread observer([&engine, &stop] {
    while (!stop) {
      engine->StatisticsJson();
      engine->ResetStatistics();
      engine->Describe();
      engine->PagesJson();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  observer.join();
  EXPECT_GT(whole, 0);
}

TEST_F(InterfaceTest, LogGoesToTheSinkAndNowhereElse) {
  struct Counts {
    std::atomic<int> all{0}, below{0};
  } counts;
  EngineOptions options;
  for (const auto& [name, value] : Options()) options.Set(name, value);
  options.SetLog(
      [](void* user, int level, const char* message) {
        ++static_cast<Counts*>(user)->all;
        if (level < 1 || message == nullptr) ++static_cast<Counts*>(user)->below;
      },
      &counts, /*level_min=*/1);
  testing::internal::CaptureStderr();
  { InferenceEngine engine(options); }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_GT(counts.all, 0);
  EXPECT_EQ(counts.below, 0);
}

TEST_F(InterfaceTest, WorkerThatCannotBeMadeSaysWhy) {
  const auto error = [](const OptionList& list) {
    EngineOptions options;
    try {
      for (const auto& [name, value] : list) options.Set(name, value);
      WorkerServer worker(options);
    } catch (const Error& error) {
      return error;
    }
    return Error(FD_OK, "");
  };
  const std::string folder = dir_.path();
  ExpectError(error({}), FD_INVALID_ARGUMENT, "listen");
  ExpectError(error({{"listen", "local:1"}}), FD_INVALID_ARGUMENT, "local:1");
  ExpectError(error({{"listen", "unix:"}}), FD_INVALID_ARGUMENT, "listen");
  ExpectError(error({{"listen", "unix:/" + std::string(200, 'x')}, {"kv-gib", "0.001"}}), FD_INVALID_ARGUMENT, "xxx");
  ExpectError(error({{"listen", "unix:" + folder + "/no/such"}, {"kv-gib", "0.001"}}), FD_NOT_FOUND, "no/such");
  ExpectError(error({{"listen", "unix:" + model_}, {"kv-gib", "0.001"}}), FD_ALREADY_EXISTS, model_);
  ExpectError(error({{"listen", "unix:" + folder + "/w"}, {"model", folder + "/none"}, {"kv-gib", "0.001"}}),
              FD_NOT_FOUND, "none");
}

TEST_F(InterfaceTest, SynthesizeErrors) {
  const std::string folder = dir_.File("a");
  const auto error = [&](auto change) {
    fd_synth synth;
    fd_synth_init(&synth, sizeof(synth));
    synth.shape = "tiny-random";
    synth.out_dir = folder.c_str();
    change(synth);
    try {
      ThrowIfError(fd_synthesize(&synth));
    } catch (const Error& error) {
      return error;
    }
    return Error(FD_OK, "");
  };
  ExpectError(error([](auto& s) { s.shape = "no-such-shape"; }), FD_INVALID_ARGUMENT, "no-such-shape");
  ExpectError(error([](auto& s) { s.shape = nullptr; }), FD_INVALID_ARGUMENT, "shape");
  ExpectError(error([](auto& s) { s.layers = -1; }), FD_INVALID_ARGUMENT, "-1");
  ExpectError(error([](auto& s) { s.dtype = "f64"; }), FD_INVALID_ARGUMENT, "f64");
  ExpectError(error([](auto& s) { s.k_outliers = 3; }), FD_INVALID_ARGUMENT, "k_outliers is 3");
  ExpectError(error([](auto& s) { s.k_outlier_factor = 0; }), FD_INVALID_ARGUMENT, "k_outlier_factor is 0");
  ExpectError(error([](auto& s) { s.struct_size = 1; }), FD_INVALID_ARGUMENT, "struct_size");
  ExpectError(error([](auto& s) { s.out_dir = nullptr; }), FD_INVALID_ARGUMENT, "out_dir");
  ExpectError(error([&](auto& s) { s.out_dir = model_.c_str(); }), FD_ALREADY_EXISTS, model_);
  EXPECT_NE(error([](auto& s) { s.progress = [](void*, uint64_t, uint64_t) { return 0; }; }).code(), FD_OK);
  EXPECT_FALSE(std::filesystem::exists(folder));
  // A folder that is named from one that is gone.
  const std::filesystem::path back = std::filesystem::current_path();
  std::filesystem::create_directory(dir_.File("gone"));
  std::filesystem::current_path(dir_.File("gone"));
  std::filesystem::remove(dir_.File("gone"));
  ExpectError(error([](auto& s) { s.out_dir = "lost"; }), FD_NOT_FOUND, "lost: cannot look up");
  std::filesystem::current_path(back);
  // The shapes end somewhere.
  size_t shapes = 0;
  while (fd_synth_shape_at(shapes) != nullptr) ++shapes;
  EXPECT_GT(shapes, 5u);
}

TEST(InterfaceNullTest, IsRefused) {
  fd_record* record = nullptr;
  try {
    ThrowIfError(fd_record_attach(nullptr, &record));
    FAIL() << "NULL names no engine";
  } catch (const Error& error) {
    ExpectError(error, FD_INVALID_ARGUMENT, "pid_or_socket is NULL");
  }
}

TEST(InterfaceVersionTest, LibraryAndHeaderAgree) {
  EXPECT_EQ(fd_abi_version(), uint32_t{FD_ABI_VERSION});
  EXPECT_EQ(fd_status_code(nullptr), FD_OK);
  EXPECT_STREQ(fd_status_message(nullptr), "");
  fd_status_destroy(nullptr);
}

}  // namespace
}  // namespace fastdecode
