// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/placer.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace fastdecode {

namespace {
// So long may a sequence be the first of those that wait, for near ones to end, while a far home has room for it.
constexpr uint64_t kHeadWaitNs = 5'000'000'000;
// So long does a refusal hold of which nothing has changed but the time.
constexpr uint64_t kRefusalNs = 100'000;
// Another number of micro-batches is used once it was so much faster for so many steps on end.
constexpr double kCountGainMin = 1.03;
constexpr int kCountSteps = 64;
// For so many steps an answer's home counts, at most, against the time that its prompt need not take there.
constexpr uint32_t kStepsOfAnswer = 256;

StepCostTracker::Start StartOfCosts(const BatchLimits& limits) {
  StepCostTracker::Start start;
  if (limits.calibrated != nullptr) start.calibrated = *limits.calibrated;
  start.layers = limits.layers;
  start.micro_batches = limits.micro_batches;
  start.weight_bytes = static_cast<double>(limits.weight_bytes);
  start.kv_token_bytes = static_cast<double>(limits.page_bytes) / kPageTokens / limits.layers;
  return start;
}
}  // namespace

Placer::Placer(const BatchLimits& limits, const HomeLedger* ledger, const PrefixCache* cache,
               const MicroBatches* micro_batches, const FixedVector<Sequence*>* ready)
    : limits_(limits),
      ledger_(*ledger),
      cache_(*cache),
      micro_batches_(*micro_batches),
      ready_(*ready),
      counts_(ledger->counts()),
      costs_(StartOfCosts(limits)) {
  // The pieces of an open page that was closed in the step before still count.
  for (uint32_t tokens = 0; tokens < pages_counted_.size(); ++tokens) {
    pages_counted_[tokens] = tokens == 0 ? 0 : counts_.OfStep(tokens - 1, tokens);
    if (tokens > 1) pages_counted_[tokens] = std::max(pages_counted_[tokens], counts_.OfStep(tokens - 2, tokens - 1));
  }
}

void Placer::AddHome(int home, uint32_t read_rate, PushRole push, bool near) {
  homes_[home] = HomeFacts{.alive = true, .number = ++arrivals_, .read_rate = read_rate, .push = push, .near = near};
  costs_.AddHome(home, read_rate, near);  // a MB/s is a byte a us
  LookAtHomes();
}

void Placer::LoseHome(int home) {
  homes_[home].alive = false;
  homes_[home].lost = true;
  LookAtHomes();
}

void Placer::CloseHome(int home) {
  homes_[home].closed = true;
  LookAtHomes();
}

void Placer::ExpectHome(int home, bool may_come) {
  homes_[home].lost = may_come;
  homes_[home].closed = false;
  ++changes_;
}

bool Placer::FitsSomewhere(const Sequence& sequence) const {
  const uint32_t pages = counts_.Most(sequence.length_max);
  for (int h = 0; h < kMaxHomes; ++h) {
    if (homes_[h].takes_new() && ledger_.pages_total(h) >= pages) return true;
  }
  return false;
}

// The oldest that waits, but for those that can only wait until a home has come back; ready_.size(): there is none.
size_t Placer::FindHead() const {
  if (!HomesMissing()) return 0;
  const auto fits = [this](const Sequence* sequence) { return FitsSomewhere(*sequence); };
  return static_cast<size_t>(std::find_if(ready_.begin(), ready_.end(), fits) - ready_.begin());
}

bool Placer::HomesMissing() const {
  const auto is_missing = [](const HomeFacts& home) { return home.lost || home.closed; };
  return homes_alive() == 0 || std::any_of(homes_.begin(), homes_.end(), is_missing);
}

int Placer::homes_alive() const {
  int alive = 0;
  for (const HomeFacts& home : homes_) alive += home.alive;
  return alive;
}

