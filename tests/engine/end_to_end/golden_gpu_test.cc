// The whole engine with its S-Part on a GPU, against Hugging Face transformers: on the software GPU everywhere, and on
// a real one where there is one. See tests/golden/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/engine/end_to_end/golden_checks.h"
#include "tests/tests_folder.h"

namespace fastdecode {
namespace {

using Chunks = std::vector<std::string>;

const char* const kHomes[] = {"gpu", "gpu,local:1", "local:1"};

struct Param {
  std::string name;  // of the case
  std::string chunk;
  std::string homes;
  std::string module;  // file; empty: it was not built
};

// Those of families that differ from Llama in what GPU kernels compute, each in a way of its own.
const char* const kQuickFamilies[] = {"qwen2",  "qwen2_window", "qwen3", "gemma",
                                      "gemma2", "gemma3_text",  "opt",   "opt_350m"};
bool IsQuickFamily(const std::string& name) {
  return std::find(std::begin(kQuickFamilies), std::end(kQuickFamilies), name) != std::end(kQuickFamilies);
}

// Of families: on the GPU's own KV, and on both kinds at once.
std::vector<Param> FamilyCases(const std::string& module, bool quick) {
  std::vector<Param> params;
  for (const std::string& name : GoldenFamilies()) {
    if (IsQuickFamily(name) != quick) continue;
    for (const char* homes : {"gpu", "gpu,local:1"}) {
      params.push_back({name, params.size() % 4 < 2 ? "37" : "256", homes, module});
    }
  }
  return params;
}

// Each with one of the chunks and one kind of homes. Their numbers have no divisor in common: all pairs are among them.
std::vector<Param> AllCases(const std::string& module, const Chunks& chunks, bool families = false) {
  std::vector<Param> params;
  for (const std::string& name : families ? GoldenNames() : GoldenLlamas()) {
    const size_t i = params.size();
    params.push_back({name, chunks[i % chunks.size()], kHomes[i % std::size(kHomes)], module});
  }
  return params;
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  std::string homes = info.param.homes;
  std::erase_if(homes, [](char c) { return c == ',' || c == ':'; });
  return info.param.name + "_chunk" + info.param.chunk + "_" + homes;
}

class GoldenGpuTest : public testing::TestWithParam<Param> {
 protected:
  // Null: no GPU here, and the test has skipped itself, saying why.
  std::unique_ptr<InferenceEngine> Make(const Golden& golden, const std::string& compute, const OptionList& more = {}) {
    const OptionList options = OptionList{{"model", golden.folder},
                                          {"compute", compute},
                                          {"prefill-chunk", GetParam().chunk},
                                          {"homes", GetParam().homes},
                                          {"max-sequences", "12"},
                                          {"poll", "yield"},
                                          {"spart", "cuda"},
                                          {"cuda-module", GetParam().module}} +
                               more;
    if (GetParam().module.empty()) {
      Skip("built without CUDA");
      return nullptr;
    }
    try {
      return MakeEngine(options);
    } catch (const Error& error) {
      if (std::string(error.what()).find("no GPU: ") == std::string::npos) throw;
      Skip(error.what());
      return nullptr;
    }
  }

 private:
  void Skip(const std::string& why) { GTEST_SKIP() << why; }
};

TEST_P(GoldenGpuTest, ExactModeGivesTheLogitsAndTokensOfTransformers) {
  const Golden golden(GetParam().name);
  const auto engine = Make(golden, "f32");
  if (engine != nullptr) ExpectLogitsAndTokens(golden, *engine);
}

TEST_P(GoldenGpuTest, Bf16IsAboutAsCloseAsTransformersOwn) {
  const Golden golden(GetParam().name);
  const auto engine = Make(golden, "bf16");
  if (engine != nullptr) ExpectAsCloseAsBf16(golden, *engine, "bf16");
}

// fp16 has three bits more; K and V are fp16 too.
TEST_P(GoldenGpuTest, Fp16IsCloserThanTransformersBf16) {
  const Golden golden(GetParam().name);
  const auto engine = Make(golden, "fp16");
  if (engine != nullptr) ExpectAsCloseAsBf16(golden, *engine, "fp16");
}

// One checkpoint in all ways. What is rounded to int8 on the GPU gives about what it gives elsewhere.
std::vector<Param> AllWays(const std::string& module, const Chunks& chunks) {
  std::vector<Param> params;
  for (const char* homes : kHomes) {
    for (const std::string& chunk : chunks) params.push_back({"gqa", chunk, homes, module});
  }
  return params;
}

using GoldenGpuKvTest = GoldenGpuTest;

TEST_P(GoldenGpuKvTest, TokensDoNotDependOnWhereTheKvIs) {
  const Golden golden("gqa");
  const auto engine = Make(golden, "f32");
  if (engine != nullptr) ExpectLogitsAndTokens(golden, *engine);
}

TEST_P(GoldenGpuKvTest, Int8IsAsCloseAsAtACpuHome) {
  const Golden golden("gqa");
  const auto error = [&](const std::string& kv_type) {
    const auto engine = Make(golden, "f32", {{"kv-type", kv_type}});
    if (engine == nullptr) return 0.0;
    const std::vector<int32_t> prompt = golden.Prompt(golden.prompt_lengths.back());
    return Compare(golden, golden.logits, RunAll(*engine, {GreedyRequest(prompt, 1)}, true)[0].prompt_logits).rms;
  };
  const double bf16 = error("bf16"), int8 = error("int8");
  if (IsSkipped()) return;
  EXPECT_LE(bf16, golden.bf16_rms_error);
  EXPECT_GT(int8, bf16);
  EXPECT_LE(int8, 16 * bf16);  // golden_test says why
}

const Chunks kChunks = {"1", "7", "37", "256"};

// A step for each token of a prompt takes half the time of all on the software GPU: one of these is quick.
INSTANTIATE_TEST_SUITE_P(Software, GoldenGpuTest, testing::ValuesIn(AllCases(SOFT_GPU_MODULE, {"7", "256"})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Software, GoldenGpuKvTest, testing::ValuesIn(AllWays(SOFT_GPU_MODULE, {"7", "37", "256"})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(SoftwareByToken, GoldenGpuKvTest,
                         testing::Values(Param{"gqa", "1", "gpu,local:1", SOFT_GPU_MODULE}), ParamName);
INSTANTIATE_TEST_SUITE_P(Families, GoldenGpuTest, testing::ValuesIn(FamilyCases(SOFT_GPU_MODULE, /*quick=*/true)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(LongFamilies, GoldenGpuTest, testing::ValuesIn(FamilyCases(SOFT_GPU_MODULE, /*quick=*/false)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Long, GoldenGpuTest, testing::ValuesIn(AllCases(SOFT_GPU_MODULE, {"1", "37"})), ParamName);
INSTANTIATE_TEST_SUITE_P(Long, GoldenGpuKvTest, testing::ValuesIn(AllWays(SOFT_GPU_MODULE, {"1"})), ParamName);
INSTANTIATE_TEST_SUITE_P(Real, GoldenGpuTest,
                         testing::ValuesIn(AllCases(CudaModule(CUDA_MODULE), kChunks, /*families=*/true)), ParamName);
INSTANTIATE_TEST_SUITE_P(Real, GoldenGpuKvTest, testing::ValuesIn(AllWays(CudaModule(CUDA_MODULE), kChunks)),
                         ParamName);

}  // namespace
}  // namespace fastdecode
