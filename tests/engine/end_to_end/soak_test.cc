// soak_test [REQUESTS] [SEED]: random requests, cancelled at random, with too little KV memory and with faults on the
// links. Nothing may be lost, leak, or differ from the same request alone.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

int soak_requests = 1000;
uint64_t soak_seed = 1;

constexpr int kVocab = 256;
constexpr int kContext = 256;
// One sequence of kContext tokens takes the whole pool of a home: 2 layers of K and V of 2 heads of 16 floats.
constexpr double kKvGib = kContext * 2.0 * 2 * 2 * 16 * 4 / (1 << 30);
// With int4 8 pages of it and 4 for what is open, of 704 bytes for each head.
constexpr double kInt4KvGib = (kContext / 32 + 4) * 2.0 * 2 * 704 / (1 << 30);
constexpr size_t kOutstandingMax = 64;

// A request that was submitted.
struct Live {
  Live(GenerateRequest given, uint64_t given_id) : request(std::move(given)), id(given_id) {}
  GenerateRequest request;
  uint64_t id;
  Answer answer;
  uint64_t cancel_after_tokens = UINT64_MAX;  // then it is cancelled
  bool cancelled = false;
};

// A request and how it ended.
struct Done {
  GenerateRequest request;
  Answer answer;
  bool cancelled = false;
};

class SoakTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = WriteTinyModel(dir_.path(), "model", kContext, soak_seed);
    worker_path_ = dir_.File("worker");
  }

  void StartWorker() {
    worker_ = std::make_unique<WorkerProgram>(
        worker_path_ + ".log", std::vector<std::string>{"--listen", "unix:" + worker_path_, "--poll", "yield",
                                                        "--kv-gib", std::to_string(kKvGib)});
    ASSERT_TRUE(worker_->WaitUntilListening()) << worker_->Messages();
  }

  OptionList Options(const std::string& homes) const {
    return {{"model", model_},
            {"compute", "f32"},
            {"homes", homes},
            {"poll", "yield"},
            {"kv-gib", std::to_string(kv_type_ == "int4" ? kInt4KvGib : kKvGib)},
            {"kv-type", kv_type_},
            {"max-sequences", "32"},
            {"prefill-chunk", "64"}};
  }

  GenerateRequest NextRequest() {
    const uint32_t prompt = 1 + static_cast<uint32_t>(random_() % (random_() % 8 == 0 ? 150 : 30));
    return RandomRequest(random_, kVocab, prompt, 1 + static_cast<uint32_t>(random_() % 80));
  }

  // `count` random requests, up to kOutstandingMax at once. The ends are checked for themselves, errors are left to the
  // caller.
  std::vector<Done> Soak(InferenceEngine& engine, int count) {
    std::vector<Done> done;
    std::map<uint64_t, std::unique_ptr<Live>> live;
    int submitted = 0;
    while (submitted < count || !live.empty()) {
      while (submitted < count && live.size() < kOutstandingMax && random_() % 8 != 0) {
        Submit(engine, &live);
        ++submitted;
      }
      if (live.empty()) continue;
      if (random_() % 64 == 0) CancelOne(engine, &live);
      const size_t news = engine.Poll(kAnswerTimeoutNs, [&](const fd_event& event) {
        const auto found = live.find(event.id);
        if (found == live.end()) {
          ADD_FAILURE() << "news of request " << event.id << ", which has ended or never was";
          return;
        }
        Live& one = *found->second;
        Record(TokenEvent(event), &one.answer);
        if (one.answer.tokens.size() == one.cancel_after_tokens) Cancel(engine, one);
        if (!one.answer.ended) return;
        CheckEnd(one);
        done.push_back({one.request, std::move(one.answer), one.cancelled});
        live.erase(found);
      });
      if (news == 0) {
        ADD_FAILURE() << live.size() << " requests are without news";
        return done;
      }
    }
    EXPECT_EQ(done.size(), static_cast<size_t>(count));
    return done;
  }

  void Submit(InferenceEngine& engine, std::map<uint64_t, std::unique_ptr<Live>>* live) {
    GenerateRequest request = NextRequest();
    const uint64_t id = engine.SubmitForPoll(request);
    auto one = std::make_unique<Live>(std::move(request), id);
    if (random_() % 8 == 0) one->cancel_after_tokens = random_() % 20;
    if (one->cancel_after_tokens == 0) Cancel(engine, *one);
    (*live)[id] = std::move(one);
  }

  static void Cancel(InferenceEngine& engine, Live& one) {
    one.cancelled = true;
    engine.Cancel(one.id);
  }

  void CancelOne(InferenceEngine& engine, std::map<uint64_t, std::unique_ptr<Live>>* live) {
    auto victim = live->begin();
    std::advance(victim, random_() % live->size());
    Cancel(engine, *victim->second);
  }

  // What every end must be like.
  static void CheckEnd(const Live& one) {
    const fd_request& fields = one.request.fields;
    const size_t tokens = one.answer.tokens.size();
    const size_t tokens_max =
        std::min<size_t>(fields.max_tokens, static_cast<size_t>(kContext) - one.request.prompt_ids.size());
    switch (one.answer.finish) {
      case FD_FINISH_LENGTH:
        EXPECT_EQ(tokens, tokens_max);
        break;
      case FD_FINISH_STOP:
        EXPECT_LT(tokens, tokens_max);
        EXPECT_GE(tokens, fields.min_tokens);
        EXPECT_TRUE(!one.request.stop_token_ids.empty() || fields.ignore_eos == 0);
        break;
      case FD_FINISH_CANCELLED:
        EXPECT_TRUE(one.cancelled);
        EXPECT_LT(tokens, tokens_max);
        break;
      case FD_FINISH_ERROR:
        EXPECT_NE(one.answer.error, "");
        break;
      case FD_FINISH_DEADLINE:
        ADD_FAILURE() << "none was given";
        break;
    }
    EXPECT_EQ(one.answer.error.empty(), one.answer.finish != FD_FINISH_ERROR);
  }

  // At most `count` of them once more, one home with room for all: what came must be the beginning of what comes now,
  // and all of it unless the request was cut short.
  void CheckAgainstQuietRun(const std::vector<Done>& done, size_t count) {
    const auto engine = MakeEngine(Options("local:1") + OptionList{{"kv-gib", "0.01"}});
    const size_t stride = std::max<size_t>(1, done.size() / count);
    for (size_t first = 0; first < done.size(); first += stride * kOutstandingMax) {
      std::vector<const Done*> checked;
      std::vector<GenerateRequest> requests;
      for (size_t i = first; i < done.size() && i < first + stride * kOutstandingMax; i += stride) {
        checked.push_back(&done[i]);
        requests.push_back(done[i].request);
      }
      const std::vector<Answer> right = RunAll(*engine, requests, /*with_logits=*/false);
      for (size_t i = 0; i < right.size(); ++i) ExpectSameAs(right[i], checked[i]->answer);
    }
    EXPECT_EQ(Statistic(*engine, "preemptions"), 0) << "the quiet run was not quiet";
  }

  static void ExpectSameAs(const Answer& right, const Answer& answer) {
    ASSERT_NE(right.finish, FD_FINISH_ERROR) << right.error;
    if (answer.finish == FD_FINISH_LENGTH || answer.finish == FD_FINISH_STOP) {
      EXPECT_EQ(answer.finish, right.finish);
      EXPECT_EQ(answer.tokens, right.tokens);
      return;
    }
    ASSERT_LE(answer.tokens.size(), right.tokens.size());
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), right.tokens.begin()));
  }

  // Every page of every home is free: a home's pool is just one whole sequence.
  void CheckAllPagesFree(InferenceEngine& engine) {
    ExpectSoon(engine, "ready_sequences", 0);
    ExpectSoon(engine, "active_sequences", 0);
    const HomeCounts homes = CountHomes(engine);
    EXPECT_EQ(homes.up, homes.all);
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < homes.all; ++i) {
      requests.push_back(GreedyRequest(RandomPrompt(random_, kVocab, kContext - 3), 3));
    }
    for (const Answer& answer : RunAll(engine, requests, /*with_logits=*/false)) {
      EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
    }
  }

  void SoakWithoutFaults(const std::string& homes) {
    const auto engine = MakeEngine(Options(homes));
    const std::vector<Done> done = Soak(*engine, soak_requests);
    for (const Done& one : done) EXPECT_NE(one.answer.finish, FD_FINISH_ERROR) << one.answer.error;
    EXPECT_GT(Statistic(*engine, "preemptions"), 0) << "memory was never short";
    CheckAllPagesFree(*engine);
    CheckAgainstQuietRun(done, 200);
  }

  // One request after the other, until one is right.
  bool WorksAgain(InferenceEngine& engine) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kAnswerTimeoutNs);
    while (std::chrono::steady_clock::now() < deadline) {
      const std::vector<Answer> answers = RunAll(engine, {GreedyRequest({1, 2, 3}, 2)}, /*with_logits=*/false);
      if (answers[0].finish == FD_FINISH_LENGTH) return true;
    }
    return false;
  }

  // Faults come all the time: whoever is touched by them goes on at another home, or at the same one when it is back.
  void SoakWithFaults(const std::string& homes, const std::string& fault) {
    SCOPED_TRACE(homes + ", " + fault);
    const auto engine =
        MakeEngine(Options(homes) +
                   OptionList{{"fault", "seed=" + std::to_string(soak_seed) + "," + fault}, {"hop-timeout-ms", "300"}});
    const std::vector<Done> done = Soak(*engine, soak_requests / 5);
    for (const Done& one : done) EXPECT_NE(one.answer.finish, FD_FINISH_ERROR) << one.answer.error;
    EXPECT_GT(Statistic(*engine, "recoveries"), 0) << "no fault struck";
    RecordProperty(fault, std::to_string(Statistic(*engine, "recoveries")) + " recoveries");
    EXPECT_TRUE(WorksAgain(*engine));
    CheckAgainstQuietRun(done, 100);
  }

  std::string kv_type_ = "f32";
  ScratchDir dir_;
  std::string model_;
  std::string worker_path_;
  std::unique_ptr<WorkerProgram> worker_;
  std::mt19937_64 random_{soak_seed};
};

