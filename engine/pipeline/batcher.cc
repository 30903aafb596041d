// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/batcher.h"

#include <algorithm>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {
// So long may a sequence be the first of those that wait, for near ones to end, while a far home has room for it.
constexpr uint64_t kHeadWaitNs = 5'000'000'000;
// So long does a refusal hold of which nothing has changed but the time.
constexpr uint64_t kRefusalNs = 100'000;
}  // namespace

Batcher::Batcher(const BatchLimits& limits)
    : limits_(limits), counts_(limits.open_pages), ready_(size_t{limits.ready_max} + limits.active()) {
  FD_CHECK(limits.micro_batches >= 1 && limits.micro_batches <= kMaxSlots, "micro-batches out of range");
  FD_CHECK(limits.sequences_max >= 1 && limits.sequences_max <= limits.rows_max, "more sequences than rows");
  FD_CHECK(limits.active() <= size_t{limits.sequences_max} * limits.micro_batches, "more sequences than places");
  FD_CHECK(limits.chunk_tokens_max >= 1, "prompts could never start");
  micro_batches_.reserve(limits.micro_batches);  // at start
  for (int m = 0; m < limits.micro_batches; ++m) micro_batches_.emplace_back(limits.sequences_max);  // at start
  // Of an open page that was closed in the step before the pieces count still.
  for (uint32_t tokens = 0; tokens < pages_counted_.size(); ++tokens) {
    pages_counted_[tokens] = tokens == 0 ? 0 : counts_.OfStep(tokens - 1, tokens);
    if (tokens > 1) pages_counted_[tokens] = std::max(pages_counted_[tokens], counts_.OfStep(tokens - 2, tokens - 1));
  }
}

void Batcher::AddHome(int home, uint32_t pages, uint32_t read_rate, Push push, bool near) {
  FD_CHECK(home >= 0 && home < kMaxHomes && homes_[home].sequences == 0, "the home's index is in use");
  homes_[home] = HomeState{.alive = true, .pages_total = pages, .pages_free = pages};
  homes_[home].read_rate = read_rate;
  homes_[home].push = push;
  homes_[home].near = near;
  LookAtHomes();
}

void Batcher::LoseHome(int home) {
  homes_[home].alive = false;
  homes_[home].expected = true;
  LookAtHomes();
  for (MicroBatchState& batch : micro_batches_) {
    for (Sequence* sequence : batch.members) {
      if ((sequence->home != home && sequence->push_home != home) || sequence->failed) continue;
      sequence->failed = true;
      sequence->fail_reason = FinishReason::kHomeLost;
      sequence->fail_home = home;
    }
  }
}

void Batcher::Enqueue(Sequence* sequence) {
  ++changes_;
  ready_.Append(sequence);
}

void Batcher::CancelAll() {
  for (Sequence* sequence : ready_) sequence->cancelled.store(true, std::memory_order_relaxed);
  for (MicroBatchState& batch : micro_batches_) {
    for (Sequence* sequence : batch.members) sequence->cancelled.store(true, std::memory_order_relaxed);
  }
}

bool Batcher::Fits(const Sequence& sequence, bool expected_too) const {
  const uint32_t pages = counts_.Most(sequence.length_max);
  return std::any_of(homes_.begin(), homes_.end(), [&](const HomeState& home) {
    return (home.alive || (expected_too && home.expected)) && home.pages_total >= pages;
  });
}

size_t Batcher::FindHead() const {
  const bool any_lost = std::any_of(homes_.begin(), homes_.end(), [](const HomeState& home) { return home.expected; });
  if (!any_lost) return 0;
  const auto fits = [this](const Sequence* sequence) { return Fits(*sequence, /*expected_too=*/false); };
  return static_cast<size_t>(std::find_if(ready_.begin(), ready_.end(), fits) - ready_.begin());
}

int Batcher::homes_alive() const {
  int alive = 0;
  for (const HomeState& home : homes_) alive += home.alive;
  return alive;
}

void Batcher::LookAtHomes() {
  ++changes_;
  bool near = false, known = limits_.weight_bytes > 0 && limits_.page_bytes > 0;
  for (const HomeState& home : homes_) {
    if (!home.alive) continue;
    near |= home.near;
    known &= home.read_rate > 0;
  }
  planned_ = near && known;
}

