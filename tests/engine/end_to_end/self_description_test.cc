// What an engine says of its homes, its cores, its tokens and its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "numa/topology.h"
#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class SelfDescriptionTest : public InterfaceTest {
 protected:
  // The tokens' text is English, and this is its tokenizer, which is byte-level.
  static OptionList DemoOptions() {
    return {{"model", FASTDECODE_DEMO_MODEL}, {"homes", "local:1"}, {"poll", "yield"}, {"max-sequences", "8"}};
  }
  // The engine logs into log_.
  std::unique_ptr<InferenceEngine> MakeHeard(const OptionList& given) {
    EngineOptions options;
    for (const auto& [name, value] : given) options.Set(name, value);
    const auto keep = [](void* user, int, const char* message) {
      *static_cast<std::string*>(user) += std::string(message) + "\n";
    };
    options.SetLog(keep, &log_, /*level_min=*/1);
    return std::make_unique<InferenceEngine>(options);
  }

  std::string log_;
};

TEST_F(SelfDescriptionTest, HomesCountTheirHops) {
  const auto engine = MakeEngine(Options() + OptionList{{"core-plan", "split"}});
  const std::vector<fd_home_stats> before = engine->Homes();
  ASSERT_EQ(before.size(), 1u);
  EXPECT_THAT(before[0].name, HasSubstr("local, node "));
  EXPECT_EQ(before[0].up, 1u);
  EXPECT_EQ(before[0].hops + before[0].work_ns + before[0].last_reply_ns + before[0].losses, 0u);
  EXPECT_EQ(before[0].kv_pages, engine->Statistics().kv_pages);
  uint64_t last_reply_ns = 0, hops = 0;
  for (int i = 0; i < 2; ++i) {
    TokenStream stream = engine->Submit(GreedyRequest({1, 2, 3}, 4));
    std::optional<TokenEvent> last;
    while (std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) last = std::move(event);
    ASSERT_TRUE(last.has_value() && last->finished);
    const fd_home_stats home = engine->Homes().at(0);
    EXPECT_GT(home.last_reply_ns, last->submit_ns);
    EXPECT_LE(home.last_reply_ns, last->time_ns);
    EXPECT_GT(home.last_reply_ns, last_reply_ns);
    EXPECT_GT(home.hops, hops);
    EXPECT_EQ(home.hops, engine->Statistics().hops);
    EXPECT_GT(home.work_ns, 0u);
    EXPECT_LE(home.work_ns, engine->Statistics().now_ns - engine->Statistics().created_ns);
    last_reply_ns = home.last_reply_ns;
    hops = home.hops;
    engine->ResetStatistics();
  }
  EXPECT_EQ(engine->Homes().at(0).hops, hops) << "a reset leaves it alone";
}

// Where one team does both parts there are none, and the homes are there all the same.
TEST_F(SelfDescriptionTest, HomesWithoutThreadsHaveNoHops) {
  const auto engine = MakeEngine(Options() + OptionList{{"homes", "local:2"}, {"core-plan", "shared"}});
  RunAll(*engine, std::vector<GenerateRequest>(6, GreedyRequest({1, 2, 3}, 5)), false);
  EXPECT_GT(engine->Statistics().steps, 0u);
  EXPECT_EQ(engine->Statistics().hops, 0u);
  for (const fd_home_stats& home : engine->Homes()) {
    EXPECT_EQ(home.up, 1u);
    EXPECT_EQ(home.hops + home.work_ns + home.last_reply_ns + home.losses, 0u);
    EXPECT_GT(home.kv_pages, 0u);
  }
  EXPECT_THAT(engine->Describe(), HasSubstr("no link: the S-Part's threads attend within its stages"));
}

TEST_F(SelfDescriptionTest, EachHomeCountsItsOwn) {
  const auto engine = MakeEngine(Options() + OptionList{{"homes", "local:3"}, {"core-plan", "split"}});
  RunAll(*engine, std::vector<GenerateRequest>(6, GreedyRequest({1, 2, 3}, 5)), false);
  const std::vector<fd_home_stats> homes = engine->Homes();
  ASSERT_EQ(homes.size(), 3u);
  uint64_t hops = 0, pages = 0;
  for (const fd_home_stats& home : homes) {
    EXPECT_GT(home.hops, 0u) << "two sequences are at each";
    hops += home.hops;
    pages += home.kv_pages;
  }
  EXPECT_EQ(hops, engine->Statistics().hops);
  EXPECT_EQ(pages, engine->Statistics().kv_pages);
}

