// What an engine records, read by somebody of this process and by somebody who attached to it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

constexpr int kContext = 256;
constexpr uint32_t kTokens = 40;
constexpr size_t kRequests = 6;

class RecordTest : public testing::Test {
 protected:
  void SetUp() override { model_ = WriteTinyModel(dir_.path(), "model", kContext, /*seed=*/9); }

  OptionList Options() const {
    return {{"model", model_}, {"compute", "f32"}, {"homes", "local:2"}, {"poll", "yield"}, {"max-sequences", "8"}};
  }
  static std::vector<GenerateRequest> Requests() {
    std::vector<GenerateRequest> requests;
    for (size_t i = 0; i < kRequests; ++i) {
      requests.push_back(GreedyRequest(std::vector<int32_t>(5 + i, static_cast<int32_t>(i + 1)), kTokens));
      requests.back().fields.ignore_eos = 1;
    }
    return requests;
  }
  // What began has ended.
  static bool IsWhole(const std::vector<fd_record_event>& events) {
    std::map<int, size_t> kinds;
    for (const fd_record_event& event : events) ++kinds[event.kind];
    return kinds[FD_RECORD_FINISH] == kinds[FD_RECORD_COMPOSE] && kinds[FD_RECORD_DELIVER] == kinds[FD_RECORD_TOKEN] &&
           kinds[FD_RECORD_LEAVE] == kinds[FD_RECORD_JOIN];
  }
  static std::vector<fd_record_event> Read(EngineRecord& record) {
    std::vector<fd_record_event> events;
    // The last delivery and the end of the last step are seen by a caller before they are recorded.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kAnswerTimeoutNs);
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      record.ReadInto(&events);
    } while (!IsWhole(events) && std::chrono::steady_clock::now() < deadline);
    EXPECT_EQ(record.lost(), 0u);
    return events;
  }

  // one_team: the homes' attention is part of the stages.
  static void ExpectWholeRun(const std::vector<fd_record_event>& events, int layers, bool one_team) {
    std::map<int, size_t> kinds, parts;
    std::map<uint64_t, uint32_t> tokens, delivered;
    std::set<int> homes;
    size_t moves = 0;  // to another micro-batch: each is a leave and a join
    for (const fd_record_event& event : events) {
      ++kinds[event.kind];
      moves += event.kind == FD_RECORD_LEAVE && event.part == FD_LEAVE_MOVED;
      ASSERT_LE(event.start_ns, event.end_ns) << static_cast<int>(event.kind);
      if (event.kind == FD_RECORD_TOKEN) ++tokens[event.id];
      if (event.kind == FD_RECORD_DELIVER) ++delivered[event.id];
      if (event.kind == FD_RECORD_STAGE_PART) ++parts[event.part];
      if (event.kind != FD_RECORD_HOP) continue;
      homes.insert(event.home);
      ASSERT_LT(event.layer, layers);
      const uint64_t work_ns =
          uint64_t{event.prepare_ns} + event.append_ns + event.attend_ns + event.merge_ns + event.wait_ns;
      ASSERT_GT(work_ns, 0u);
      // The home's clock is this host's: the hop was worked on between posting and reply, to within what two bytes
      // tell of a duration. When the reply was ready is known modulo 2^32 ns, and the pipeline may stand still.
      const uint64_t hop_ns = event.end_ns - event.start_ns;
      ASSERT_LE(work_ns, hop_ns * 1.001 + 1);
      const uint64_t after_work_ns = static_cast<uint32_t>(event.end_ns - event.home_end_ns);
      ASSERT_LE(after_work_ns + work_ns, hop_ns + work_ns / 1000 + 1);
    }
    EXPECT_EQ(homes, one_team ? std::set<int>() : (std::set<int>{0, 1}));
    EXPECT_EQ(tokens.size(), kRequests);
    for (const auto& [id, count] : tokens) EXPECT_EQ(count, kTokens) << id;
    EXPECT_EQ(delivered, tokens);
    const size_t steps = kinds[FD_RECORD_COMPOSE];
    EXPECT_GE(steps, kTokens);
    EXPECT_EQ(kinds[FD_RECORD_FINISH], steps);
    EXPECT_EQ(kinds[FD_RECORD_STAGE], steps * static_cast<size_t>(layers + 1));
    const size_t attentions = one_team ? steps * static_cast<size_t>(layers) : 0;
    EXPECT_EQ(parts[FD_STAGE_ATTEND], attentions);
    EXPECT_EQ(kinds[FD_RECORD_STAGE_PART], steps * static_cast<size_t>(4 * layers + 1) + attentions);
    EXPECT_EQ(kinds[FD_RECORD_JOIN], kRequests + moves);
    EXPECT_EQ(kinds[FD_RECORD_LEAVE], kRequests + moves);
  }

  ScratchDir dir_;
  std::string model_;
};

