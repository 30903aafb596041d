// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/row_composer.h"

#include <utility>

#include "numa/check.h"

namespace fastdecode {

RowComposer::RowComposer(const BatchLimits& limits, HomeLedger* ledger, MicroBatches* micro_batches)
    : limits_(limits), ledger_(ledger), micro_batches_(micro_batches) {}

void RowComposer::GiveRows(int m, bool hold_pushes) {
  uint32_t rows_left = limits_.rows_max;
  uint32_t chunk_left = limits_.chunk_tokens_max;
  size_t prompts = 0;
  wanted_.fill(0);
  waits_.fill(false);
  gave_way_ = false;
  // Decode rows first: a prompt must not delay those who are already talking.
  for (Sequence* sequence : micro_batches_->Members(m)) {
    sequence->previous_rows = sequence->rows;
    sequence->rows = 0;
    prompts += !Decodes(*sequence);
    if (!Decodes(*sequence) || AwaitsPush(*sequence) || rows_left == 0) continue;
    const uint32_t followers = LogitsBeside(*sequence, 1);
    if (rows_left < 1 + followers) continue;
    sequence->rows = 1;
    rows_left -= 1 + followers;
    wanted_[sequence->seat.home] += PagesOf(*sequence);
  }
  for (Sequence* sequence : micro_batches_->Members(m)) {
    if (prompts == 0 || rows_left == 0 || chunk_left == 0) break;
    prompts -= !Decodes(*sequence);
    if (Decodes(*sequence) || (hold_pushes && sequence->push.seat.home >= 0)) continue;
    sequence->rows = std::min({RemainingAlike(*sequence), chunk_left, rows_left});
    uint32_t followers = LogitsBeside(*sequence, sequence->rows);
    if (sequence->rows + followers > rows_left) {  // the last token comes in a later step
      --sequence->rows;
      followers = 0;
    }
    rows_left -= sequence->rows + followers;
    chunk_left -= sequence->rows;
    wanted_[sequence->seat.home] += PagesOf(*sequence);
  }
}

Sequence* RowComposer::NextToGiveWay(int m) {
  if (std::exchange(gave_way_, false)) CountWanted(m);
  for (int h = 0; h < kMaxHomes; ++h) {
    if (waits_[h] || wanted_[h] <= ledger_->pages_available(h)) continue;
    Sequence* const victim = Youngest(h);
    if (victim->micro_batch != m) {
      if (victim->state == SequenceState::kComputes) victim->Enter(SequenceState::kGivesWay);
      waits_[h] = true;
      continue;
    }
    victim->rows = 0;
    gave_way_ = true;
    return victim;
  }
  return nullptr;
}

// Who shared a page with one that gave way may not have to copy it any more.
void RowComposer::CountWanted(int m) {
  wanted_.fill(0);
  for (const Sequence* sequence : micro_batches_->Members(m)) {
    if (sequence->rows > 0) wanted_[sequence->seat.home] += PagesOf(*sequence);
  }
}

// The sequence that came last among those that hold pages of the home.
Sequence* RowComposer::Youngest(int home) const {
  Sequence* youngest = nullptr;
  for (int m = 0; m < micro_batches_->count(); ++m) {
    for (Sequence* sequence : micro_batches_->Members(m)) {
      if (sequence->seat.home != home && sequence->push.seat.home != home) continue;
      if (youngest == nullptr || sequence->id > youngest->id) youngest = sequence;
    }
  }
  FD_CHECK(youngest != nullptr, "a home without sequences has run out of pages");
  return youngest;
}

uint32_t RowComposer::TakePages(int m) {
  uint32_t rows = 0;
  bool prompts = false;
  for (Sequence* sequence : micro_batches_->Members(m)) {
    if (sequence->rows > 0 && !Decodes(*sequence)) {
      prompts = true;  // after those that decode
    } else {
      rows += FinishRow(m, sequence);
    }
  }
  if (!prompts) return rows;
  for (Sequence* sequence : micro_batches_->Members(m)) {
    if (sequence->rows > 0 && !Decodes(*sequence)) rows += FinishRow(m, sequence);
  }
  return rows;
}

uint32_t RowComposer::FinishRow(int m, Sequence* sequence) {
  if (sequence->rows > 0 && !TakePagesOf(sequence)) sequence->rows = 0;
  // An entry of one row that had one row in the step before goes on by itself; so does one that sits out again.
  const bool continues = sequence->rows == sequence->previous_rows && sequence->rows <= 1;
  if (!continues) micro_batches_->ChangeRoster(m, sequence->seat.home);
  return sequence->rows;
}

bool RowComposer::TakePagesOf(Sequence* sequence) {
  const uint32_t end = sequence->computed + sequence->rows;
  const bool takes = PagesOf(*sequence) > 0;
  if (!ledger_->TakeForStep(sequence->seat.holder, sequence->computed, end, /*is_whole=*/end == sequence->length)) {
    FD_CHECK(waits_[sequence->seat.home], "pages that were counted are not there");
    return false;
  }
  if (takes) micro_batches_->NoteTaken(*sequence, ledger_->returns(sequence->seat.home));
  return true;
}

}  // namespace fastdecode
