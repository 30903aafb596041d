#ifndef FASTDECODE_TOOLS_BENCH_STEP_WINDOW_H_
#define FASTDECODE_TOOLS_BENCH_STEP_WINDOW_H_

#include <fastdecode/fastdecode.hpp>

#include "nlohmann/json.hpp"

namespace fastdecode {

// What is measured: decode steps of so many sequences, of so many tokens at the start.
struct StepWindow {
  // Rounds that may pass between a token and its being seen here.
  static constexpr int kSlackRounds = 16;

  int batch = 32;
  int context = 512;
  int rounds = 30;  // steps of every micro-batch
  int warmup_rounds = 5;

  // The tokens of each sequence at the end.
  int tokens() const { return context + warmup_rounds + rounds + kSlackRounds; }
};

// How many sequences of the window the engine's homes hold as long as it lasts.
uint64_t SequencesThatFit(const InferenceEngine& engine, const StepWindow& window);

// The engine's statistics (fd_engine_stats_json) over the window, and what follows from them: batch, context,
// micro_batches (that had sequences), rounds, step_us, round_us, weight_gb_per_s, s_over_r, kv_mb_per_round, and what
// the homes say of their pages.
// Throws Error: the context or the homes do not hold so many tokens, sequences were preempted or had no place at once,
// or the window was missed several times.
nlohmann::json MeasureWindow(InferenceEngine& engine, const StepWindow& window);

// The engine's statistics over the computation of one prompt of so many tokens, without another request.
nlohmann::json MeasurePrompt(InferenceEngine& engine, int tokens);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_STEP_WINDOW_H_
