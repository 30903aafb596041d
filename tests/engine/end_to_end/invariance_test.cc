// A request's logits and tokens depend on itself alone: not on its neighbours, nor on homes, micro-batches, threads,
// chunks or processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

constexpr int kMaxContext = 1280;
constexpr uint32_t kProbeTokens = 24;

// One way to run the same requests. Each member is an index into the values of its factor.
enum Factor { kNeighbours, kHomes, kMicroBatches, kSThreads, kRThreads, kChunk, kFactors };
using Setting = std::array<int, kFactors>;

constexpr std::array<int, 4> kNeighbourCounts = {0, 1, 7, 63};
const std::array<std::string, 5> kHomeLists = {"local:1", "local:2", "local:3", "WORKER", "local:1,WORKER"};
const std::array<std::string, 4> kChunks = {"256", "5", "37", "100"};
constexpr int kShared = 4;  // behind 1 to 4 micro-batches on cores that are split: one, and teams that take turns
constexpr Setting kLevels = {4, 5, kShared + 1, 3, 3, 4};
constexpr Setting kReference = {};

std::string ToString(const Setting& s) {
  return std::to_string(kNeighbourCounts[s[kNeighbours]]) + " neighbours, " + kHomeLists[s[kHomes]] + ", K " +
         (s[kMicroBatches] == kShared ? "1, shared" : std::to_string(s[kMicroBatches] + 1)) + ", S threads " +
         std::to_string(s[kSThreads] + 1) + ", R threads " + std::to_string(s[kRThreads] + 1) + ", chunk " +
         kChunks[s[kChunk]];
}

// Settings in which every pair of levels of two factors occurs.
std::vector<Setting> Pairwise() {
  std::vector<std::vector<bool>> seen(kFactors * kFactors, std::vector<bool>(25));
  const auto pair = [&seen](int a, int b, const Setting& s) { return seen[a * kFactors + b][s[a] * 5 + s[b]]; };
  std::vector<Setting> settings;
  std::mt19937_64 random(1);
  for (;;) {
    Setting best = {};
    int best_new = 0;
    for (int attempt = 0; attempt < 200; ++attempt) {
      Setting setting;
      for (int f = 0; f < kFactors; ++f) setting[f] = static_cast<int>(random() % static_cast<uint64_t>(kLevels[f]));
      int fresh = 0;
      for (int a = 0; a < kFactors; ++a) {
        for (int b = 0; b < a; ++b) fresh += !pair(a, b, setting);
      }
      if (fresh > best_new) {
        best_new = fresh;
        best = setting;
      }
    }
    if (best_new == 0) {
      // Random tries miss the last pairs now and then: name them.
      for (int a = 0; a < kFactors; ++a) {
        for (int b = 0; b < a; ++b) {
          for (int i = 0; i < kLevels[a]; ++i) {
            for (int j = 0; j < kLevels[b]; ++j) {
              Setting setting = {};
              setting[a] = i;
              setting[b] = j;
              if (!pair(a, b, setting)) best = setting, best_new = 1;
            }
          }
        }
      }
      if (best_new == 0) return settings;
    }
    for (int a = 0; a < kFactors; ++a) {
      for (int b = 0; b < a; ++b) seen[a * kFactors + b][best[a] * 5 + best[b]] = true;
    }
    settings.push_back(best);
  }
}

// Every combination; only the chunk, which costs the most, goes round.
std::vector<Setting> FullProduct() {
  std::vector<Setting> settings;
  Setting setting = {};
  for (;;) {
    const size_t index = settings.size();
    setting[kChunk] = static_cast<int>((index + index / 4 + index / 20) % kChunks.size());
    settings.push_back(setting);
    int f = 0;
    while (f < kChunk && ++setting[f] == kLevels[f]) setting[f++] = 0;
    if (f == kChunk) return settings;
  }
}

