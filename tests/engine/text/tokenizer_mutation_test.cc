// Copies of tokenizer.json with one wrong value: each is refused with an error that names the file, or gives a
// tokenizer that works. (Wrong bytes are tests/fuzz's.)

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;

class Mutator {
 public:
  // Replaces or removes one value somewhere in the document.
  void MutateValue(json* value) {
    while (value->is_structured() && !value->empty() && Random(8) != 0) {
      auto child = value->begin();
      std::advance(child, Random(value->size()));
      if (Random(12) == 0) {
        value->erase(child);
        return;
      }
      value = &*child;
    }
    static const json kValues = json::parse(
        R"([null, true, 0, -1, 1, 999, 1000, 4194303, 4194304, 18446744073709551615, 1e300, "", "a", "ByteLevel",
            "Sequence", "Split", "(", "\\p{L}+", [], {}, {"type": "Sequence"}, ["a", "b"]])");
    *value = kValues[Random(kValues.size())];
  }

 private:
  size_t Random(size_t below) { return rng_() % below; }
  std::mt19937 rng_{5};
};

// Returns whether the text was a tokenizer.
bool Check(const std::string& text) {
  const auto tokenizer = Tokenizer::Parse({"dir", text, std::nullopt, std::nullopt});
  if (!tokenizer.ok()) {
    EXPECT_THAT(std::string(tokenizer.status().message()), testing::HasSubstr("dir/tokenizer.json: "));
    return false;
  }
  const std::string sample = "The harbour, don't 1234 \xF0\x9F\x98\x80 \xFF <|eot_id|>\n  日本 e\xCC\x81";
  for (const int32_t id : (*tokenizer)->Encode(sample, true)) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, (*tokenizer)->vocab_size());
  }
  (*tokenizer)->Decode((*tokenizer)->Encode(sample, false), true);
  (*tokenizer)->GuardTokensIn(sample);
  for (size_t cut = 0; cut <= sample.size(); ++cut) {
    const std::string_view begin = std::string_view(sample).substr(0, cut), end = std::string_view(sample).substr(cut);
    const Tokenizer::Part parts[] = {{begin, cut % 2 == 0, {}}, {end, cut % 2 != 0, {}, /*joins=*/true}};
    for (const int32_t id : (*tokenizer)->EncodeParts(parts, false)) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, (*tokenizer)->vocab_size());
    }
  }
  return true;
}

class TokenizerMutationTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerMutationTest, NeverCrashes) {
  const json document = ReadGoldenJson(std::string(GetParam()) + "/tokenizer.json");
  ASSERT_TRUE(Check(document.dump()));
  Mutator mutator;
  int accepted = 0;
  constexpr int kRounds = 400;
  for (int i = 0; i < kRounds; ++i) {
    json changed = document;
    mutator.MutateValue(&changed);
    accepted += Check(changed.dump());
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerMutationTest, testing::Values("gpt2", "llama3", "qwen2"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace fastdecode
