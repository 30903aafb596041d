#ifndef FASTDECODE_KERNELS_CUDA_SAMPLE_SELECT_CUH_
#define FASTDECODE_KERNELS_CUDA_SAMPLE_SELECT_CUH_

// Where sums over a ranking reach a target: without sorting, by integers, so that the order in which threads come does
// not matter. Most rows need a list of few candidates only; in those that are too flat, bins over the ranking narrow
// down where to look until a list is enough.

#include "kernels/cuda/sample_row.cuh"

namespace fastdecode::simt {

// Makes a list of those tokens that wants(rank, logit). Returns how many there are: more than kListMax are not all in
// it.
template <class Wants>
FD_DEVICE uint32_t Collect(SampleShared& shared, const Row& row, const Wants& wants) {
  if (Thread() == 0) shared.listed = 0;
  SyncBlock();
  ForTokens(row, [&](float logit, int token) {
    const uint64_t rank = Rank(logit, token);
    if (!wants(rank, logit)) return;
    const uint32_t at = AtomicAdd(&shared.listed, 1u);
    if (at >= kListMax) return;
    shared.ranks[at] = rank;
    shared.weights[at] = row.Weight(logit);
  });
  SyncBlock();
  const uint32_t count = shared.listed;
  SyncBlock();
  return count;
}

// What is summed up over tokens.
enum class Measure { kMass, kTokensWithWeight, kTokens };

FD_DEVICE uint64_t Measured(Measure measure, uint64_t weight) {
  return measure == Measure::kMass ? weight : measure == Measure::kTokens ? 1 : weight > 0;
}

// The rank in the list at which the sum in the order of the ranks reaches `target` > 0; kNoRank if none does.
FD_DEVICE_CALL uint64_t ReachInList(SampleShared& shared, uint32_t count, Measure measure, uint64_t target) {
  if (Thread() == 0) shared.found = kNoRank;
  SyncBlock();
  for (uint32_t e = Thread(); e < count; e += Threads()) {
    const uint64_t rank = shared.ranks[e];
    uint64_t before = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (shared.ranks[i] < rank) before += Measured(measure, shared.weights[i]);
    }
    if (before < target && before + Measured(measure, shared.weights[e]) >= target) shared.found = rank;
  }
  SyncBlock();
  const uint64_t found = shared.found;
  SyncBlock();
  return found;
}

struct Reached {
  uint32_t index;   // of the first value with which the sum reaches the target; the number of values if none does
  uint64_t before;  // the sum of those before it
};

// Among the values that a warp's lanes give.
FD_DEVICE Reached ReachInWarp(uint64_t value, uint64_t target) {
  const unsigned lane = Thread() % kWarp;
  uint64_t sum = value;
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const uint64_t lower = ShuffleFrom(sum, lane >= distance ? lane - distance : lane);
    if (lane >= distance) sum += lower;
  }
  const unsigned first = LeastOverWarp(sum >= target ? lane : kWarp);
  return {first, ShuffleFrom(first < kWarp ? sum - value : sum, first < kWarp ? first : kWarp - 1)};
}

// Among the first `count` bins; `before` means nothing if none does.
FD_DEVICE_CALL Reached ReachInBins(SampleShared& shared, uint32_t count, uint64_t target) {
  const unsigned lane = Thread() % kWarp;
  const auto bin = [&](uint32_t group) {
    const uint32_t index = group * kWarp + lane;
    return index < count ? shared.bins[index] : 0;
  };
  for (uint32_t group = Thread() / kWarp; group < kWarp; group += Threads() / kWarp) {
    const uint64_t sum = group * kWarp < count ? SumOverWarp(bin(group)) : 0;
    if (lane == 0) shared.parts[group] = sum;
  }
  SyncBlock();
  if (Thread() < kWarp) {
    const Reached group = ReachInWarp(shared.parts[lane], target);
    Reached within = {0, 0};
    if (group.index < kWarp) within = ReachInWarp(bin(group.index), target - group.before);
    if (lane == 0) {
      shared.found = group.index < kWarp ? group.index * kWarp + within.index : count;
      shared.before = group.before + within.before;
    }
  }
  SyncBlock();
  const Reached reached = {static_cast<uint32_t>(shared.found), shared.before};
  SyncBlock();
  return reached;
}

// Sums a measure of the row's tokens into bins: bin_of(rank, logit), or kBins for none.
template <class BinOf>
FD_DEVICE void FillBins(SampleShared& shared, const Row& row, Measure measure, const BinOf& bin_of) {
  for (uint32_t i = Thread(); i < kBins; i += Threads()) shared.bins[i] = 0;
  SyncBlock();
  ForTokens(row, [&](float logit, int token) {
    const uint32_t bin = bin_of(Rank(logit, token), logit);
    if (bin >= kBins) return;
    const uint64_t amount = Measured(measure, measure == Measure::kTokens ? 0 : row.Weight(logit));
    if (amount > 0) AtomicAdd(&shared.bins[bin], amount);
  });
  SyncBlock();
}

// Which part of a row holds what is looked for.
struct Window {
  uint64_t low, high;  // ranks, both included
  uint64_t target;     // left once all that rank better are summed up
  uint32_t tokens;     // in it, and in the list unless they are more than kListMax
};

// The bin of the window where the target is reached becomes the window.
FD_DEVICE void Narrow(SampleShared& shared, const Row& row, Measure measure, Window* window) {
  int shift = 0;
  while ((window->high - window->low) >> shift >= kBins) ++shift;
  FillBins(shared, row, measure, [&](uint64_t rank, float) {
    const bool inside = rank >= window->low && rank <= window->high;
    return inside ? static_cast<uint32_t>((rank - window->low) >> shift) : kBins;
  });
  const Reached reached = ReachInBins(shared, kBins, window->target);
  window->target -= reached.before;
  window->low += uint64_t{reached.index} << shift;
  const uint64_t last = window->low + ((uint64_t{1} << shift) - 1);
  window->high = last < window->high ? last : window->high;
  window->tokens =
      Collect(shared, row, [&](uint64_t rank, float) { return rank >= window->low && rank <= window->high; });
}

// As ReachInList, over the whole row. Spreads it over bins by what decides about weights, 32 bins a factor of e, the
// last for all beyond.
FD_DEVICE_CALL uint64_t ReachInRow(SampleShared& shared, Row row, Measure measure, uint64_t target) {
  const auto bin_of = [&](float logit) {
    const float bin = (row.max - logit) * row.inverse_temperature * (kBins / 32);
    return bin < kBins - 1 ? static_cast<uint32_t>(bin) : kBins - 1;
  };
  FillBins(shared, row, measure, [&](uint64_t, float logit) { return bin_of(logit); });
  const Reached reached = ReachInBins(shared, kBins, target);
  if (reached.index == kBins) return kNoRank;
  Window window = {kNoRank, 0, target - reached.before, 0};
  window.tokens = Collect(shared, row, [&](uint64_t rank, float logit) {
    if (bin_of(logit) != reached.index) return false;
    window.low = rank < window.low ? rank : window.low;
    window.high = rank > window.high ? rank : window.high;
    return true;
  });
  if (window.tokens > kListMax) {
    window.low = LeastOverBlock(window.low, shared.parts);
    window.high = MostOverBlock(window.high, shared.parts);
    while (window.tokens > kListMax) Narrow(shared, row, measure, &window);
  }
  return ReachInList(shared, window.tokens, measure, window.target);
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_SAMPLE_SELECT_CUH_