void Placer::LookAtHomes() {
  ++changes_;
  bool near = false, known = limits_.weight_bytes > 0 && limits_.page_bytes > 0;
  for (const HomeFacts& home : homes_) {
    if (!home.alive) continue;
    near |= home.near;
    known &= home.read_rate > 0;
  }
  planned_ = near && known;
  counts_only_ = !planned_ && limits_.adapts;
  other_count_better_ = 0;
  if (counts_only_ && plan_ != StepPlan::kTogether) plan_ = StepPlan::kMixed;
}

// All rates are known, and so far apart that it matters.
bool Placer::RatesDiffer() const {
  uint32_t least = UINT32_MAX, most = 0;
  for (const HomeFacts& home : homes_) {
    if (!home.takes_new()) continue;
    least = std::min(least, home.read_rate);
    most = std::max(most, home.read_rate);
  }
  return least > 0 && most / 2 > least;
}

// What a home has left once it holds so many pages more. All homes take part in every step: where rates differ, the one
// whose KV is then read soonest keeps steps shortest. Else the free share, which also keeps preemptions far.
double Placer::Spare(int home, uint32_t pages, bool by_rate) const {
  if (by_rate) return -static_cast<double>(ledger_.pages_needed(home) + pages) / homes_[home].read_rate;
  return (static_cast<double>(ledger_.pages_available(home)) - pages) / ledger_.pages_total(home);
}

// The watermark: every sequence there can grow by a page's tokens before somebody has to go. An empty home takes any.
// Without open pages that is a page each.
bool Placer::HasRoom(int home, uint32_t pages) const {
  const uint32_t free = ledger_.pages_available(home);
  if (!homes_[home].takes_new() || free < pages + ledger_.holders(home)) return false;
  return !counts_.open_pages() || free >= pages + GrowthOf(home);
}

// The pages that a home's sequences will take besides those that they have, at most at once, while each grows by a
// page's tokens: those of open pages come and go, of sequences of like length together.
uint32_t Placer::GrowthOf(int home) const {
  uint32_t sequences[kPageTokens] = {};  // those that decode, by tokens in the last page
  uint32_t others = 0, held = 0;         // pages: of full ones and of prompts; all
  for (int m = 0; m < micro_batches_.count(); ++m) {
    for (const Sequence* sequence : micro_batches_.MembersAt(m, home)) {
      const uint32_t pages = ledger_.pages(sequence->seat.holder);
      held += pages;
      if (sequence->length - sequence->computed > 1) {  // it has the most that its prompt takes, until that is over
        others += pages + 1;
        continue;
      }
      ++sequences[sequence->length % kPageTokens];
      others += sequence->length / kPageTokens;
    }
  }
  uint32_t most = held + ledger_.holders(home);
  for (uint32_t more = 1; more <= kPageTokens; ++more) {
    uint32_t pages = others;
    for (uint32_t i = 0; i < kPageTokens; ++i) pages += sequences[i] * pages_counted_[i + more];
    most = std::max(most, pages);
  }
  return most - held;
}

// Who computes the prompt of a sequence of `home` and pushes it there; -1: the home itself does. For a prompt of a page
// the way there and back is not worth it.
int Placer::ChoosePrefillHome(const Sequence& sequence, int home) const {
  if (homes_[home].push != PushRole::kStores || sequence.length <= kPageTokens || sequence.fill_tokens > 0) return -1;
  if (sequence.next_follower != nullptr) return -1;  // followers begin at once, with its pages
  for (int h = 0; h < kMaxHomes; ++h) {
    if (homes_[h].push == PushRole::kComputes && HasRoom(h, counts_.Most(sequence.length))) return h;
  }
  return -1;
}

// Pages that a sequence needs beside those that others need already. With a hit that ends in a page, it copies that.
uint32_t Placer::PagesBeside(const Sequence& sequence, const PrefixHit& hit) const {
  const uint32_t pages = counts_.Most(sequence.length);
  if (hit.tokens == 0) return pages;
  const uint32_t found = counts_.Closed(hit.tokens), copied = hit.tokens % kPageTokens != 0 ? 1 : 0;
  return pages - (found - ledger_.CountIdle(hit.source, found)) + copied;
}