TEST_F(RecordTest, InThisProcessAndAttachedSeeTheSame) {
  const std::unique_ptr<InferenceEngine> engine = MakeEngine(Options() + OptionList{{"core-plan", "split"}});
  EngineRecord inside(*engine);
  EngineRecord attached(std::to_string(getpid()));
  const nlohmann::json engine_json = nlohmann::json::parse(inside.DescribeJson());
  EXPECT_EQ(engine_json["pid"], getpid());
  EXPECT_EQ(engine_json["homes"].size(), 2u);
  EXPECT_EQ(engine_json["model"], "model");
  EXPECT_EQ(nlohmann::json::parse(attached.DescribeJson())["layers"], engine_json["layers"]);
  RunAll(*engine, Requests(), false);
  const int layers = engine_json["layers"];
  ExpectWholeRun(Read(inside), layers, /*one_team=*/false);
  ExpectWholeRun(Read(attached), layers, /*one_team=*/false);
  EXPECT_FALSE(attached.ended());
}

TEST_F(RecordTest, WhereStagesAttendThatIsAPartOfThem) {
  const std::unique_ptr<InferenceEngine> engine = MakeEngine(Options() + OptionList{{"core-plan", "shared"}});
  EngineRecord inside(*engine);
  RunAll(*engine, Requests(), false);
  ExpectWholeRun(Read(inside), nlohmann::json::parse(inside.DescribeJson())["layers"], /*one_team=*/true);
}

TEST_F(RecordTest, RecordSocketIsWhereItIsToldToBe) {
  const std::string path = dir_.path() + "/record.sock";
  std::unique_ptr<InferenceEngine> engine = MakeEngine(Options() + OptionList{{"record-socket", path}});
  try {
    EngineRecord record(std::to_string(getpid()));
    ADD_FAILURE() << "attached by pid to an engine with a socket of its own";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), FD_FAILED_PRECONDITION) << error.what();
  }
  EngineRecord record(path);
  RunAll(*engine, Requests(), false);
  EXPECT_GT(Read(record).size(), 100u);
  engine.reset();
  std::vector<fd_record_event> rest;
  record.ReadInto(&rest);
  EXPECT_TRUE(record.ended());
}

TEST_F(RecordTest, OffIsOff) {
  const std::unique_ptr<InferenceEngine> engine = MakeEngine(Options() + OptionList{{"record-socket", "off"}});
  EXPECT_THROW(EngineRecord record(std::to_string(getpid())), Error);
  EngineRecord inside(*engine);
  RunAll(*engine, Requests(), false);
  EXPECT_GT(Read(inside).size(), 100u);
}

TEST_F(RecordTest, ASocketThatCannotBeIsRefused) {
  const Error error = EngineError(Options() + OptionList{{"record-socket", dir_.path() + "/none/record.sock"}});
  EXPECT_EQ(error.code(), FD_NOT_FOUND) << error.what();
  EXPECT_NE(std::string(error.what()).find("record-socket"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace fastdecode
