#ifndef FASTDECODE_TESTS_ABI_FUZZ_ORACLE_H_
#define FASTDECODE_TESTS_ABI_FUZZ_ORACLE_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {

// What is drawn of a seed. Thread: one.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  int Between(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool OneIn(int n) { return random_() % static_cast<uint64_t>(n) == 0; }
  uint64_t Seed() { return random_(); }
  template <class List>
  const auto& Of(const List& list) {
    return list[random_() % std::size(list)];
  }

 private:
  std::mt19937_64 random_;
};

// How a request is sampled: greedy, or with one of three seeds, 1 to 3.
inline constexpr int kWays = 4;
inline constexpr uint32_t kAnswerTokens = 40;

// What a prompt goes on with on a quiet engine.
struct RightAnswer {
  std::vector<int32_t> tokens;
  std::vector<std::string> texts;  // [n]: of the first n tokens; empty without a tokenizer
};

struct FuzzPrompt {
  std::vector<int32_t> ids;
  std::string text;  // that has these ids; "": ids alone
  RightAnswer answers[kWays];
};

// A model, and the right answers of some prompts of it.
struct FuzzModel {
  std::string folder;
  int context = 0;
  int vocab = 0;
  bool has_tokenizer = false;
  double kv_gib_of_token = 0;
  std::vector<FuzzPrompt> prompts;
};

// The options that every engine of the fuzz has, so that the right answers are right for it bit for bit.
std::vector<std::pair<std::string, std::string>> FuzzOptions(const FuzzModel& model);

// Owns: the models' folders. Constant once made.
class FuzzOracle {
 public:
  FuzzOracle();
  const std::vector<FuzzModel>& models() const { return models_; }

 private:
  ScratchDir dir_;
  std::vector<FuzzModel> models_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ABI_FUZZ_ORACLE_H_