TEST_F(SelfDescriptionTest, PagesInUseAreAHomesToo) {
  const auto engine = MakeEngine(Options());
  TokenStream stream = engine->Submit(GreedyRequest({1, 2, 3}, 200));
  const auto start = std::chrono::steady_clock::now();
  while (engine->Homes().at(0).kv_pages_used == 0) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::nanoseconds(kAnswerTimeoutNs));
    if (engine->Statistics().requests_submitted == engine->Statistics().finished_length) {
      stream = engine->Submit(GreedyRequest({1, 2, 3}, 200));  // the last one was too quick to be seen
    }
  }
  EXPECT_LE(engine->Homes().at(0).kv_pages_used, engine->Homes().at(0).kv_pages);
}

TEST_F(SelfDescriptionTest, LossesAreCountedAndLogged) {
  auto engine = MakeHeard(Options() + OptionList{{"fault", "cut=60"}});
  const Answer answer = RunAll(*engine, {GreedyRequest({1, 2, 3}, 200)}, false)[0];
  EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
  const auto start = std::chrono::steady_clock::now();
  while (engine->Homes().at(0).losses == 0) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::nanoseconds(kAnswerTimeoutNs));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(WaitForAllHomes(*engine));
  const fd_home_stats home = engine->Homes().at(0);
  EXPECT_GE(home.losses, 1u) << "each link is cut after so many hops";
  EXPECT_EQ(Statistic(*engine, "recoveries"), static_cast<double>(home.losses));
  EXPECT_EQ(home.up, 1u);
  EXPECT_EQ(home.kv_pages, engine->Statistics().kv_pages);
  EXPECT_GT(home.hops, 0u) << "of the link before";
  engine.reset();  // nothing is logged any more
  EXPECT_THAT(log_, ContainsRegex("home 0 \\(local.*\\) was lost: .*; sequences that are computed again: 1\n"));
}

// The machine is the one that the test runs on, which may have two cores or many.
TEST_F(SelfDescriptionTest, NoThreadPollsOnCoresThatAreLeft) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  const std::vector<int> cores = topology->AllowedCores();
  if (cores.size() < 2) GTEST_SKIP() << "this process may use one core alone";
  const int left = cores.back();
  for (const char* plan : {"split", "shared", "auto"}) {
    SCOPED_TRACE(plan);
    log_.clear();
    const auto engine =
        MakeHeard(Options() + OptionList{{"spart", "cpu"}, {"core-plan", plan}, {"front-cores", std::to_string(left)}});
    EXPECT_THAT(engine->FrontCores(), ElementsAre(left));
    int32_t none[1] = {-1};
    EXPECT_EQ(fd_engine_front_cores(engine->get(), none, 0), 1u);
    EXPECT_EQ(none[0], -1);
    EXPECT_THAT(engine->Describe(), HasSubstr("left to the caller: cores " + std::to_string(left) + "\n"));
    EXPECT_THAT(log_, HasSubstr("--front-cores " + std::to_string(left) + ": cores " + std::to_string(left) +
                                " are left to the caller"));
    const json statistics = json::parse(engine->StatisticsJson());
    EXPECT_THAT(statistics["s_cores"], Not(IsEmpty()));
    EXPECT_THAT(statistics["s_cores"], Not(Contains(left)));
    for (const json& home : statistics["homes"]) {
      EXPECT_THAT(home["cores"], Not(IsEmpty()));
      EXPECT_THAT(home["cores"], Not(Contains(left)));
    }
    EXPECT_EQ(RunAll(*engine, {GreedyRequest({1, 2, 3}, 4)}, false)[0].tokens.size(), 4u);
  }
}

TEST_F(SelfDescriptionTest, NoCoreIsLeftUnlessThatIsAskedFor) {
  const auto engine = MakeEngine(Options());
  EXPECT_THAT(engine->FrontCores(), IsEmpty());
  EXPECT_THAT(engine->Describe(), Not(HasSubstr("left to the caller")));
}

TEST_F(SelfDescriptionTest, AutoSaysWhatItHasFound) {
  const auto engine = MakeHeard(Options() + OptionList{{"front-cores", "auto"}});
  const std::vector<int32_t> left = engine->FrontCores();
  EXPECT_THAT(log_, HasSubstr(left.empty() ? "--front-cores auto: no core is left to the caller"
                                           : "--front-cores auto: cores "));
  const json statistics = json::parse(engine->StatisticsJson());
  for (const int32_t core : left) EXPECT_THAT(statistics["s_cores"], Not(Contains(core)));
}

TEST_F(SelfDescriptionTest, CoresThatCannotBeLeftAreRefused) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  const std::string all = FormatCores(topology->AllowedCores()), one = std::to_string(topology->AllowedCores()[0]);
  ExpectError(EngineError(Options() + OptionList{{"front-cores", all}}), FD_INVALID_ARGUMENT,
              "--front-cores: '" + all + "': no core is left to the engine");
  ExpectError(EngineError(Options() + OptionList{{"front-cores", one}, {"s-cores", one}}), FD_INVALID_ARGUMENT,
              "--front-cores: '" + one + "': core " + one + " is also in --s-cores");
}

