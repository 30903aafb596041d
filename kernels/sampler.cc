#include "kernels/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/sampling_math.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

using Candidate = SampleScratch::Candidate;

constexpr int kBlock = 64;          // tokens that share one maximum: a search for large logits skips most blocks
constexpr int kFirstNucleus = 256;  // where top-p alone looks first
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits on their way to a token. `max` and `best` are Scan's.
struct Row {
  const float* logits;
  int vocab;
  SampleScratch* scratch;
  float inverse_temperature = 1;
  float max = 0;  // the largest logit
  int best = 0;   // its lowest token

  uint64_t Weight(float logit) const { return FixedExp((logit - max) * inverse_temperature); }
  int blocks() const { return (vocab + kBlock - 1) / kBlock; }
  int BlockEnd(int block) const { return std::min(vocab, (block + 1) * kBlock); }
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// One pass over the row: the block maxima, and the row's largest logit.
SampleOutcome Scan(Row* row) {
  int32_t largest = std::numeric_limits<int32_t>::min();
  int32_t not_nan = 0;  // negative once a NaN was seen
  for (int block = 0; block < row->blocks(); ++block) {
    int32_t block_max = std::numeric_limits<int32_t>::min();
    for (int i = block * kBlock; i < row->BlockEnd(block); ++i) {
      not_nan |= 0x7f800000 - (std::bit_cast<int32_t>(row->logits[i]) & 0x7fffffff);
      block_max = std::max(block_max, OrderKey(row->logits[i]));
    }
    row->scratch->block_max[block] = block_max;
    largest = std::max(largest, block_max);
  }
  if (not_nan < 0 || largest == OrderKey(kInfinity)) return SampleOutcome::kBadLogits;
  if (largest == OrderKey(-kInfinity)) return SampleOutcome::kNoCandidate;
  int block = 0;
  while (row->scratch->block_max[block] != largest) ++block;
  row->best = block * kBlock;
  while (OrderKey(row->logits[row->best]) != largest) ++row->best;
  row->max = row->logits[row->best];
  return SampleOutcome::kToken;
}

// The weights of all tokens, summed per block and in total.
uint64_t SumWeights(const Row& row) {
  uint64_t total = 0;
  for (int block = 0; block < row.blocks(); ++block) {
    uint64_t mass = 0;
    for (int i = block * kBlock; i < row.BlockEnd(block); ++i) mass += row.Weight(row.logits[i]);
    row.scratch->block_mass[block] = mass;
    total += mass;
  }
  return total;
}

// All tokens whose key is at least `key` become candidates. Returns how many.
int CollectFrom(const Row& row, int32_t key) {
  int count = 0;
  for (int block = 0; block < row.blocks(); ++block) {
    if (row.scratch->block_max[block] < key) continue;
    for (int i = block * kBlock; i < row.BlockEnd(block); ++i) {
      if (OrderKey(row.logits[i]) < key) continue;
      row.scratch->candidates[count++] = {row.logits[i], i, row.Weight(row.logits[i])};
    }
  }
  return count;
}

// At least `count` candidates (all, if the row has fewer tokens), every one ranking before all other tokens.
// The count-th largest block maximum bounds the count-th largest logit from below.
int CollectLargest(const Row& row, int count) {
  if (count > row.blocks()) return CollectFrom(row, std::numeric_limits<int32_t>::min());
  int32_t* ranked = row.scratch->ranked_max.get();
  std::copy_n(row.scratch->block_max.get(), row.blocks(), ranked);
  std::nth_element(ranked, ranked + count - 1, ranked + row.blocks(), std::greater<>());
  return CollectFrom(row, ranked[count - 1]);
}

uint64_t Mass(const Candidate* candidates, int count) {
  uint64_t mass = 0;
  for (int i = 0; i < count; ++i) mass += candidates[i].weight;
  return mass;
}

// The fewest best candidates whose weights reach `mass` (at least one; all if they do not): moves them to the front,
// the one that reaches it last, and returns their number. Expected linear time.
int PrefixReaching(Candidate* candidates, int count, uint64_t mass) {
  int low = 0, high = count;  // the last one of the prefix lies in [low, high)
  uint64_t reached = 0;       // by [0, low)
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    std::nth_element(candidates + low, candidates + middle, candidates + high, Better);
    const uint64_t half = Mass(candidates + low, middle - low);
    if (reached + half >= mass) {
      high = middle;
    } else {
      reached += half;
      low = middle;
    }
  }
  return low + 1;
}

// Where a row is cut: what ranks at or above `last` is kept.
struct Cut {
  Candidate last;
  uint64_t mass;  // weight of all that is kept