class InvarianceTest : public testing::Test {
 protected:
  void SetUp() override {
    // Longer than a block of keys, so that one sequence is cut over threads, and merged again.
    model_ = WriteTinyModel(dir_.path(), "model", kMaxContext, /*seed=*/5);
    std::mt19937_64 random(2);
    for (const uint32_t length : {1u, 45u, 1100u}) {
      probes_.push_back(GreedyRequest(RandomPrompt(random, /*vocab=*/256, length), kProbeTokens));
    }
    // A sampled one too: its random numbers are its own.
    probes_.push_back(RandomRequest(random, 256, 33, kProbeTokens));
  }

  // A worker with this many threads, which stays for later settings.
  std::string WorkerPath(int threads) {
    std::unique_ptr<WorkerProgram>& worker = workers_[threads];
    const std::string path = dir_.File("worker" + std::to_string(threads));
    if (worker == nullptr) {
      worker = std::make_unique<WorkerProgram>(
          path + ".log", std::vector<std::string>{"--listen", "unix:" + path, "--kv-gib", "0.05", "--poll", "yield",
                                                  "--r-threads", std::to_string(threads)});
      EXPECT_TRUE(worker->WaitUntilListening()) << worker->Messages();
    }
    return path;
  }

  // The probes' answers. The neighbours come before, between and behind them, and end earlier or later.
  std::vector<Answer> Run(const Setting& setting, const OptionList& options,
                          const std::vector<GenerateRequest>& probes) {
    const int r_threads = setting[kRThreads] + 1;
    std::string homes = kHomeLists[setting[kHomes]];
    if (const size_t at = homes.find("WORKER"); at != std::string::npos) {
      homes.replace(at, 6, "unix:" + WorkerPath(r_threads));
    }
    // Without a home in this process there is nothing to share.
    const bool one = setting[kMicroBatches] == kShared, share = one && homes.find("local") != std::string::npos;
    const auto engine = MakeEngine(OptionList{{"model", model_},
                                              {"homes", homes},
                                              {"kv-gib", "0.01"},
                                              {"core-plan", share ? "shared" : "split"},
                                              {"poll", share ? "spin" : "yield"},
                                              {"max-sequences", "80"},
                                              {"micro-batches", one ? "1" : std::to_string(setting[kMicroBatches] + 1)},
                                              {"s-threads", std::to_string(setting[kSThreads] + 1)},
                                              {"r-threads", std::to_string(r_threads)},
                                              {"prefill-chunk", kChunks[setting[kChunk]]}} +
                                   options);
    std::mt19937_64 random(3);
    const int neighbours = kNeighbourCounts[setting[kNeighbours]];
    std::vector<GenerateRequest> requests;
    std::vector<size_t> probe_at;
    for (size_t p = 0; p <= probes.size(); ++p) {
      const size_t until = static_cast<size_t>(neighbours) * (p + 1) / (probes.size() + 1) + p;
      while (requests.size() < until) {
        requests.push_back(RandomRequest(random, engine->vocab_size(), 1 + random() % 30, 1 + random() % kProbeTokens));
      }
      if (p == probes.size()) break;
      probe_at.push_back(requests.size());
      requests.push_back(probes[p]);
    }
    EXPECT_EQ(requests.size(), probes.size() + static_cast<size_t>(neighbours));
    std::vector<Answer> all = RunAll(*engine, requests, /*with_logits=*/true);
    std::vector<Answer> answers;
    for (const size_t at : probe_at) answers.push_back(std::move(all[at]));
    for (const Answer& answer : answers) EXPECT_NE(answer.finish, FD_FINISH_ERROR) << answer.error;
    return answers;
  }

  void ExpectSameBits(const std::vector<Setting>& settings, const OptionList& options) {
    const std::vector<Answer> expected = Run(kReference, options, probes_);
    for (const Setting& setting : settings) {
      SCOPED_TRACE(ToString(setting));
      ExpectSameBits(Run(setting, options, probes_), expected);
      if (HasFailure()) return;
    }
    SCOPED_TRACE("chunk 1");
    ExpectSameBits(Run(kReference, options + OptionList{{"prefill-chunk", "1"}}, probes_), expected);
  }