TEST_F(SelfDescriptionTest, TheBytesOfTokensMakeUpTheirText) {
  const auto engine = MakeEngine(DemoOptions());
  for (const std::string& text : {std::string("Once upon a time, there was"), std::string("\xF0\x9F\x98\x80 \xC3\xA9"),
                                  std::string("a\0b", 3), std::string("  \n\t ...")}) {
    const std::vector<int32_t> ids = engine->Tokenize(text, /*add_special_tokens=*/false);
    std::string bytes;
    for (const int32_t id : ids) bytes += engine->TokenBytes(id);
    EXPECT_EQ(bytes, text);
    EXPECT_EQ(bytes, engine->Detokenize(ids));
  }
  const std::vector<int32_t> all = engine->Tokenize("Once");
  std::string bytes;
  for (const int32_t id : all) bytes += engine->TokenBytes(id);
  EXPECT_EQ(bytes, "<|begin|>Once");
  EXPECT_EQ(engine->Detokenize(all, /*special=*/true), bytes);
  EXPECT_EQ(engine->Detokenize(all), "Once");
  for (const int32_t none : {-1, engine->vocab_size(), INT32_MIN, INT32_MAX}) EXPECT_EQ(engine->TokenBytes(none), "");
  // A token that is a whole text is its own bytes. Others are parts of characters, which are no text by themselves.
  int whole = 0;
  for (int32_t id = 0; id < engine->vocab_size(); ++id) {
    const std::string own = engine->TokenBytes(id), text = engine->Detokenize({id}, /*special=*/true);
    EXPECT_NE(own, "");
    if (text.find("\xEF\xBF\xBD") != std::string::npos) continue;
    EXPECT_EQ(own, text);
    ++whole;
  }
  EXPECT_GT(whole, engine->vocab_size() / 2);
  char two[2] = {'-', '-'};
  EXPECT_EQ(fd_token_bytes(engine->get(), 0, two, 1), std::string("<|begin|>").size());
  EXPECT_EQ(std::string(two, 2), "<-");
}

TEST_F(SelfDescriptionTest, TheDemoModelIsDescribed) {
  const auto engine = MakeEngine(DemoOptions() + OptionList{{"max-context", "100"}});
  const json model = json::parse(engine->ModelDescribeJson());
  EXPECT_EQ(model, json({{"model", FASTDECODE_DEMO_MODEL},
                         {"architecture", "LlamaForCausalLM"},
                         {"vocab_size", 1024},
                         {"max_context", 100},
                         {"tokenizer_file", FASTDECODE_DEMO_MODEL "/tokenizer.json"},
                         {"bos_token", "<|begin|>"},
                         {"bos_token_id", 0},
                         {"eos_token", "<|end|>"},
                         {"eos_token_id", 1},
                         {"stop_token_ids", {1}},
                         {"add_bos_token", true},
                         {"add_eos_token", false}}));
}

TEST_F(SelfDescriptionTest, AModelWithoutATokenizerIsDescribedToo) {
  dir_.Write("model/generation_config.json", R"({"eos_token_id": [7, 3, 7]})");
  const auto engine = MakeEngine(Options());
  const json model = json::parse(engine->ModelDescribeJson());
  for (const char* name : {"tokenizer_file", "bos_token", "bos_token_id", "eos_token", "eos_token_id"}) {
    EXPECT_TRUE(model.at(name).is_null()) << name;
  }
  EXPECT_EQ(model["model"], model_);
  EXPECT_EQ(model["vocab_size"], kVocab);
  EXPECT_EQ(model["max_context"], kContext);
  EXPECT_EQ(model["stop_token_ids"], json({3, 7}));
  EXPECT_EQ(model["add_bos_token"], false);
  EXPECT_EQ(model["add_eos_token"], false);
  EXPECT_EQ(engine->TokenBytes(1), "");
  try {
    engine->Detokenize({1}, /*special=*/true);
    ADD_FAILURE() << "there is no tokenizer";
  } catch (const Error& error) {
    ExpectError(error, FD_INVALID_ARGUMENT, "no tokenizer");
  }
}

// What is described is what ends a request.
TEST_F(SelfDescriptionTest, StopTokensEndAnswers) {
  dir_.Write("model/generation_config.json", R"({"eos_token_id": [7, 3]})");
  const auto engine = MakeEngine(Options());
  for (const int32_t id : json::parse(engine->ModelDescribeJson())["stop_token_ids"]) {
    GenerateRequest request = GreedyRequest({1, 2, 4}, 5);
    request.fields.ignore_eos = 0;
    request.logit_bias = {{id, 1000}};
    TokenStream stream = engine->Submit(request);
    std::optional<TokenEvent> last;
    while (std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) last = std::move(event);
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->finish, FD_FINISH_STOP);
    EXPECT_EQ(last->stop_token, id);
  }
}

}  // namespace
}  // namespace fastdecode
