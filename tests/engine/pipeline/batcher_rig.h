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
  void Make(const BatchLimits& limits) {
    batcher_ = std::make_unique<Batcher>(limits);
    changes_ = BoundaryChanges(2 * size_t{limits.active()});
  }

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
    batcher_->DropLeavers(m, &changes_);
    batcher_->TakeIn(m, &changes_);
    const uint32_t rows = batcher_->ComposeRows(m, &changes_);
    Apply();
    batcher_->CheckInvariants();
    return rows;
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
    batcher_->Remove(sequence, &changes_);
    changes_.Clear();
    batcher_->CheckInvariants();
  }
  uint32_t Pages(const Sequence* sequence) const {
    return sequence->seat.holder == HomeLedger::kNobody ? 0 : batcher_->ledger().pages(sequence->seat.holder);
  }

  std::vector<uint64_t> Members(int m) const {
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : batcher_->Members(m)) ids.push_back(sequence->id);
    return ids;
  }

  // Notes who has ended, and whom homes are told of, once for each home.
  void Apply() {
    for (const BoundaryChange& change : changes_) {
      if (change.kind != BoundaryChange::Kind::kLeft) continue;
      for (int i = 0; i < (change.push_seat.home >= 0 ? 2 : 1); ++i) released_.push_back(change.sequence->id);
      if (change.reason == LeaveReason::kEnds) ended_.push_back(change.sequence->id);
    }
    changes_.Clear();
  }

  std::unique_ptr<Batcher> batcher_;
  BoundaryChanges changes_{0};
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
