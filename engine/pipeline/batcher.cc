#include "engine/pipeline/batcher.h"

#include <algorithm>

#include "numa/check.h"

namespace fastdecode {

Batcher::Batcher(const BatchLimits& limits)
    : limits_(limits), ready_(limits.ready_max + size_t{limits.sequences_max} * limits.micro_batches) {
  FD_CHECK(limits.micro_batches >= 1 && limits.micro_batches <= kMaxSlots, "micro-batches out of range");
  FD_CHECK(limits.sequences_max >= 1 && limits.sequences_max <= limits.rows_max, "more sequences than rows");
  FD_CHECK(limits.chunk_tokens_max >= 1, "prompts could never start");
  micro_batches_.reserve(limits.micro_batches);
  for (int m = 0; m < limits.micro_batches; ++m) micro_batches_.emplace_back(limits.sequences_max);
}

void Batcher::AddHome(int home, uint32_t pages, uint32_t read_rate, Push push) {
  FD_CHECK(home >= 0 && home < kMaxHomes && homes_[home].sequences == 0, "the home's index is in use");
  homes_[home] = HomeState{true, pages, pages, 0};
  homes_[home].read_rate = read_rate;
  homes_[home].push = push;
}

void Batcher::LoseHome(int home) {
  homes_[home].alive = false;
  for (MicroBatchState& batch : micro_batches_) {
    for (Sequence* sequence : batch.members) {
      if ((sequence->home != home && sequence->push_home != home) || sequence->failed) continue;
      sequence->failed = true;
      sequence->fail_reason = FinishReason::kHomeLost;
      sequence->fail_home = home;
    }
  }
}

void Batcher::Enqueue(Sequence* sequence) { ready_.Append(sequence); }

void Batcher::CancelAll() {
  for (Sequence* sequence : ready_) sequence->cancelled.store(true, std::memory_order_relaxed);
  for (MicroBatchState& batch : micro_batches_) {
    for (Sequence* sequence : batch.members) sequence->cancelled.store(true, std::memory_order_relaxed);
  }
}

bool Batcher::FitsSomewhere(const Sequence& sequence) const {
  const uint32_t pages = PagesOf(sequence.length_max);
  for (const HomeState& home : homes_) {
    if (home.alive && home.pages_total >= pages) return true;
  }
  return false;
}

int Batcher::homes_alive() const {
  int alive = 0;
  for (const HomeState& home : homes_) alive += home.alive;
  return alive;
}

bool Batcher::IsSmallest(int m) const {
  for (const MicroBatchState& batch : micro_batches_) {
    if (batch.members.size() < micro_batches_[m].members.size()) return false;
  }
  return true;
}

// All rates are known, and so far apart that it matters.
bool Batcher::RatesDiffer() const {
  uint32_t least = UINT32_MAX, most = 0;
  for (const HomeState& home : homes_) {
    if (!home.alive) continue;
    least = std::min(least, home.read_rate);
    most = std::max(most, home.read_rate);
  }
  return least > 0 && most / 2 > least;
}

// What a home has left once it holds so many pages more. All homes take part in every step: where rates differ, the one
// whose KV is then read soonest keeps steps shortest. Else the free share, which also keeps preemptions far.
double Batcher::Spare(const HomeState& home, uint32_t pages, bool by_rate) {
  if (by_rate) return -static_cast<double>(home.pages_total - home.pages_free + pages) / home.read_rate;
  return static_cast<double>(home.pages_free - pages) / home.pages_total;
}

// The watermark: every sequence there can take one more page before somebody has to go. An empty home takes any.
bool Batcher::HasRoom(const HomeState& home, uint32_t pages) const {
  return home.alive && home.pages_free >= pages + home.sequences;
}

// Who computes the prompt of a sequence of `home` and pushes it there; -1: the home itself does. For a prompt of a page
// the way there and back is not worth it.
int Batcher::ChoosePrefillHome(const Sequence& sequence, int home) const {
  if (homes_[home].push != Push::kStores || sequence.length <= kPageTokens || sequence.fill_tokens > 0) return -1;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (homes_[h].push == Push::kComputes && HasRoom(homes_[h], PagesOf(sequence.length))) return h;
  }
  return -1;
}