  bool Keeps(float logit, int token) const {
    return logit > last.logit || (logit == last.logit && token <= last.token);
  }
};

// The nucleus of `mass` in a row that is too flat for the largest few logits to hold it: a histogram over the logits
// finds the bucket with the cut, only that one is ranked.
Cut CutFlatRow(const Row& row, uint64_t mass) {
  constexpr int kBuckets = 1024;
  const auto bucket_of = [&row](float logit) {  // ascending with falling logits; e^-32 in the last one
    const float bucket = (row.max - logit) * row.inverse_temperature * (kBuckets / 32);
    return bucket < kBuckets - 1 ? static_cast<int>(bucket) : kBuckets - 1;
  };
  uint64_t bucket_mass[kBuckets] = {};
  for (int i = 0; i < row.vocab; ++i) bucket_mass[bucket_of(row.logits[i])] += row.Weight(row.logits[i]);
  uint64_t above = 0;
  int bucket = 0;
  for (; above + bucket_mass[bucket] < mass; ++bucket) above += bucket_mass[bucket];
  Candidate* candidates = row.scratch->candidates.get();
  int count = 0;
  for (int i = 0; i < row.vocab; ++i) {
    if (bucket_of(row.logits[i]) == bucket) candidates[count++] = {row.logits[i], i, row.Weight(row.logits[i])};
  }
  const int kept = PrefixReaching(candidates, count, mass - above);
  return {candidates[kept - 1], above + Mass(candidates, kept)};
}

// top_p where nothing else limits the row.
Cut CutTopP(const Row& row, float top_p) {
  const uint64_t mass = Share(top_p, SumWeights(row));
  const int count = CollectLargest(row, kFirstNucleus);
  Candidate* candidates = row.scratch->candidates.get();
  if (Mass(candidates, count) < mass) return CutFlatRow(row, mass);
  const int kept = PrefixReaching(candidates, count, mass);
  return {candidates[kept - 1], Mass(candidates, kept)};
}

// A logit below which no token has min_p of the best one's probability; a little low, so that rounding does not matter.
float MinPBound(const Row& row, float min_p) {
  const double bound = row.max + (std::log(double{min_p}) - 0.01) / row.inverse_temperature;
  return static_cast<float>(bound - 1e-5 * std::abs(double{row.max}));
}

// Ranks the candidates down to the last one that has min_p of the best one's weight. Returns how many are left, that
// one last.
int KeepLikely(Candidate* candidates, int count, float min_p) {
  const uint64_t least = LeastWeight(min_p);
  Candidate last = {kInfinity, 0, 0};
  for (int i = 0; i < count; ++i) {
    if (candidates[i].weight >= least && Better(last, candidates[i])) last = candidates[i];
  }
  Candidate* end = std::partition(candidates, candidates + count,
                                  [&last](const Candidate& candidate) { return Better(candidate, last); });
  *end = last;  // what stood here ranks below, or is `last`
  return static_cast<int>(end - candidates) + 1;
}

// Applies top-k, min-p and top-p. The first two each keep a prefix of one ranking: their order does not matter.
Cut CutRow(const Row& row, const SamplingParams& params) {
  Candidate* candidates = row.scratch->candidates.get();
  int count;
  if (HasTopK(params, row.vocab)) {
    count = CollectLargest(row, params.top_k);
    std::nth_element(candidates, candidates + params.top_k - 1, candidates + count, Better);
    count = params.top_k;
  } else if (params.min_p > 0) {
    count = CollectFrom(row, OrderKey(MinPBound(row, params.min_p)));
  } else {
    return CutTopP(row, params.top_p);
  }
  if (params.min_p > 0) count = KeepLikely(candidates, count, params.min_p);
  if (params.top_p < 1) count = PrefixReaching(candidates, count, Share(params.top_p, Mass(candidates, count)));
  return {candidates[count - 1], Mass(candidates, count)};
}

// Inverts the cumulated weights of what the cut keeps, in the order of the token ids.
int DrawAbove(const Row& row, const Cut& cut, uint64_t random) {
  uint64_t target = Below(cut.mass, random);
  const int32_t key = OrderKey(cut.last.logit);
  for (int block = 0; block < row.blocks(); ++block) {
    if (row.scratch->block_max[block] < key) continue;
    for (int i = block * kBlock; i < row.BlockEnd(block); ++i) {
      if (!cut.Keeps(row.logits[i], i)) continue;
      const uint64_t weight = row.Weight(row.logits[i]);
      if (target < weight) return i;
      target -= weight;
    }
  }
  FD_CHECK(false, "a cut's mass is that of the tokens it keeps");
}

