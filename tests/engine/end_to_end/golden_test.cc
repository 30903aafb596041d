// The whole engine against Hugging Face transformers: see tests/golden/README.md.
#include "tests/engine/end_to_end/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden_checks.h"

namespace fastdecode {
namespace {

const char* const kChunks[] = {"1", "7", "37", "256"};

OptionList Options(const Golden& golden, const std::string& compute, const std::string& isa, const std::string& chunk) {
  return {{"model", golden.folder}, {"compute", compute},    {"isa", isa},     {"prefill-chunk", chunk},
          {"homes", "local:1"},     {"max-sequences", "12"}, {"poll", "yield"}};
}

// Null if the CPU has not the ISA.
std::unique_ptr<InferenceEngine> MakeEngineIfIsa(const OptionList& options) {
  try {
    return MakeEngine(options);
  } catch (const Error& error) {
    if (std::string(error.what()).find("this CPU has no '") == std::string::npos) throw;
    return nullptr;
  }
}

struct Param {
  std::string name;  // of the case
  std::string chunk;
  std::string isa;
};

std::vector<Param> Rotated() {
  std::vector<Param> params;
  for (const std::string& name : GoldenNames())
    params.push_back({name, kChunks[params.size() % std::size(kChunks)], "auto"});
  return params;
}

std::vector<Param> EveryChunk() {
  std::vector<Param> params;
  for (const std::string& name : GoldenNames()) {
    for (const char* chunk : kChunks) params.push_back({name, chunk, "auto"});
  }
  return params;
}

// The kernels of other families: norms, activations, soft caps, heads in parts.
std::vector<Param> FamilyIsas() {
  std::vector<Param> params;
  for (const char* name : {"gemma2", "opt", "gpt_neox", "olmo2"}) {
    for (const char* isa : {"avx2", "avx512", "amx"}) params.push_back({name, "37", isa});
  }
  return params;
}

std::vector<Param> EveryIsa() {
  std::vector<Param> params;
  for (const char* name : {"gqa", "head_80", "sliding_window"}) {
    for (const char* isa : {"avx2", "avx512", "avx512vnni", "avx512bf16", "amx"}) params.push_back({name, "37", isa});
  }
  return params;
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  return info.param.name + "_chunk" + info.param.chunk + "_" + info.param.isa;
}

class GoldenTest : public testing::TestWithParam<Param> {};

TEST_P(GoldenTest, ExactModeGivesTheLogitsAndTokensOfTransformers) {
  const Golden golden(GetParam().name);
  const auto engine = MakeEngineIfIsa(Options(golden, "f32", GetParam().isa, GetParam().chunk));
  if (engine == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam().isa;
  ExpectLogitsAndTokens(golden, *engine);
}

TEST_P(GoldenTest, Bf16IsAboutAsCloseAsTransformersOwn) {
  const Golden golden(GetParam().name);
  for (const char* invariant : {"false", "true"}) {
    SCOPED_TRACE(std::string("batch-invariant ") + invariant);
    const auto engine = MakeEngineIfIsa(Options(golden, "bf16", GetParam().isa, GetParam().chunk) +
                                        OptionList{{"batch-invariant", invariant}});
    if (engine == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam().isa;
    ExpectAsCloseAsBf16(golden, *engine, invariant);
  }
}

// In f32 the rounding of K and V is all that is left: fp16's is finer than bf16's, and both are within what bf16 costs
// where everything is rounded to it.
TEST(GoldenKvTypeTest, KAndVAreRoundedToTheirTypeAndNothingElseIs) {
  const Golden golden("gqa");
  const auto difference = [&](const std::string& kv_type) {
    const auto engine = MakeEngine(Options(golden, "f32", "auto", "37") + OptionList{{"kv-type", kv_type}});
    const std::vector<int32_t> prompt = golden.Prompt(golden.prompt_lengths.back());
    return Compare(golden, golden.logits, RunAll(*engine, {GreedyRequest(prompt, 1)}, true)[0].prompt_logits);
  };
  const LogitDifference f32 = difference("f32"), fp16 = difference("fp16"), bf16 = difference("bf16");
  EXPECT_LE(f32.max, kExactShare * golden.largest_logit);
  EXPECT_GT(fp16.rms, f32.rms);
  EXPECT_GT(bf16.rms, 2 * fp16.rms) << "three bits are a factor of eight";
  EXPECT_LE(bf16.rms, golden.bf16_rms_error);
  // The largest of a head's elements has 7 bits and the others that step: the average one, a third of it, has half a
  // bit of bf16's 8 for each of them, in K, V, q and p.
  const LogitDifference int8 = difference("int8");
  EXPECT_GT(int8.rms, bf16.rms);
  EXPECT_LE(int8.rms, 16 * bf16.rms);
  // A step is a 15th of a range of up to twice the largest element, int8's a 127th of that: 17 times. Whose largest it
  // is (of a dim over 32 tokens, or of 64 dims, not of a head) is good for a factor of two either way.
  const LogitDifference int4 = difference("int4");
  EXPECT_GT(int4.rms, 2 * int8.rms);
  EXPECT_LE(int4.rms, 2 * 17 * int8.rms);
}

// Windows and soft caps over rounded pages.
TEST(GoldenKvTypeTest, Int8CostsOtherFamiliesWhatItCostsLlama) {
  for (const char* name : {"qwen3", "gemma2"}) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    const auto rms = [&](const std::string& kv_type) {
      const auto engine = MakeEngine(Options(golden, "f32", "auto", "37") + OptionList{{"kv-type", kv_type}});
      const std::vector<int32_t> prompt = golden.Prompt(golden.prompt_lengths.back());
      return Compare(golden, golden.logits, RunAll(*engine, {GreedyRequest(prompt, 1)}, true)[0].prompt_logits).rms;
    };
    const double bf16 = rms("bf16"), int8 = rms("int8");
    EXPECT_GT(int8, bf16);
    EXPECT_LE(int8, 16 * bf16);
  }
}

// Whatever has been rounded when a row comes: it sees its own page as it was, and all pages before rounded.
TEST(GoldenKvTypeTest, ChunksChangeNoBitOfInt4) {
  const Golden golden("gqa");
  const std::vector<int32_t> prompt = golden.Prompt(golden.prompt_lengths.back());
  ASSERT_GT(prompt.size(), 64u);
  std::vector<Answer> answers;
  for (const char* chunk : {"1", "7", "37", "256"}) {
    const auto engine = MakeEngine(Options(golden, "f32", "auto", chunk) + OptionList{{"kv-type", "int4"}});
    answers.push_back(RunAll(*engine, {GreedyRequest(prompt, 40)}, /*with_logits=*/true)[0]);
    EXPECT_TRUE(answers.back().prompt_logits == answers[0].prompt_logits) << "chunk " << chunk;
    EXPECT_EQ(answers.back().tokens, answers[0].tokens) << "chunk " << chunk;
  }
}

TEST(GoldenKvTypeTest, Bf16WithKAndVInFp16IsAboutAsCloseAsTransformersOwn) {
  const Golden golden("gqa");
  const auto engine = MakeEngine(Options(golden, "bf16", "auto", "37") + OptionList{{"kv-type", "fp16"}});
  const std::vector<Answer> answers = RunAll(*engine, {GreedyRequest(golden.prompt, 1)}, /*with_logits=*/true);
  const LogitDifference difference = Compare(golden, golden.bf16_reference, answers[0].prompt_logits);
  EXPECT_LE(difference.rms, kBf16Share * golden.bf16_rms_error);
  EXPECT_LE(difference.max, kBf16Share * golden.bf16_max_error);
}

INSTANTIATE_TEST_SUITE_P(Quick, GoldenTest, testing::ValuesIn(Rotated()), ParamName);
INSTANTIATE_TEST_SUITE_P(Isa, GoldenTest, testing::ValuesIn(EveryIsa()), ParamName);
INSTANTIATE_TEST_SUITE_P(FamilyIsa, GoldenTest, testing::ValuesIn(FamilyIsas()), ParamName);
INSTANTIATE_TEST_SUITE_P(Long, GoldenTest, testing::ValuesIn(EveryChunk()), ParamName);

}  // namespace
}  // namespace fastdecode
