#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_INTERFACE_FIXTURE_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_INTERFACE_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {

inline constexpr int kContext = 256;
inline constexpr int kVocab = 256;

// Has a tiny model, and what an engine of it is made of. Thread: one.
class InterfaceTest : public testing::Test {
 protected:
  void SetUp() override { model_ = WriteTinyModel(dir_.path(), "model", kContext, /*seed=*/9); }

  OptionList Options() const {
    return {{"model", model_}, {"compute", "f32"}, {"homes", "local:1"}, {"poll", "yield"}, {"max-sequences", "8"}};
  }

  // What submitting throws.
  static Error SubmitError(InferenceEngine& engine, const GenerateRequest& request) {
    try {
      engine.Submit(request);
    } catch (const Error& error) {
      return error;
    }
    return Error(FD_OK, "");
  }

  ScratchDir dir_;
  std::string model_;
};

inline void ExpectError(const Error& error, fd_code code, const std::string& part) {
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "'" << part << "' is not in: " << error.what();
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_INTERFACE_FIXTURE_H_
