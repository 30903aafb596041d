#include "tools/latency/export/export_json.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/export/saved_result.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ThinSamplesTest, KeepsFewAsTheyAre) {
  EXPECT_THAT(ThinSamples({}, 3), ElementsAre());
  EXPECT_THAT(ThinSamples({1, 2, 3}, 3), ElementsAre(1, 2, 3));
}

TEST(ThinSamplesTest, TakesTheMiddleOfEqualShares) {
  // Shares of three: 0 1 2 | 3 4 5 | 6 7 8.
  EXPECT_THAT(ThinSamples({0, 1, 2, 3, 4, 5, 6, 7, 8}, 3), ElementsAre(1, 4, 7));
  EXPECT_THAT(ThinSamples({0, 1, 2, 3}, 1), ElementsAre(2));
}

TEST(ThinSamplesTest, KeepsTheShapeOfManySamples) {
  const Distribution all(MadeUpSamples(1'000'000, 50'000, 7));
  const Distribution kept(ThinSamples(all.sorted_ns(), kSavedSamplesMax));
  ASSERT_EQ(kept.count(), kSavedSamplesMax);
  EXPECT_NEAR(kept.mean_ns() / all.mean_ns(), 1, 0.002);
  for (const double share : {0.01, 0.5, 0.9, 0.99}) {
    EXPECT_NEAR(static_cast<double>(kept.Quantile(share)) / static_cast<double>(all.Quantile(share)), 1, 0.01) << share;
  }
}

void ExpectSame(const Uncertainty& saved, const Uncertainty& written) {
  EXPECT_EQ(saved.error_ns, written.error_ns);
  EXPECT_EQ(saved.freedom, written.freedom);
}

void ExpectSame(const SavedDistribution& saved, const Distribution& ns, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(saved.count, ns.count());
  EXPECT_EQ(saved.samples_ns, ThinSamples(ns.sorted_ns(), kSavedSamplesMax));
  EXPECT_EQ(saved.p50_ns, ns.Percentile(0.5));
  EXPECT_EQ(saved.p90_ns, ns.Percentile(0.9));
  EXPECT_EQ(saved.p99_ns, ns.Percentile(0.99));
  EXPECT_EQ(saved.p999_ns, ns.Percentile(0.999));
  EXPECT_EQ(saved.unfinished, ns.unfinished());
  EXPECT_EQ(saved.unfinished_ns, ns.unfinished_ns());
  EXPECT_EQ(saved.at_least_ns.p50, ns.AtLeast(0.5));
  EXPECT_EQ(saved.at_least_ns.p90, ns.AtLeast(0.9));
  EXPECT_EQ(saved.at_least_ns.p99, ns.AtLeast(0.99));
  EXPECT_EQ(saved.at_least_ns.p999, ns.AtLeast(0.999));
  ExpectSame(saved.uncertainty.mean, ns.uncertainties().mean);
  ExpectSame(saved.uncertainty.p50, ns.uncertainties().p50);
  ExpectSame(saved.uncertainty.p90, ns.uncertainties().p90);
  ExpectSame(saved.uncertainty.p99, ns.uncertainties().p99);
  ASSERT_EQ(saved.min_ns.has_value(), !ns.empty());
  ASSERT_EQ(saved.mean_ns.has_value(), ns.mean_known());
  if (ns.empty()) return;
  EXPECT_EQ(*saved.min_ns, ns.min_ns());
  EXPECT_EQ(*saved.max_ns, ns.max_ns());
  if (ns.mean_known()) {
    EXPECT_EQ(*saved.mean_ns, ns.mean_ns());
  }
  EXPECT_EQ(*saved.stdev_ns, ns.stdev_ns());
}

// Through text, as a file has it.
SavedResult RoundTrip(const LatencyResult& result) {
  absl::StatusOr<SavedResult> saved = FromJson(json::parse(JsonText(result)), "a.json");
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved.ok() ? *saved : SavedResult();
}

TEST(SavedResultTest, HasHeaderAndCountsOfWhatWasSaved) {
  const LatencyResult result = MadeUpResult();
  const SavedResult saved = RoundTrip(result);
  EXPECT_EQ(saved.command, result.command);
  EXPECT_EQ(saved.provenance, result.provenance);
  EXPECT_EQ(saved.engine, result.engine);
  EXPECT_EQ(saved.recording_cost, result.recording_cost);
  EXPECT_EQ(saved.start_ns, result.start_ns);
  EXPECT_EQ(saved.end_ns, result.end_ns);
  EXPECT_EQ(saved.events, result.events);
  EXPECT_EQ(saved.lost_events, result.lost_events);
  EXPECT_EQ(saved.steps, result.steps);
  EXPECT_EQ(saved.tokens, result.tokens);
  EXPECT_EQ(saved.s_busy, result.s_busy);
  EXPECT_EQ(saved.r_busy, result.r_busy);
  EXPECT_EQ(saved.overlap, result.overlap);
  EXPECT_EQ(saved.interrupted, result.interrupted);
  EXPECT_EQ(saved.warnings, result.warnings);
}

TEST(SavedResultTest, HasDistributionsOfWhatWasSaved) {
  const LatencyResult result = MadeUpResult();
  const SavedResult saved = RoundTrip(result);
  ASSERT_EQ(saved.phases.size(), result.phases.size());
  for (size_t i = 0; i < result.phases.size(); ++i) {
    EXPECT_EQ(saved.phases[i].name, result.phases[i].name);
    EXPECT_EQ(saved.phases[i].where, result.phases[i].where);
    EXPECT_EQ(saved.phases[i].share, result.phases[i].share);
    EXPECT_EQ(saved.phases[i].note, result.phases[i].note);
    ExpectSame(saved.phases[i].ns, result.phases[i].ns, result.phases[i].name);
  }
  ASSERT_EQ(saved.requests.size(), result.requests.size());
  for (size_t i = 0; i < result.requests.size(); ++i) {
    EXPECT_EQ(saved.requests[i].start, result.requests[i].start);
    EXPECT_EQ(saved.requests[i].requests, result.requests[i].requests);
    EXPECT_EQ(saved.requests[i].failed, result.requests[i].failed);
    EXPECT_EQ(saved.requests[i].unfinished, result.requests[i].unfinished);
    ExpectSame(saved.requests[i].ttft_ns, result.requests[i].ttft_ns, "ttft");
    ExpectSame(saved.requests[i].tpot_ns, result.requests[i].tpot_ns, "tpot");
    ExpectSame(saved.requests[i].itl_ns, result.requests[i].itl_ns, "itl");
    ExpectSame(saved.requests[i].e2e_ns, result.requests[i].e2e_ns, "e2e");
  }
  ASSERT_NE(saved.FindPhase("attend", "home 1"), nullptr);
  EXPECT_EQ(saved.FindPhase("attend", "home 1")->ns.count, 12u);
  EXPECT_EQ(saved.FindPhase("attend", "home 2"), nullptr);
}

TEST(SavedResultTest, HasCriticalPathAndWorstTokensOfWhatWasSaved) {
  const LatencyResult result = MadeUpResult();
  const SavedResult saved = RoundTrip(result);
  const CriticalPath& path = saved.critical_path;
  EXPECT_EQ(path.tokens, result.critical_path.tokens);
  EXPECT_EQ(path.token_ns, result.critical_path.token_ns);
  EXPECT_EQ(path.residual_ns, result.critical_path.residual_ns);
  EXPECT_EQ(path.wire_uncertain_ns, result.critical_path.wire_uncertain_ns);
  ASSERT_EQ(path.parts.size(), result.critical_path.parts.size());
  for (size_t i = 0; i < path.parts.size(); ++i) {
    EXPECT_EQ(path.parts[i].place, result.critical_path.parts[i].place);
    EXPECT_EQ(path.parts[i].mean_ns, result.critical_path.parts[i].mean_ns);
    EXPECT_EQ(path.parts[i].share, result.critical_path.parts[i].share);
    EXPECT_EQ(path.parts[i].home, result.critical_path.parts[i].home);
  }
  ASSERT_EQ(saved.worst.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const TokenStory &read = saved.worst[i], &written = result.worst[i];
    EXPECT_EQ(read.id, written.id);
    EXPECT_EQ(read.index, written.index);
    EXPECT_EQ(read.step, written.step);
    EXPECT_EQ(read.micro_batch, written.micro_batch);
    EXPECT_EQ(read.start_ns, written.start_ns);
    EXPECT_EQ(read.end_ns, written.end_ns);
    EXPECT_EQ(read.place_ns, written.place_ns);
    ASSERT_EQ(read.longest.size(), written.longest.size());
    for (size_t span = 0; span < read.longest.size(); ++span) {
      EXPECT_EQ(read.longest[span].place, written.longest[span].place);
      EXPECT_EQ(read.longest[span].layer, written.longest[span].layer);
      EXPECT_EQ(read.longest[span].home, written.longest[span].home);
      EXPECT_EQ(read.longest[span].start_ns, written.longest[span].start_ns);
      EXPECT_EQ(read.longest[span].ns, written.longest[span].ns);
    }
  }
}

TEST(SavedResultTest, HasVerdictsOfWhatWasSaved) {
  const LatencyResult result = MadeUpResult();
  const SavedResult saved = RoundTrip(result);
  ASSERT_EQ(saved.findings.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const Finding &read = saved.findings[i], &written = result.findings[i];
    EXPECT_EQ(read.phase, written.phase);
    EXPECT_EQ(read.home, written.home);
    EXPECT_EQ(read.layer, written.layer);
    EXPECT_EQ(read.kind, written.kind);
    EXPECT_EQ(read.amount, written.amount);
    EXPECT_EQ(read.unit, written.unit);
    EXPECT_EQ(read.share, written.share);
    EXPECT_EQ(read.period_ns, written.period_ns);
    EXPECT_EQ(read.cost_ns, written.cost_ns);
    EXPECT_EQ(read.line, written.line);
  }
  ASSERT_EQ(saved.slo.size(), 3u);
  EXPECT_EQ(saved.slo[0].text, "ttft:400ms,p90");
  EXPECT_EQ(saved.slo[0].got_ns, 5.5e7);
  EXPECT_TRUE(saved.slo[0].met);
  EXPECT_FALSE(saved.slo[0].at_least);
  EXPECT_EQ(saved.slo[1].got_ns, std::nullopt);
  EXPECT_FALSE(saved.slo[1].met);
  EXPECT_TRUE(saved.slo[2].at_least);
}

TEST(SavedResultTest, HasHomesBubblesAndAchievedOfWhatWasSaved) {
  const LatencyResult result = MadeUpResult();
  const SavedResult saved = RoundTrip(result);
  ASSERT_EQ(saved.homes.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const HomeFigures &read = saved.homes[i], &written = result.homes[i];
    EXPECT_EQ(read.home, written.home);
    EXPECT_EQ(read.name, written.name);
    EXPECT_EQ(read.hops, written.hops);
    EXPECT_EQ(read.last_share, written.last_share);
    EXPECT_EQ(read.waited_for_ns, written.waited_for_ns);
    EXPECT_EQ(read.busy_share, written.busy_share);
    EXPECT_EQ(read.kv_share, written.kv_share);
    EXPECT_EQ(read.gb_per_s, written.gb_per_s);
    EXPECT_EQ(read.min_round_trip_ns, written.min_round_trip_ns);
    EXPECT_EQ(read.clock_offset_ns, written.clock_offset_ns);
    EXPECT_EQ(read.clock_drift_ppm, written.clock_drift_ppm);
    EXPECT_EQ(read.clock_bound_ns, written.clock_bound_ns);
    EXPECT_EQ(saved.bubbles[i].where, result.bubbles[i].where);
    EXPECT_EQ(saved.bubbles[i].cause, result.bubbles[i].cause);
    EXPECT_EQ(saved.bubbles[i].ns, result.bubbles[i].ns);
    EXPECT_EQ(saved.bubbles[i].share, result.bubbles[i].share);
    EXPECT_EQ(saved.achieved[i].what, result.achieved[i].what);
    EXPECT_EQ(saved.achieved[i].achieved, result.achieved[i].achieved);
    EXPECT_EQ(saved.achieved[i].possible, result.achieved[i].possible);
    EXPECT_EQ(saved.achieved[i].unit, result.achieved[i].unit);
    EXPECT_EQ(saved.achieved[i].possible_by, result.achieved[i].possible_by);
    EXPECT_EQ(saved.achieved[i].note, result.achieved[i].note);
  }
}

TEST(SavedResultTest, AnEmptyResultIsWholeToo) {
  const SavedResult saved = RoundTrip(LatencyResult());
  EXPECT_TRUE(saved.phases.empty());
  EXPECT_EQ(saved.critical_path.tokens, 0u);
}

TEST(SavedResultTest, AFigureThatIsNoNumberBecomesNull) {
  LatencyResult result;
  result.s_busy = std::numeric_limits<double>::quiet_NaN();
  result.r_busy = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(ToJson(result)["busy"]["s_busy"].is_null());
  const SavedResult saved = RoundTrip(result);
  EXPECT_TRUE(std::isnan(saved.s_busy));
  EXPECT_TRUE(std::isnan(saved.r_busy));
}

TEST(SavedResultTest, BytesThatAreNoTextAreReplaced) {
  LatencyResult result;
  result.command =
      "a\xff"
      "b";
  EXPECT_EQ(RoundTrip(result).command,
            "a\xEF\xBF\xBD"
            "b");
}

// The message for a result of which the value at `pointer` is replaced.
std::string MessageWith(const std::string& pointer, const json& value) {
  json document = ToJson(MadeUpResult());
  document[json::json_pointer(pointer)] = value;
  return std::string(FromJson(document, "a.json").status().message());
}

TEST(SavedResultTest, NamesFileFieldAndValueOfWhatIsWrong) {
  EXPECT_EQ(MessageWith("/phases/3/name", 7), "a.json: phases[3].name: 7 is not a string");
  EXPECT_EQ(MessageWith("/phases/3/distribution/count", -1),
            "a.json: phases[3].distribution.count: -1 is not a whole number of 0 or more");
  EXPECT_EQ(MessageWith("/phases/3/distribution/count", 1.5),
            "a.json: phases[3].distribution.count: 1.5 is not a whole number of 0 or more");
  EXPECT_EQ(MessageWith("/phases", "x"), "a.json: phases: \"x\" is not an array");
  EXPECT_EQ(MessageWith("/busy", json::array()), "a.json: busy: an array of 0 is not an object");
  EXPECT_EQ(MessageWith("/slo/1/met", "yes"), "a.json: slo[1].met: \"yes\" is not true or false");
  EXPECT_EQ(MessageWith("/critical_path/parts/0/place", "kitchen"),
            "a.json: critical_path.parts[0].place: \"kitchen\" is no place of a token");
  EXPECT_EQ(MessageWith("/worst/0/index", uint64_t{1} << 32),
            "a.json: worst[0].index: 4294967296 is more than 4294967295");
  EXPECT_EQ(MessageWith("/homes/0/busy_share", std::string(1000, 'x')),
            "a.json: homes[0].busy_share: \"" + std::string(59, 'x') + "... is not a number");
}

TEST(SavedResultTest, RefusesSamplesThatCannotBeItsOwn) {
  EXPECT_EQ(MessageWith("/phases/4/distribution/samples_ns/3", 1),
            "a.json: phases[4].distribution.samples_ns[3]: 1 is less than the one before");
  EXPECT_THAT(MessageWith("/phases/4/distribution/count", 13),
              HasSubstr("phases[4].distribution.samples_ns: an array of 12 is not of the 13 that count asks for"));
  EXPECT_THAT(MessageWith("/phases/0/distribution/samples_ns", json(std::vector<int>(2001, 1))),
              HasSubstr("samples_ns: an array of 2001 has more than 2000"));
}

TEST(SavedResultTest, NamesEveryFieldThatIsMissing) {
  const json whole = ToJson(MadeUpResult());
  const json flat = whole.flatten();
  size_t removed = 0;
  // Every member of every object but those that are not ours.
  for (const auto& [pointer, value] : flat.items()) {
    const json::json_pointer at(pointer);
    if (pointer.rfind("/provenance", 0) == 0 || pointer.rfind("/engine", 0) == 0 ||
        pointer.rfind("/recording_cost", 0) == 0 || !whole.at(at.parent_pointer()).is_object()) {
      continue;
    }
    json document = whole;
    document[at.parent_pointer()].erase(at.back());
    const absl::Status status = FromJson(document, "a.json").status();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("a.json: "), HasSubstr(at.back() + ": missing"))) << pointer;
    ++removed;
  }
  EXPECT_GT(removed, 200u);
}

