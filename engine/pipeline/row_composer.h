// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_ROW_COMPOSER_H_
#define FASTDECODE_ENGINE_PIPELINE_ROW_COMPOSER_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/pipeline/batch_limits.h"
#include "engine/pipeline/home_ledger.h"
#include "engine/pipeline/micro_batches.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"

namespace fastdecode {

// Gives the members of a micro-batch their rows in a step. A member that decodes has one row, one with a prompt a chunk
// of it. This takes two passes: who gets rows, by the limits alone; then who must give way, because a home has too few
// free pages for these rows. What gives way is the home's youngest sequence, again and again until the pages do.
//
// Owns: nothing but numbers of the step that it composes. Thread: the pipeline thread. Never allocates.
class RowComposer {
 public:
  // The ledger and the micro-batches outlive it.
  RowComposer(const BatchLimits& limits, HomeLedger* ledger, MicroBatches* micro_batches);

  // One whose prompt, all but the last token at most, is computed at another home, but not known to be stored at its
  // own.
  static bool AwaitsPush(const Sequence& sequence) {
    return sequence.push.seat.home >= 0 && sequence.length - sequence.computed == 1;
  }

  // 1. Sets the `rows` of every member. hold_pushes: prompts that are pushed do not go on in this step.
  void GiveRows(int m, bool hold_pushes);
  // 2. The next member of micro-batch m that has to leave for the others' pages; null: nobody. The caller takes it out
  // of the micro-batch and returns its pages before it asks again. A sequence of another micro-batch, where a step may
  // be under way, is marked (kGivesWay) instead and leaves at its own boundary.
  Sequence* NextToGiveWay(int m);
  // Pages of a home that these rows need in all.
  uint32_t Wanted(int home) const { return wanted_[home]; }
  // 3. Takes the pages of these rows. Where those of another micro-batch's sequence are awaited, who finds none sits
  // the step out. Returns the rows in all.
  uint32_t TakePages(int m);

 private:
  // Tokens left to compute, of a prompt's rows or of others: no chunk has both (RosterEntry).
  static uint32_t RemainingAlike(const Sequence& sequence) {
    const bool in_prompt = sequence.computed < sequence.prompt_tokens;
    return (in_prompt ? sequence.prompt_tokens : sequence.length) - sequence.computed;
  }
  // Rows of logits besides its own that a sequence needs with so many rows: its followers' with the prompt's last one.
  // A step has as many rows of logits as it may have rows.
  static uint32_t LogitsBeside(const Sequence& sequence, uint32_t rows) {
    return sequence.computed + rows == sequence.length ? CountFollowers(sequence) : 0;
  }
  static bool Decodes(const Sequence& sequence) { return sequence.length - sequence.computed == 1; }
  uint32_t PagesOf(const Sequence& sequence) const {
    return ledger_->PagesForStep(sequence.seat.holder, sequence.computed, sequence.computed + sequence.rows);
  }
  void CountWanted(int m);
  Sequence* Youngest(int home) const;
  uint32_t FinishRow(int m, Sequence* sequence);
  bool TakePagesOf(Sequence* sequence);

  const BatchLimits limits_;
  HomeLedger* const ledger_;
  MicroBatches* const micro_batches_;
  std::array<uint32_t, kMaxHomes> wanted_ = {};  // pages, for the rows that were given
  bool gave_way_ = false;                        // one did since these were counted
  std::array<bool, kMaxHomes> waits_ = {};       // for a sequence of another micro-batch to leave
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_ROW_COMPOSER_H_