bool Batcher::IsSmallest(int m, size_t first) const {
  for (size_t other = first; other < micro_batches_.size(); ++other) {
    if (micro_batches_[other].members.size() < micro_batches_[m].members.size()) return false;
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

// The watermark: every sequence there can grow by a page's tokens before somebody has to go. An empty home takes any.
// Without open pages that is a page each.
bool Batcher::HasRoom(int h, uint32_t pages) const {
  const HomeState& home = homes_[h];
  if (!home.alive || home.pages_free < pages + home.sequences) return false;
  return !counts_.open_pages() || home.pages_free >= pages + GrowthOf(h);
}

// The pages that a home's sequences will take besides those that they have, at most at once, while each grows by a
// page's tokens: those of open pages come and go, of sequences of like length together.
uint32_t Batcher::GrowthOf(int h) const {
  uint32_t sequences[kPageTokens] = {};  // those that decode, by tokens in the last page
  uint32_t others = 0, held = 0;         // pages: of full ones and of prompts; all
  for (const MicroBatchState& batch : micro_batches_) {
    for (const Sequence* sequence : batch.members) {
      if (sequence->home != h) continue;
      held += sequence->pages;
      if (sequence->length - sequence->computed > 1) {  // it has the most that its prompt takes, until that is over
        others += sequence->pages + 1;
        continue;
      }
      ++sequences[sequence->length % kPageTokens];
      others += sequence->length / kPageTokens;
    }
  }
  uint32_t most = held + homes_[h].sequences;
  for (uint32_t more = 1; more <= kPageTokens; ++more) {
    uint32_t pages = others;
    for (uint32_t i = 0; i < kPageTokens; ++i) pages += sequences[i] * pages_counted_[i + more];
    most = std::max(most, pages);
  }
  return most - held;
}

// Who computes the prompt of a sequence of `home` and pushes it there; -1: the home itself does. For a prompt of a page
// the way there and back is not worth it.
int Batcher::ChoosePrefillHome(const Sequence& sequence, int home) const {
  if (homes_[home].push != Push::kStores || sequence.length <= kPageTokens || sequence.fill_tokens > 0) return -1;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (homes_[h].push == Push::kComputes && HasRoom(h, counts_.Most(sequence.length))) return h;
  }
  return -1;
}

int Batcher::PlaceSequence(const Sequence& sequence, Kind kind) const {
  int best = -1;
  double most_spare = 0;
  const bool by_rate = RatesDiffer();
  const uint32_t pages = counts_.Most(sequence.length);
  for (int h = 0; h < kMaxHomes; ++h) {
    const HomeState& home = homes_[h];
    if (kind != Kind::kAny && home.near != (kind == Kind::kNear)) continue;
    if (home.pages_total < counts_.Most(sequence.length_max) || !HasRoom(h, pages)) continue;
    const double spare = Spare(home, pages, by_rate);
    if (best < 0 || spare > most_spare) {
      best = h;
      most_spare = spare;
    }
  }
  return best;
}

// A micro-batch without rows asks in each turn of the pipeline: the last answer holds as long as it must be the same.
int Batcher::PlaceHead(int m, uint64_t now_ns, size_t* head) {
  MicroBatchState& batch = micro_batches_[m];
  if (batch.refused_at == changes_ && now_ns - batch.refused_ns < kRefusalNs) return -1;
  ++looks_;
  *head = FindHead();
  int home = -1;
  if (*head == ready_.size()) {
    // all wait for a home that was lost
  } else if (planned_) {
    home = PlaceByPlan(*ready_[*head], m, now_ns);
  } else if (IsSmallest(m)) {
    home = PlaceSequence(*ready_[*head], Kind::kAny);
  }
  if (home < 0) {
    batch.refused_at = changes_;
    batch.refused_ns = now_ns;
  }
  return home;
}

// Near as long as there is room. Else it waits for that, or goes to a far home: as is best for all that wait. Whoever
// is computed near goes where near ones are.
int Batcher::PlaceByPlan(Sequence& head, int m, uint64_t now_ns) {
  if (head.head_since_ns == 0) head.head_since_ns = now_ns;
  PlanInputs inputs = InputsOfPlan();
  if (inputs.far_sequences == 0) plan_ = StepPlan::kNear;
  if (const int home = PlaceSequence(head, Kind::kNear); home >= 0) return Takes(m, /*near=*/true) ? home : -1;
  const int home = PlaceSequence(head, Kind::kFar);
  if (home < 0) return -1;
  AddWaiting(head, &inputs);
  const Placement placement = ChoosePlacement(plan_, inputs, MustGoFar(head, now_ns));
  if (!placement.far) return -1;
  const StepPlan held = std::exchange(plan_, placement.plan);
  if (Takes(m, /*near=*/ChoosePrefillHome(head, home) >= 0)) return home;
  plan_ = held;  // it holds from when the first goes by it
  return -1;
}

// Whether no near home could ever hold it, or it has been the first for so long that the others might never end.
bool Batcher::MustGoFar(const Sequence& head, uint64_t now_ns) const {
  if (now_ns - head.head_since_ns > kHeadWaitNs) return true;
  for (const HomeState& home : homes_) {
    if (home.alive && home.near && home.pages_total >= counts_.Most(head.length_max)) return false;
  }
  return true;
}

// Of those who are at homes. REQUIRES: planned_.
PlanInputs Batcher::InputsOfPlan() const {
  PlanInputs inputs;
  inputs.micro_batches = limits_.micro_batches;
  double near_rate = 0;
  for (const HomeState& home : homes_) {
    if (!home.alive) continue;
    const auto bytes = static_cast<double>(limits_.page_bytes * (home.pages_total - home.pages_free));
    double& most_us = home.near ? inputs.near_us : inputs.far_us;
    most_us = std::max(most_us, bytes / home.read_rate);  // a MB/s is a byte a us
    (home.near ? inputs.near_sequences : inputs.far_sequences) += home.sequences;
    if (home.near) near_rate += home.read_rate;
  }
  inputs.weights_us = static_cast<double>(limits_.weight_bytes) / near_rate;
  return inputs;
}

// All that wait count as being like the first.
void Batcher::AddWaiting(const Sequence& head, PlanInputs* inputs) const {
  const uint32_t pages = counts_.Most(head.length);
  size_t room = 0;
  double far_rate = 0;
  for (const HomeState& home : homes_) {
    if (!home.alive || home.near) continue;
    room += home.pages_free / (pages + 1);
    far_rate += home.read_rate;
  }
  inputs->growth = (1 + static_cast<double>(counts_.Most(head.length_max)) / pages) / 2;
  inputs->waiting = static_cast<double>(ready_.size());
  inputs->room = static_cast<double>(std::min(room, limits_.active() - active_count_));
  if (far_rate > 0) inputs->waiting_us = static_cast<double>(limits_.page_bytes * pages) / far_rate;
}

void Batcher::LookAtPlan() {
  const StepPlan plan = ChoosePlan(plan_, InputsOfPlan());
  changes_ += std::exchange(plan_, plan) != plan;
}

// Whether the plan wants a sequence in micro-batch m. Where it wants it in the first, others do if that is full.
// REQUIRES: not kMixed.
bool Batcher::IsFor(int m, bool near) const {
  if (plan_ == StepPlan::kApart && !near) return m > 0;  // full or not: it had better wait
  for (int other = 0; other < m; ++other) {
    if (HasPlace(other)) return false;
  }
  return true;
}

// Whether micro-batch m is the one for a sequence that comes now. Where several are, they grow evenly.
bool Batcher::Takes(int m, bool near) const {
  if (!HasPlace(m)) return false;
  if (plan_ == StepPlan::kMixed) return IsSmallest(m);
  if (!IsFor(m, near)) return false;
  return plan_ != StepPlan::kApart || near || IsSmallest(m, 1);
}

// The micro-batch with a place that has the fewest members of the kind, if it has two fewer than m; else m.
int Batcher::EvenUp(int m, bool near) const {
  int least = m;
  for (int other = 0; other < limits_.micro_batches; ++other) {
    if (HasPlace(other) && Count(other, near) < Count(least, near)) least = other;
  }
  return Count(least, near) + 2 <= Count(m, near) ? least : m;
}

// For a member: where the plan wants it, or where it is. One whose rows are to be pushed stays: they lie in memory of
// its micro-batch.
int Batcher::MicroBatchFor(const Sequence& sequence) const {
  if (sequence.push_home >= 0) return sequence.micro_batch;
  const bool near = LivesNear(sequence);
  if (plan_ == StepPlan::kMixed) return EvenUp(sequence.micro_batch, near);
  if (IsFor(sequence.micro_batch, near)) return sequence.micro_batch;
  for (int m = 0; m < limits_.micro_batches; ++m) {
    if (Takes(m, near)) return m;
  }
  return sequence.micro_batch;
}

// Homes know sequences by their numbers: one may be in any roster.
void Batcher::Move(Sequence* sequence, int m) {
  ++moves_;
  EraseMember(*sequence);
  sequence->rows = 0;  // of a step that may be under way, and so previous_rows of the next
  AddMember(sequence, m);
}

void Batcher::Join(Sequence* sequence, int m, int home) {
  if (const int prefill_home = ChoosePrefillHome(*sequence, home); prefill_home >= 0) {
    if (sequence->length + 1 < sequence->length_max) {  // else its next token is its last: nobody reads its KV again
      sequence->push_home = home;
      sequence->push_pages = counts_.Most(sequence->length);
      homes_[home].pages_free -= sequence->push_pages;
      ++homes_[home].sequences;
    }
    home = prefill_home;
  }
  sequence->home = home;
  sequence->rows = 0;
  sequence->head_since_ns = 0;
  ++homes_[home].sequences;
  ++active_count_;
  AddMember(sequence, m);
  FD_CHECK(TakePages(sequence, counts_.Most(sequence->length)), "placed at a home without room");
}

void Batcher::AddMember(Sequence* sequence, int m) {
  ++changes_;
  MicroBatchState& batch = micro_batches_[m];
  sequence->micro_batch = m;
  batch.members.Append(sequence);
  batch.near_members += LivesNear(*sequence);
  batch.roster_changed[sequence->home] = true;
}

// Of its micro-batch, whose rosters are to be without it.
void Batcher::EraseMember(const Sequence& sequence) {
  ++changes_;
  MicroBatchState& batch = micro_batches_[sequence.micro_batch];
  size_t index = 0;
  while (index < batch.members.size() && batch.members[index] != &sequence) ++index;
  batch.members.Erase(index);
  batch.near_members -= LivesNear(sequence);
  batch.roster_changed[sequence.home] = true;
}

void Batcher::Leave(Sequence* sequence) {
  EraseMember(*sequence);
  ReturnPages(sequence->home, sequence->pages);
  if (sequence->push_home >= 0) ReturnPages(sequence->push_home, sequence->push_pages);
  --active_count_;
  sequence->pages = sequence->pages_after = sequence->push_pages = 0;
  sequence->push_home = -1;
  sequence->computed = 0;
  sequence->home = -1;
  sequence->micro_batch = -1;
  sequence->preempt = false;
}

// Of one sequence that is not there any more.
void Batcher::ReturnPages(int home, uint32_t pages) {
  ++changes_;
  homes_[home].pages_free += pages;
  ++homes_[home].returns;
  --homes_[home].sequences;
}

void Batcher::ReturnToReady(Sequence* sequence) {
  ++changes_;
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

// For so many rows more. A prompt has those of all its rows.
bool Batcher::TakePagesOfStep(Sequence* sequence, uint32_t rows) {
  const uint32_t end = sequence->computed + rows, pages = counts_.OfStep(sequence->computed, end);
  if (!TakePages(sequence, pages)) return false;
  sequence->pages_after = end < sequence->length ? sequence->pages : pages;
  return true;
}

// A home returns pieces of an open page when the step comes whose token begins the next one: that is over now.
void Batcher::ReturnClosedPieces(Sequence* sequence) {
  if (sequence->pages_after == sequence->pages) return;
  ++changes_;
  homes_[sequence->home].pages_free += sequence->pages - sequence->pages_after;
  sequence->pages = sequence->pages_after;
}

// Until it has so many.
bool Batcher::TakePages(Sequence* sequence, uint32_t pages) {
  if (pages <= sequence->pages) return true;
  HomeState& home = homes_[sequence->home];
  const uint32_t more = pages - sequence->pages;
  if (more > home.pages_free) return false;
  ++changes_;
  home.pages_free -= more;
  sequence->pages = sequence->pages_after = pages;
  // One of the pages may have come back since this micro-batch's last roster. The home is certain to have applied that
  // release only once it has taken over a later roster.
  MicroBatchState& batch = micro_batches_[sequence->micro_batch];
  if (home.returns != batch.returns_at_roster[sequence->home]) batch.roster_changed[sequence->home] = true;
  return true;
}

}  // namespace fastdecode