// The same for a row that nothing cuts.
int DrawFromAll(const Row& row, uint64_t random) {
  uint64_t target = Below(SumWeights(row), random);
  int block = 0;
  for (; target >= row.scratch->block_mass[block]; ++block) target -= row.scratch->block_mass[block];
  int token = block * kBlock;
  for (; target >= row.Weight(row.logits[token]); ++token) target -= row.Weight(row.logits[token]);
  return token;
}

int Draw(const Row& row, const SamplingParams& params, uint64_t random) {
  return CutsRow(params, row.vocab) ? DrawAbove(row, CutRow(row, params), random) : DrawFromAll(row, random);
}

void ApplyPenalties(const SampleArgs& args, float* logits) {
  FD_CHECK(args.history != nullptr, "penalties need the sequence's history");
  for (int base = 0; base < args.vocab; base += 64) {
    const uint16_t* counts = args.history->output_counts + base;
    const int tokens = std::min(64, args.vocab - base);
    uint16_t any = 0;
    for (int i = 0; i < tokens; ++i) any |= counts[i];
    uint64_t seen = args.history->prompt_seen[base / 64];
    for (int i = 0; any != 0 && i < tokens; ++i) seen |= uint64_t{counts[i] != 0} << i;
    for (; seen != 0; seen &= seen - 1) {
      const int i = std::countr_zero(seen);
      logits[base + i] = Penalised(logits[base + i], *args.params, counts[i]);
    }
  }
}

bool ChangesLogits(const SampleArgs& args) {
  return !args.allowed.empty() || !args.banned.empty() || !args.bias.empty() || HasPenalties(*args.params);
}

// The row with allowed and banned ids, bias and penalties applied, in the scratch.
const float* ChangeLogits(const SampleArgs& args) {
  float* logits = args.scratch->logits.get();
  if (args.allowed.empty()) {
    std::copy_n(args.logits, args.vocab, logits);
  } else {
    std::fill_n(logits, args.vocab, -kInfinity);
    for (const int32_t token : args.allowed) logits[token] = args.logits[token];
  }
  for (const int32_t token : args.banned) logits[token] = -kInfinity;
  for (const LogitBias& bias : args.bias) logits[bias.token] += bias.bias;
  if (HasPenalties(*args.params)) ApplyPenalties(args, logits);
  return logits;
}

// The n most likely tokens in order. Returns how many there are.
int ReportTop(const Row& row, int n, double log_total, TokenLogprob* out) {
  if (n <= 0) return 0;
  n = std::min(n, row.vocab);
  Candidate* candidates = row.scratch->candidates.get();
  const int count = CollectLargest(row, n);
  std::partial_sort(candidates, candidates + n, candidates + count, Better);
  for (int i = 0; i < n; ++i) out[i] = {candidates[i].token, Logprob(candidates[i].logit, row.max, log_total)};
  return n;
}

}  // namespace

SampleScratch::SampleScratch(int vocab)
    : vocab(vocab),
      logits(new float[vocab]),
      block_max(new int32_t[vocab / kBlock + 1]),
      ranked_max(new int32_t[vocab / kBlock + 1]),
      block_mass(new uint64_t[vocab / kBlock + 1]),
      candidates(new Candidate[vocab]) {}

SampleResult Sample(const SampleArgs& args) {
  FD_CHECK(args.vocab > 0 && args.vocab <= args.scratch->vocab && args.vocab <= kMaxVocab, "vocabulary out of bounds");
  const SamplingParams& params = *args.params;
  const bool report = params.logprobs >= 0;
  const bool changes = ChangesLogits(args);
  Row raw = {.logits = args.logits, .vocab = args.vocab, .scratch = args.scratch};
  SampleResult result = {.outcome = SampleOutcome::kToken};
  double log_total = 0;
  if (report || !changes) {
    result.outcome = Scan(&raw);
    if (result.outcome != SampleOutcome::kToken) return result;
  }
  if (report) {
    log_total = LogOfWeights(SumWeights(raw));
    result.top_logprobs = ReportTop(raw, params.logprobs, log_total, args.top_logprobs);
  }
  Row row = raw;
  if (changes) {
    row.logits = ChangeLogits(args);
    result.outcome = Scan(&row);
    if (result.outcome != SampleOutcome::kToken) return result;
  }
  if (params.temperature < kGreedyTemperature) {
    result.token = row.best;
  } else {
    row.inverse_temperature = 1 / params.temperature;
    result.token = Draw(row, params, RandomBits(params.seed, args.position));
  }
  if (report) result.logprob = Logprob(raw.logits[result.token], raw.max, log_total);
  return result;
}

}  // namespace fastdecode