// Whether most of it is stored at the home.
bool Placer::IsFoundAt(const Sequence& sequence, int home) const {
  return cache_.on() && 2 * cache_.Find(sequence, home).tokens >= sequence.length;
}

// The home with the most to spare, among those that can hold its tokens and a page more of each sequence that they
// have; -1: there is none now. Where some of its tokens are stored already, the home where it costs least.
int Placer::PlaceSequence(const Sequence& sequence, Kind kind) const {
  std::array<PrefixHit, kMaxHomes> hits;
  bool found = false;
  const uint32_t pages = counts_.Most(sequence.length);
  for (int h = 0; h < kMaxHomes && cache_.on(); ++h) {
    if (!HasRoom(h, 1)) continue;
    hits[h] = cache_.Find(sequence, h);
    found |= hits[h].tokens > 0;
  }
  const PlanInputs inputs = found ? InputsOfPlan() : PlanInputs();
  MicroBatchLoad with = inputs.held;  // with it at each home that may take it
  for (int h = 0; h < kMaxHomes && found; ++h) with.homes[h].sequences += HasRoom(h, 1);
  const bool by_cost = found && costs_.Knows(with);
  const bool by_rate = RatesDiffer();
  // Nobody knows when an answer ends.
  const double steps = std::min((sequence.length_max - sequence.length) / 2, kStepsOfAnswer);
  int best = -1;
  std::tuple<double, uint32_t, double> least;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (kind != Kind::kAny && homes_[h].near != (kind == Kind::kNear)) continue;
    if (ledger_.pages_total(h) < counts_.Most(sequence.length_max)) continue;
    const uint32_t beside = PagesBeside(sequence, hits[h]);
    if (!HasRoom(h, beside)) continue;
    const HomeLoad more = {.sequences = 1, .tokens = static_cast<double>(beside) * kPageTokens};
    const double cost_us = by_cost ? CostOfHome(inputs, h, more, steps, hits[h].tokens, limits_.chunk_tokens_max) : 0;
    const std::tuple<double, uint32_t, double> cost = {cost_us, sequence.length - hits[h].tokens,
                                                       -Spare(h, pages, by_rate)};
    if (best >= 0 && cost >= least) continue;
    best = h;
    least = cost;
  }
  return best;
}

// The home that has been there for the longest, among those that could hold the sequence, if it has room now; -1: it
// has not, or the micro-batch is not for its sequences.
int Placer::PlaceAtLongestLived(const Sequence& sequence, int m) const {
  int best = -1;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (!homes_[h].takes_new() || ledger_.pages_total(h) < counts_.Most(sequence.length_max)) continue;
    if (best < 0 || homes_[h].number < homes_[best].number) best = h;
  }
  if (best < 0 || !HasRoom(best, counts_.Most(sequence.length))) return -1;
  const bool by_plan = planned_ || counts_only_;
  return (by_plan ? Takes(m, homes_[best].near) : micro_batches_.IsSmallest(m)) ? best : -1;
}

// A prompt that is half stored where it is to live is not pushed there, nor is one for whose pages there is room only
// as far as they are not stored.
Seats Placer::SeatsAt(const Sequence& sequence, int home) const {
  const PrefixHit hit = cache_.on() ? cache_.Find(sequence, home) : PrefixHit();
  const bool at_home = sequence.KeepsLosingHomes() || 2 * hit.tokens >= sequence.length ||
                       (hit.tokens > 0 && !HasRoom(home, counts_.Most(sequence.length)));
  const int prefill_home = at_home ? -1 : ChoosePrefillHome(sequence, home);
  if (prefill_home < 0) return {.home = home, .hit = hit};
  // With its next token as its last, nobody reads its KV again.
  if (sequence.length + 1 >= sequence.length_max) return {.home = prefill_home};
  return {.home = prefill_home, .push_home = home};
}