TEST_F(SoakTest, HomesOfThisProcess) { SoakWithoutFaults("local:2"); }

// Who has been preempted prefills again what it decoded before.
TEST_F(SoakTest, HomesOfThisProcessWithInt4) {
  kv_type_ = "int4";
  SoakWithoutFaults("local:2");
}

TEST_F(SoakTest, Worker) {
  StartWorker();
  SoakWithoutFaults("unix:" + worker_path_);
}

TEST_F(SoakTest, WorkerAndHomesOfThisProcess) {
  StartWorker();
  SoakWithoutFaults("local:2,unix:" + worker_path_);
}

// The same worker serves one engine after the other.
TEST_F(SoakTest, FaultsOnTheWayToAWorker) {
  StartWorker();
  const std::string homes = "local:1,unix:" + worker_path_;
  SoakWithFaults(homes, "drop=0.002");
  SoakWithFaults(homes, "corrupt=0.002");
  SoakWithFaults(homes, "drop-reply=0.001,corrupt-reply=0.001");
}

TEST_F(SoakTest, FaultsWithinThisProcess) {
  SoakWithFaults("local:2", "cut=300,delay=0.05:200us,reorder=0.05");
  SoakWithFaults("local:2", "drop=0.001,corrupt=0.001,delay=0.02:50polls");
  SoakWithFaults("local:2", "duplicate=0.002");
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) fastdecode::soak_requests = std::atoi(argv[1]);
  if (argc > 2) fastdecode::soak_seed = std::strtoull(argv[2], nullptr, 10);
  if (fastdecode::soak_requests < 100) {
    std::fprintf(stderr, "usage: soak_test [REQUESTS, at least 100] [SEED]\n");
    return 2;
  }
  return RUN_ALL_TESTS();
}