int Batcher::PlaceSequence(const Sequence& sequence) const {
  int best = -1;
  double most_spare = 0;
  const bool by_rate = RatesDiffer();
  const uint32_t pages = PagesOf(sequence.length);
  for (int h = 0; h < kMaxHomes; ++h) {
    const HomeState& home = homes_[h];
    if (home.pages_total < PagesOf(sequence.length_max) || !HasRoom(home, pages)) continue;
    const double spare = Spare(home, pages, by_rate);
    if (best < 0 || spare > most_spare) {
      best = h;
      most_spare = spare;
    }
  }
  return best;
}

void Batcher::Join(Sequence* sequence, int m, int home) {
  MicroBatchState& batch = micro_batches_[m];
  if (const int prefill_home = ChoosePrefillHome(*sequence, home); prefill_home >= 0) {
    if (sequence->length + 1 < sequence->length_max) {  // else its next token is its last: nobody reads its KV again
      sequence->push_home = home;
      sequence->push_pages = PagesOf(sequence->length);
      homes_[home].pages_free -= sequence->push_pages;
      ++homes_[home].sequences;
    }
    home = prefill_home;
  }
  sequence->home = home;
  sequence->micro_batch = m;
  sequence->rows = 0;
  ++homes_[home].sequences;
  ++active_count_;
  FD_CHECK(TakePages(sequence, sequence->length), "placed at a home without room");
  batch.members.Append(sequence);
  batch.roster_changed[home] = true;
}

void Batcher::Leave(Sequence* sequence) {
  MicroBatchState& batch = micro_batches_[sequence->micro_batch];
  size_t index = 0;
  while (index < batch.members.size() && batch.members[index] != sequence) ++index;
  batch.members.Erase(index);
  batch.roster_changed[sequence->home] = true;
  ReturnPages(sequence->home, sequence->pages);
  if (sequence->push_home >= 0) ReturnPages(sequence->push_home, sequence->push_pages);
  --active_count_;
  sequence->pages = sequence->push_pages = 0;
  sequence->push_home = -1;
  sequence->computed = 0;
  sequence->home = -1;
  sequence->micro_batch = -1;
  sequence->preempt = false;
}

// Of one sequence that is not there any more.
void Batcher::ReturnPages(int home, uint32_t pages) {
  homes_[home].pages_free += pages;
  ++homes_[home].returns;
  --homes_[home].sequences;
}

void Batcher::ReturnToReady(Sequence* sequence) {
  size_t index = 0;
  while (index < ready_.size() && ready_[index]->id < sequence->id) ++index;
  ready_.Insert(index, sequence);
}

Sequence* Batcher::Youngest(int home) const {
  Sequence* youngest = nullptr;
  for (const MicroBatchState& batch : micro_batches_) {
    for (Sequence* sequence : batch.members) {
      if (sequence->home != home && sequence->push_home != home) continue;
      if (youngest == nullptr || sequence->id > youngest->id) youngest = sequence;
    }
  }
  FD_CHECK(youngest != nullptr, "a home without sequences has run out of pages");
  return youngest;
}

bool Batcher::TakePages(Sequence* sequence, uint32_t tokens) {
  const uint32_t pages = PagesOf(tokens);
  if (pages <= sequence->pages) return true;
  HomeState& home = homes_[sequence->home];
  const uint32_t more = pages - sequence->pages;
  if (more > home.pages_free) return false;
  home.pages_free -= more;
  sequence->pages = pages;
  // One of the pages may have come back since this micro-batch's last roster. The home is certain to have applied that
  // release only once it has taken over a later roster.
  MicroBatchState& batch = micro_batches_[sequence->micro_batch];
  if (home.returns != batch.returns_at_roster[sequence->home]) batch.roster_changed[sequence->home] = true;
  return true;
}

}  // namespace fastdecode
