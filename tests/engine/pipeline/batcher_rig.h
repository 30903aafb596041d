#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_BATCHER_RIG_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_BATCHER_RIG_H_

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/pipeline/batcher.h"

namespace fastdecode {

// A batcher whose steps are its boundaries: every row is computed at once.
class BatcherTest : public testing::Test {
 protected:
  void Make(const BatchLimits& limits) { batcher_ = std::make_unique<Batcher>(limits); }

  Sequence* Add(uint64_t id, uint32_t prompt_tokens, uint32_t length_max) {
    sequences_.push_back(std::make_unique<Sequence>());
    Sequence* sequence = sequences_.back().get();
    sequence->id = id;
    sequence->prompt_tokens = prompt_tokens;
    sequence->length = prompt_tokens;
    sequence->length_max = length_max;
    batcher_->Enqueue(sequence);
    return sequence;
  }

  uint32_t Begin(int m) {
    released_.clear();
    ended_.clear();
    const auto released = [this](int home, Sequence* sequence) { released_.push_back(sequence->id); };
    batcher_->DropLeavers(
        m, [this](Sequence* sequence) { ended_.push_back(sequence->id); }, released);
    batcher_->TakeIn(m, [](Sequence*) {});
    return batcher_->ComposeRows(m, released);
  }
  // The rosters go out, the step runs, and everyone who has no prompt left gets a token.
  void Finish(int m) {
    for (int home = 0; home < kMaxHomes; ++home) batcher_->RosterSent(m, home);
    for (Sequence* sequence : batcher_->Members(m)) {
      sequence->computed += sequence->rows;
      if (sequence->rows > 0 && sequence->computed == sequence->length) ++sequence->length;
    }
  }
  uint32_t Step(int m) {
    const uint32_t rows = Begin(m);
    Finish(m);
    return rows;
  }
  void End(Sequence* sequence) {
    batcher_->Remove(sequence, [](int, Sequence*) {});
  }

  std::vector<uint64_t> Members(int m) const {
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : batcher_->Members(m)) ids.push_back(sequence->id);
    return ids;
  }

  std::unique_ptr<Batcher> batcher_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<uint64_t> released_;
  std::vector<uint64_t> ended_;
};

inline constexpr BatchLimits kOne = {
    .micro_batches = 1, .rows_max = 64, .sequences_max = 8, .chunk_tokens_max = 32, .ready_max = 16};
inline constexpr BatchLimits kTwo = {
    .micro_batches = 2, .rows_max = 64, .sequences_max = 8, .chunk_tokens_max = 32, .ready_max = 16};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_BATCHER_RIG_H_
