#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_SMALL_ENGINE_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_SMALL_ENGINE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/engine/pipeline/sim_engine.h"

namespace fastdecode {

// What the pipeline's tests run: two small micro-batches, short prompts, and an end to every wait.

inline constexpr int kTurnsMax = 20'000;

inline SimOptions SmallOptions() {
  SimOptions options;
  options.limits = {.micro_batches = 2, .rows_max = 40, .sequences_max = 8, .chunk_tokens_max = 32, .ready_max = 64};
  options.link.late_reply_share = 0;
  return options;
}

inline std::vector<int32_t> Prompt(uint32_t tokens, uint64_t seed = 1) { return SimEngine::Prompt(tokens, seed, 50); }

inline void RunUntil(SimEngine* engine, const std::function<bool()>& done) {
  for (int turn = 0; turn < kTurnsMax && !done(); ++turn) engine->Turn();
  ASSERT_TRUE(done()) << "not within " << kTurnsMax << " turns";
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_SMALL_ENGINE_H_
