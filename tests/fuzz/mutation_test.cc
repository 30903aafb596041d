#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace fastdecode {
namespace {

constexpr int kInputs = 30'000;

// Seeded damage: the same inputs on every machine (mt19937_64 is defined bit by bit; no std distribution is used).
class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string Next() {
    std::string text = seeds_[Below(seeds_.size())];
    for (size_t left = 1 + Below(4); left > 0; --left) MutateOnce(&text);
    return text;
  }

 private:
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  void MutateOnce(std::string* text) {
    static constexpr std::string_view kTokens[] = {
        "{",          "}",    "[",    "]",     ",", ":", "\"", "\\", "0", "-1", "1e9", "null", "18446744073709551615",
        "4294967296", "\xff", "true", "\"x\":"};
    const size_t at = Below(text->size() + 1);
    const size_t length = std::min(text->size() - at, 1 + Below(12));
    switch (Below(7)) {
      case 0:
        if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ (1 << Below(8)));
        break;
      case 1:
        if (at < text->size()) (*text)[at] = static_cast<char>('0' + Below(10));
        break;
      case 2:
        text->erase(at, length);
        break;
      case 3:
        text->insert(at, text->substr(at, length));
        break;
      case 4:
        text->insert(at, kTokens[Below(std::size(kTokens))]);
        break;
      case 5:
        text->replace(at, length, kTokens[Below(std::size(kTokens))]);
        break;
      case 6:
        *text = text->substr(0, at) + seeds_[Below(seeds_.size())].substr(0, Below(200));
        break;
    }
  }

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_{20240229};
};

TEST(Mutations, SeedsAreAccepted) {
  for (const std::string& seed : FuzzSeeds()) EXPECT_TRUE(FuzzOne(seed)) << seed;
}

TEST(Mutations, DamagedInputsNeverBreakTheParser) {
  Mutator mutator(FuzzSeeds());
  int accepted = 0;
  for (int i = 0; i < kInputs; ++i) accepted += FuzzOne(mutator.Next());
  // Both ways are walked: damage that matters, and damage that does not.
  EXPECT_GT(accepted, kInputs / 1000);
  EXPECT_LT(accepted, kInputs / 2);
}

}  // namespace
}  // namespace fastdecode