// A micro-batch without rows asks in each turn of the pipeline: the last answer holds as long as it must be the same.
Seats Placer::PlaceHead(int m, uint64_t now_ns, uint64_t changes, size_t* head) {
  Refusal& refusal = refusals_[m];
  if (refusal.changes == changes && now_ns - refusal.at_ns < kRefusalNs) return {};
  ++looks_;
  *head = FindHead();
  if (*head < ready_.size()) cache_.PrepareLookup(ready_[*head]);
  int home = -1;
  if (*head == ready_.size()) {
    // All of them wait for a home that was lost.
  } else if (ready_[*head]->KeepsLosingHomes()) {
    home = PlaceAtLongestLived(*ready_[*head], m);
  } else if (planned_) {
    home = PlaceByPlan(*ready_[*head], m, now_ns);
  } else if (counts_only_ ? Takes(m, /*near=*/false) : micro_batches_.IsSmallest(m)) {
    home = PlaceSequence(*ready_[*head], Kind::kAny);
  }
  if (home >= 0) return SeatsAt(*ready_[*head], home);
  refusal = {changes, now_ns};
  return {};
}

// Near as long as there is room, or as that is better. Else it waits for that, or goes to a far home: as is best for
// all that wait. Whoever is computed near goes where near ones are.
int Placer::PlaceByPlan(Sequence& head, int m, uint64_t now_ns) {
  if (head.head_since_ns == 0) head.head_since_ns = now_ns;
  PlanInputs inputs = InputsOfPlan();
  if (!HasFar(inputs)) plan_ = StepPlan::kNear;
  const int near = PlaceSequence(head, Kind::kNear);
  if (near >= 0 && limits_.near_first) return Takes(m, /*near=*/true) ? near : -1;
  const int home = PlaceSequence(head, Kind::kFar);
  if (home < 0 && near < 0) return -1;
  StepPlan plan = plan_;
  if (near >= 0) {
    const HomeLoad more = {.sequences = 1, .tokens = static_cast<double>(counts_.Most(head.length)) * kPageTokens};
    const bool found_near = IsFoundAt(head, near), found_far = home >= 0 && IsFoundAt(head, home);
    const bool goes_far = found_near != found_far ? found_far : home >= 0 && IsBetterFar(inputs, more, near, home);
    if (!goes_far) return Takes(m, /*near=*/true) ? near : -1;
    inputs.held.homes[home].sequences += more.sequences;
    inputs.held.homes[home].tokens += more.tokens;
    plan = ChoosePlan(plan_, inputs);
  } else {
    AddWaiting(head, &inputs);
    const Placement placement = ChoosePlacement(plan_, inputs, MustGoFar(head, now_ns));
    if (!placement.far) return -1;
    plan = placement.plan;
  }
  const StepPlan held = std::exchange(plan_, plan);
  if (Takes(m, /*near=*/SeatsAt(head, home).home != home)) return home;
  plan_ = held;  // it holds from when the first goes by it
  return -1;
}

// Whether no near home could ever hold it, or it has been the first for so long that the others might never end.
bool Placer::MustGoFar(const Sequence& head, uint64_t now_ns) const {
  if (now_ns - head.head_since_ns > kHeadWaitNs) return true;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (homes_[h].takes_new() && homes_[h].near && ledger_.pages_total(h) >= counts_.Most(head.length_max))
      return false;
  }
  return true;
}

// What a plan is made of, for the sequences that are at homes. REQUIRES: planned_.
PlanInputs Placer::InputsOfPlan() const {
  PlanInputs inputs;
  inputs.costs = &costs_.costs();
  inputs.micro_batches = limits_.micro_batches;
  for (int h = 0; h < kMaxHomes; ++h) {
    if (!homes_[h].alive) continue;
    inputs.held.homes[h].sequences = ledger_.holders(h);
    inputs.held.homes[h].tokens = static_cast<double>(ledger_.pages_needed(h)) * kPageTokens;
  }
  return inputs;
}