TEST(SavedResultTest, RefusesAnotherVersionByName) {
  json document = ToJson(MadeUpResult());
  document["schema_version"] = 1;
  const absl::Status status = FromJson(document, "a.json").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(),
            "a.json: schema_version: 1 is another version than 2, the one that this program reads and writes: measure "
            "again");
  document["schema_version"] = "2";
  EXPECT_THAT(FromJson(document, "a.json").status().message(), HasSubstr("schema_version: \"2\" is another"));
}

TEST(SavedResultTest, RefusesWhatIsNoResult) {
  for (const char* text : {"{}", "[]", "3", "null"}) {
    EXPECT_EQ(FromJson(json::parse(text), "a.json").status().message(),
              "a.json: schema_version: missing; this is no result of `fastdecode latency`");
  }
}

class SavedFileTest : public testing::Test {
 protected:
  SavedFileTest() { std::filesystem::create_directories(folder_); }
  ~SavedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

  const std::string folder_ = testing::TempDir() + "fd-saved-" + std::to_string(getpid());
};

TEST_F(SavedFileTest, IsRead) {
  const std::string path = Write("good.json", JsonText(MadeUpResult()));
  const absl::StatusOr<SavedResult> saved = ReadSavedResult(path);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->tokens, 12'345u);
}

TEST_F(SavedFileTest, SaysWhereItIsNoJson) {
  const std::string whole = JsonText(MadeUpResult());
  const std::string path = Write("torn.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(ReadSavedResult(path).status().message(), HasSubstr(path + ": is not JSON: at line 1, column "));
  EXPECT_THAT(ReadSavedResult(Write("empty.json", "")).status().message(), HasSubstr("is not JSON: at line 1"));
  // The parser's message quotes the string as far as it read it.
  const std::string endless = Write("endless.json", "\"\xc2\x9b" + std::string(1'000'000, 'x'));
  const std::string shown(ReadSavedResult(endless).status().message());
  EXPECT_THAT(shown, testing::AllOf(HasSubstr("\\u009b"), testing::EndsWith("xxx...")));
  EXPECT_LT(shown.size(), endless.size() + 400);
  const std::string huge = Write("huge.json", R"({"schema_version": 1e999})");
  EXPECT_THAT(ReadSavedResult(huge).status().message(), testing::AllOf(HasSubstr(huge + ": "), HasSubstr("'1e999'")));
}

TEST_F(SavedFileTest, SaysThatItCannotBeRead) {
  const absl::Status missing = ReadSavedResult(Path("none.json")).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(), Path("none.json") + ": cannot be read: No such file or directory");
  const std::string folder = Path("folder.json");
  std::filesystem::create_directories(folder);
  EXPECT_EQ(ReadSavedResult(folder).status().message(), folder + ": is not a regular file");
}

TEST_F(SavedFileTest, NoSingleByteChangedMakesItCrash) {
  const std::string whole = JsonText(MadeUpResult());
  std::mt19937_64 random(11);
  for (int turn = 0; turn < 60; ++turn) {
    std::string text = whole;
    text[random() % text.size()] = static_cast<char>(random());
    ReadSavedResult(Write("mutated.json", text)).IgnoreError();
  }
}

}  // namespace
}  // namespace fastdecode
