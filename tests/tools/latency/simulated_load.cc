#include "tests/tools/latency/simulated_load.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace fastdecode {

SimulatedLoad::SimulatedLoad(const SimulatedRequests& requests, int micro_batches, std::vector<double> home_weights,
                             uint64_t seed)
    : requests_(requests),
      home_weights_(std::move(home_weights)),
      random_(seed),
      members_(static_cast<size_t>(micro_batches)),
      away_(home_weights_.size()) {}

void SimulatedLoad::Submit(double at) {
  SimulatedSequence sequence;
  sequence.id = next_id_++;
  const auto between = [this](int low, int high) {
    return static_cast<uint32_t>(std::uniform_int_distribution<int>(low, high)(random_));
  };
  sequence.prompt = between(requests_.prompt_min, requests_.prompt_max);
  sequence.output = between(requests_.output_min, requests_.output_max);
  sequence.submitted = at;
  const auto at_ns = static_cast<uint64_t>(at);
  starts_.push_back({.id = sequence.id, .intended_ns = at_ns, .submit_ns = at_ns});
  const auto later =
      std::find_if(ready_.begin(), ready_.end(), [at](const SimulatedSequence& other) { return other.submitted > at; });
  ready_.insert(later, sequence);
}

void SimulatedLoad::FillOpenLoop(double now) {
  if (requests_.arrivals_per_s <= 0) return;
  // One that has not come yet is always known.
  while (next_open_ <= now) {
    next_open_ += std::exponential_distribution<double>(requests_.arrivals_per_s * 1e-9)(random_);
    Submit(next_open_);
  }
}

void SimulatedLoad::WarmUp(double now) {
  next_open_ = now;
  FillOpenLoop(now);
  if (requests_.arrivals_per_s > 0) return;
  for (int i = 0; i < requests_.sequences; ++i) {
    Submit(now);
    SimulatedSequence sequence = ready_.front();
    ready_.pop_front();
    sequence.generated = static_cast<uint32_t>(std::uniform_real_distribution<double>(0, sequence.output)(random_));
    sequence.computed = sequence.prompt - 1 + sequence.generated;
    Place(sequence, i % static_cast<int>(members_.size()));
  }
}

bool SimulatedLoad::Empty() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& members) { return members.empty(); });
}

std::vector<IntendedStart> SimulatedLoad::StartsUntil(double now) const {
  std::vector<IntendedStart> starts = starts_;
  std::erase_if(starts, [now](const IntendedStart& start) { return static_cast<double>(start.submit_ns) > now; });
  return starts;
}

double SimulatedLoad::NextArrival(double now) const {
  return ready_.empty() || ready_.front().submitted <= now ? kNever : ready_.front().submitted;
}

bool SimulatedLoad::MayJoin(int micro_batch) const {
  const size_t here = members_[static_cast<size_t>(micro_batch)].size();
  size_t all = 0;
  for (const auto& members : members_) {
    all += members.size();
    if (members.size() < here) return false;
  }
  return all < static_cast<size_t>(requests_.sequences);
}

void SimulatedLoad::Place(SimulatedSequence sequence, int micro_batch) {
  std::vector<double> filled(home_weights_.size(), 0);  // as a share of what is meant for the home
  for (const auto& members : members_) {
    for (const SimulatedSequence& member : members) {
      const auto home = static_cast<size_t>(member.home);
      filled[home] += std::max(member.prompt, member.computed) / home_weights_[home];
    }
  }
  for (size_t home = 0; home < filled.size(); ++home) {
    if (away_[home]) filled[home] = kNever;
  }
  sequence.home = static_cast<int>(std::min_element(filled.begin(), filled.end()) - filled.begin());
  members_[static_cast<size_t>(micro_batch)].push_back(sequence);
}

void SimulatedLoad::DropLost(int micro_batch, double now) {
  left_.clear();
  auto& members = members_[static_cast<size_t>(micro_batch)];
  for (size_t i = 0; i < members.size();) {
    if (!IsAway(members[i].home)) {
      ++i;
      continue;
    }
    left_.push_back(members[i]);
    members.erase(members.begin() + static_cast<ptrdiff_t>(i));
  }
  for (SimulatedSequence sequence : left_) {
    sequence.left = now;
    sequence.computed = 0;
    const auto younger = std::find_if(ready_.begin(), ready_.end(),
                                      [&](const SimulatedSequence& other) { return other.id > sequence.id; });
    ready_.insert(younger, sequence);
  }
}

std::vector<SimulatedSequence>& SimulatedLoad::Compose(int micro_batch, double now) {
  FillOpenLoop(now);
  DropLost(micro_batch, now);
  joined_.clear();
  const bool room = std::find(away_.begin(), away_.end(), false) != away_.end();
  while (room && !ready_.empty() && ready_.front().submitted <= now && MayJoin(micro_batch)) {
    SimulatedSequence sequence = ready_.front();
    ready_.pop_front();
    if (requests_.prefill_chunk == 0) sequence.computed = sequence.prompt + sequence.generated - 1;
    Place(sequence, micro_batch);
    joined_.push_back(members_[static_cast<size_t>(micro_batch)].back());
  }
  std::vector<SimulatedSequence>& members = members_[static_cast<size_t>(micro_batch)];
  uint32_t chunk_left = static_cast<uint32_t>(std::max(1, requests_.prefill_chunk));
  for (SimulatedSequence& sequence : members) {
    const uint32_t known = sequence.prompt + sequence.generated;
    sequence.rows = known - sequence.computed == 1 ? 1 : std::min(chunk_left, known - sequence.computed);
    if (known - sequence.computed > 1) chunk_left -= sequence.rows;
  }
  return members;
}

void SimulatedLoad::Leave(int micro_batch, size_t member, double delivered) {
  auto& members = members_[static_cast<size_t>(micro_batch)];
  starts_[members[member].id - 1].ended_ns = static_cast<uint64_t>(delivered);
  members.erase(members.begin() + static_cast<ptrdiff_t>(member));
  if (requests_.arrivals_per_s <= 0) Submit(delivered);
}

}  // namespace fastdecode