// All that wait count as being like the first.
void Placer::AddWaiting(const Sequence& head, PlanInputs* inputs) const {
  const uint32_t pages = counts_.Most(head.length);
  size_t room = 0;
  double far_rate = 0;
  const auto is_open = [](const HomeFacts& home) { return home.takes_new() && !home.near; };
  for (int h = 0; h < kMaxHomes; ++h) {
    if (!is_open(homes_[h])) continue;
    room += ledger_.pages_available(h) / (pages + 1);
    far_rate += homes_[h].read_rate;
  }
  inputs->growth = (1 + static_cast<double>(counts_.Most(head.length_max)) / pages) / 2;
  inputs->waiting = static_cast<double>(ready_.size());
  inputs->room = static_cast<double>(std::min(room, limits_.active() - micro_batches_.active()));
  for (int h = 0; h < kMaxHomes; ++h) {
    if (!is_open(homes_[h])) continue;
    const double share = homes_[h].read_rate / far_rate;
    inputs->each.homes[h] = {share, share * pages * kPageTokens};
  }
}

// Whether all sequences sit in one micro-batch, or evenly in all of them.
void Placer::ChooseCount() {
  const PlanInputs inputs = InputsOfPlan();
  if (micro_batches_.active() < 2 || !costs_.Knows(inputs.held)) {
    other_count_better_ = 0;
    return;
  }
  const bool together = plan_ == StepPlan::kTogether;
  const double gain = GainTogether(inputs);
  other_count_better_ = (together ? 1 / gain : gain) > kCountGainMin ? other_count_better_ + 1 : 0;
  if (other_count_better_ < kCountSteps) return;
  plan_ = together ? StepPlan::kMixed : StepPlan::kTogether;
  other_count_better_ = 0;
  ++changes_;
}

bool Placer::Replan() {
  if (counts_only_) ChooseCount();
  if (!planned_) return counts_only_;
  const StepPlan plan = ChoosePlan(plan_, InputsOfPlan());
  changes_ += std::exchange(plan_, plan) != plan;
  return true;
}

// Whether the plan wants a sequence in micro-batch m. Where it wants it in the first, others do if that is full.
// REQUIRES: not kMixed.
bool Placer::IsFor(int m, bool near) const {
  if (plan_ == StepPlan::kApart && !near) return m > 0;  // full or not: it had better wait
  for (int other = 0; other < m; ++other) {
    if (micro_batches_.HasPlace(other)) return false;
  }
  return true;
}

// Whether micro-batch m is the one for a sequence that comes now. Where several are, they grow evenly.
bool Placer::Takes(int m, bool near) const {
  if (!micro_batches_.HasPlace(m)) return false;
  if (plan_ == StepPlan::kMixed) return micro_batches_.IsSmallest(m);
  if (!IsFor(m, near)) return false;
  return plan_ != StepPlan::kApart || near || micro_batches_.IsSmallest(m, 1);
}

// The micro-batch with a place that has the fewest members of the kind, if it has two fewer than m; else m. Where no
// plan was made for near and far ones, it has to have fewer by more than an eighth: who moves sits out a step.
int Placer::EvenUp(int m, bool near) const {
  int least = m;
  for (int other = 0; other < micro_batches_.count(); ++other) {
    if (micro_batches_.HasPlace(other) && micro_batches_.Count(other, near) < micro_batches_.Count(least, near)) {
      least = other;
    }
  }
  const size_t here = micro_batches_.Count(m, near), difference = counts_only_ ? 2 + here / 8 : 2;
  return micro_batches_.Count(least, near) + difference <= here ? least : m;
}

// One whose rows are to be pushed stays: they lie in memory of its micro-batch.
int Placer::MicroBatchFor(const Sequence& sequence) const {
  if (sequence.push.seat.home >= 0) return sequence.micro_batch;
  const bool near = IsNear(sequence);
  if (plan_ == StepPlan::kMixed) return EvenUp(sequence.micro_batch, near);
  if (IsFor(sequence.micro_batch, near)) return sequence.micro_batch;
  for (int m = 0; m < micro_batches_.count(); ++m) {
    if (Takes(m, near)) return m;
  }
  return sequence.micro_batch;
}

}  // namespace fastdecode