  void ExpectSameBits(const std::vector<Answer>& answers, const std::vector<Answer>& expected) const {
    for (size_t p = 0; p < probes_.size(); ++p) {
      SCOPED_TRACE("prompt of " + std::to_string(probes_[p].prompt_ids.size()));
      EXPECT_EQ(answers[p].tokens, expected[p].tokens);
      ASSERT_EQ(answers[p].prompt_logits.size(), expected[p].prompt_logits.size());
      EXPECT_EQ(FirstDifference(answers[p].prompt_logits, expected[p].prompt_logits), "");
    }
  }

  // Where two arrays of [position][vocab] part, for people; "" if nowhere.
  static std::string FirstDifference(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
      return "position " + std::to_string(i / 256) + ", token " + std::to_string(i % 256) + ": " +
             std::to_string(a[i]) + " and " + std::to_string(b[i]);
    }
    return "";
  }

  ScratchDir dir_;
  std::string model_;
  std::vector<GenerateRequest> probes_;
  std::map<int, std::unique_ptr<WorkerProgram>> workers_;  // by threads
};

const OptionList kExact = {{"compute", "f32"}};
const OptionList kBf16Invariant = {{"compute", "bf16"}, {"batch-invariant", "true"}};

TEST_F(InvarianceTest, PairwiseCoversEveryPair) {
  const std::vector<Setting> settings = Pairwise();
  for (int a = 0; a < kFactors; ++a) {
    for (int b = 0; b < a; ++b) {
      for (int i = 0; i < kLevels[a]; ++i) {
        for (int j = 0; j < kLevels[b]; ++j) {
          EXPECT_TRUE(
              std::any_of(settings.begin(), settings.end(), [&](const Setting& s) { return s[a] == i && s[b] == j; }));
        }
      }
    }
  }
}

TEST_F(InvarianceTest, ExactModeIsBitIdentical) { ExpectSameBits(Pairwise(), kExact); }
TEST_F(InvarianceTest, BatchInvariantBf16IsBitIdentical) { ExpectSameBits(Pairwise(), kBf16Invariant); }

// Pages are rounded when they are full, whoever fills them. Some of the settings are enough to see that.
TEST_F(InvarianceTest, Int4IsBitIdentical) {
  std::vector<Setting> settings = Pairwise();
  settings.resize(10);
  ExpectSameBits(settings, kExact + OptionList{{"kv-type", "int4"}});
}

// Plain bf16 may sum in another order for another batch, but stays within the bound that its rounding has anyway.
TEST_F(InvarianceTest, PlainBf16StaysWithinTheRoundingBound) {
  const Golden golden("gqa");
  for (const Setting& setting : Pairwise()) {
    SCOPED_TRACE(ToString(setting));
    const std::vector<Answer> answers =
        Run(setting, {{"model", golden.folder}, {"compute", "bf16"}}, {GreedyRequest(golden.prompt, 1)});
    const LogitDifference difference = Compare(golden, golden.bf16_reference, answers[0].prompt_logits);
    EXPECT_LE(difference.rms, kBf16Share * golden.bf16_rms_error);
    EXPECT_LE(difference.max, kBf16Share * golden.bf16_max_error);
    if (HasFailure()) return;
  }
}

// Long.
TEST_F(InvarianceTest, LongExactModeIsBitIdenticalInEverySetting) { ExpectSameBits(FullProduct(), kExact); }
TEST_F(InvarianceTest, LongBatchInvariantBf16IsBitIdenticalInEverySetting) {
  ExpectSameBits(FullProduct(), kBf16Invariant);
}

}  // namespace
}  // namespace fastdecode
