// The whole engine with its S-Part on a GPU, against Hugging Face transformers: on the software GPU everywhere, and on
// a real one where there is one. See tests/golden/README.md.
#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/engine/end_to_end/golden_checks.h"

namespace fastdecode {
namespace {

const char* const kChunks[] = {"1", "7", "37", "256"};

struct Param {
  std::string name;  // of the case
  std::string chunk;
  std::string module;  // file; empty: it was not built
};

std::vector<Param> AllCases(const std::string& module) {
  std::vector<Param> params;
  for (const std::string& name : GoldenNames())
    params.push_back({name, kChunks[params.size() % std::size(kChunks)], module});
  return params;
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  return info.param.name + "_chunk" + info.param.chunk;
}

class GoldenGpuTest : public testing::TestWithParam<Param> {
 protected:
  // Null: no GPU here, and the test has skipped itself, saying why.
  std::unique_ptr<InferenceEngine> Make(const Golden& golden, const std::string& compute) {
    const OptionList options = {{"model", golden.folder},
                                {"compute", compute},
                                {"prefill-chunk", GetParam().chunk},
                                {"homes", "local:1"},
                                {"max-sequences", "12"},
                                {"poll", "yield"},
                                {"spart", "cuda"},
                                {"cuda-module", GetParam().module}};
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

INSTANTIATE_TEST_SUITE_P(Software, GoldenGpuTest, testing::ValuesIn(AllCases(SOFT_GPU_MODULE)), ParamName);
INSTANTIATE_TEST_SUITE_P(Real, GoldenGpuTest, testing::ValuesIn(AllCases(CUDA_MODULE)), ParamName);

}  // namespace
}  // namespace fastdecode
