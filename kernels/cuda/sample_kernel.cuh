#ifndef FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_CUH_
#define FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_CUH_

// The kernel of sample_kernel.h. A greedy row is read once and a plain draw twice; top-k, min-p and top-p cost no more
// where what they keep fits into a list. The steps, and what each means, are those of kernels/sampler.cc.

#include "kernels/cuda/sample_select.cuh"

namespace fastdecode::simt {

// ---- Bias and penalties

FD_DEVICE bool ChangesLogits(const SampleRow& row) {
  return row.allowed_count + row.banned_count + row.bias_count > 0 || HasPenalties(row.params);
}

// The row with allowed and banned ids and bias applied.
FD_DEVICE_CALL void ApplyLists(const SampleRow& row, const float* logits, int vocab, float* out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool all = row.allowed_count == 0;
  ForTokens(logits, 0, vocab, Thread(), Threads(),
            [&](float logit, int token) { out[token] = all ? logit : -kInfinity; });
  SyncBlock();
  for (uint32_t i = Thread(); i < row.allowed_count; i += Threads()) out[row.allowed[i]] = logits[row.allowed[i]];
  SyncBlock();
  for (uint32_t i = Thread(); i < row.banned_count; i += Threads()) out[row.banned[i]] = -kInfinity;
  SyncBlock();
  for (uint32_t i = Thread(); i < row.bias_count; i += Threads()) out[row.bias[i].token] += row.bias[i].bias;
  SyncBlock();
}

// Four tokens from `token` on, which is a multiple of 4.
FD_DEVICE void PenaliseFour(const SampleRow& row, Pack<float, 4>* logits, int token, const Pack<uint16_t, 4>& counts) {
  const uint64_t seen = row.prompt_seen[token / 64] >> (token % 64);
  for (int j = 0; j < 4; ++j) {
    if ((seen >> j & 1) != 0 || counts.v[j] != 0) logits->v[j] = Penalised(logits->v[j], row.params, counts.v[j]);
  }
}

// `logits` may be `out`. Each thread reads and writes tokens of its own.
FD_DEVICE_CALL void ApplyPenalties(const SampleRow& row, const float* logits, int vocab, float* out) {
  const uint16_t* const counts = row.output_counts;
  if (HoldsPacks<4>(logits) && HoldsPacks<4>(counts) && vocab % 4 == 0) {
    for (int i = 4 * static_cast<int>(Thread()); i < vocab; i += 4 * static_cast<int>(Threads())) {
      Pack<float, 4> four = LoadPack<4>(logits + i);
      PenaliseFour(row, &four, i, LoadPack<4>(counts + i));
      StorePack(out + i, four);
    }
  } else {
    for (int i = static_cast<int>(Thread()); i < vocab; i += static_cast<int>(Threads())) {
      const bool seen = (row.prompt_seen[i / 64] >> (i % 64) & 1) != 0 || counts[i] != 0;
      out[i] = seen ? Penalised(logits[i], row.params, counts[i]) : logits[i];
    }
  }
  SyncBlock();
}

// Returns the changed row, in `scratch`.
FD_DEVICE const float* ChangeLogits(const SampleRow& row, const float* logits, int vocab, float* scratch) {
  if (row.allowed_count + row.banned_count + row.bias_count > 0) {
    ApplyLists(row, logits, vocab, scratch);
    logits = scratch;
  }
  if (HasPenalties(row.params)) ApplyPenalties(row, logits, vocab, scratch);
  return scratch;
}

// ---- Cuts

// The tokens that may be drawn: those that rank no worse than `last`. All that have a weight are among the list's first
// `listed` entries, or the list means nothing.
struct Kept {
  uint64_t last = kNoRank;
  bool in_list = false;
  uint32_t listed = 0;
};

// use(rank, weight) for this thread's share of what is kept.
template <class Use>
FD_DEVICE void ForKept(const SampleShared& shared, const Row& row, const Kept& kept, const Use& use) {
  if (kept.in_list) {
    for (uint32_t i = Thread(); i < kept.listed; i += Threads()) {
      if (shared.ranks[i] <= kept.last) use(shared.ranks[i], shared.weights[i]);
    }
  } else {
    ForTokens(row, [&](float logit, int token) {
      const uint64_t rank = Rank(logit, token);
      if (rank <= kept.last) use(rank, row.Weight(logit));
    });
  }
}

FD_DEVICE_CALL uint64_t MassOf(SampleShared& shared, Row row, Kept kept) {
  uint64_t mass = 0;
  ForKept(shared, row, kept, [&](uint64_t, uint64_t weight) { mass += weight; });
  return SumOverBlock(mass, shared.parts);
}

FD_DEVICE void KeepUntil(SampleShared& shared, const Row& row, Measure measure, uint64_t target, Kept* kept) {
  kept->last =
      kept->in_list ? ReachInList(shared, kept->listed, measure, target) : ReachInRow(shared, row, measure, target);
}

// The rank of the last one that has this weight.
FD_DEVICE_CALL uint64_t LastLikely(SampleShared& shared, Row row, uint64_t least, Kept kept) {
  uint64_t last = 0;
  ForKept(shared, row, kept, [&](uint64_t rank, uint64_t weight) {
    if (weight >= least && rank > last) last = rank;
  });
  return MostOverBlock(last, shared.parts);
}

// What every token of a list of candidates has: a little below what is asked for, because weights are not quite in the
// order of the logits, and at least 1, because nothing else is ever drawn.
FD_DEVICE uint64_t WeightToList(const SamplingParams& params) {
  if (params.min_p == 0) return 1;
  const uint64_t least = LeastWeight(params.min_p), slack = (least >> 16) + 1;
  return least > slack ? least - slack : 1;
}

// Applies top-k, min-p and top-p.
FD_DEVICE_CALL Kept CutRow(SampleShared& shared, Row row, const SamplingParams& params) {
  constexpr int kFirstNucleus = 512;  // where top-p alone looks first
  const bool top_k = HasTopK(params, row.vocab), top_p_alone = !top_k && params.min_p == 0;
  const int threads = static_cast<int>(Threads());
  const int wanted = top_k ? params.top_k : threads / 2 < kFirstNucleus ? threads / 2 : kFirstNucleus;
  const uint64_t bound = top_k || top_p_alone ? BoundOfBest(shared, row.mine, wanted) : kNoRank;
  const uint64_t least = WeightToList(params);
  uint64_t total = 0;
  Kept kept;
  kept.listed = Collect(shared, row, [&](uint64_t rank, float logit) {
    if (rank > bound && !top_p_alone) return false;
    const uint64_t weight = row.Weight(logit);
    total += weight;
    return rank <= bound && weight >= least;
  });
  kept.in_list = kept.listed <= kListMax;
  if (top_p_alone) {
    total = SumOverBlock(total, shared.parts);
    kept.in_list = kept.in_list && MassOf(shared, row, kept) >= Share(params.top_p, total);
  }
  if (top_k) KeepUntil(shared, row, Measure::kTokensWithWeight, static_cast<uint64_t>(params.top_k), &kept);
  if (params.min_p > 0) kept.last = LastLikely(shared, row, LeastWeight(params.min_p), kept);
  if (params.top_p < 1) {
    if (!top_p_alone) total = MassOf(shared, row, kept);
    KeepUntil(shared, row, Measure::kMass, Share(params.top_p, total), &kept);
  }
  return kept;
}

// ---- Draws: both invert the cumulated weights of what is kept, in the order of the token ids

FD_DEVICE_CALL int DrawFromList(SampleShared& shared, Row row, const Kept& kept, uint64_t random) {
  const uint64_t target = Below(MassOf(shared, row, kept), random);
  for (uint32_t e = Thread(); e < kept.listed; e += Threads()) {
    if (shared.ranks[e] > kept.last) continue;
    const int token = TokenOf(shared.ranks[e]);
    uint64_t before = 0;
    for (uint32_t i = 0; i < kept.listed; ++i) {
      if (shared.ranks[i] <= kept.last && TokenOf(shared.ranks[i]) < token) before += shared.weights[i];
    }
    if (before <= target && target < before + shared.weights[e]) shared.found = static_cast<uint64_t>(token);
  }
  SyncBlock();
  const int token = static_cast<int>(shared.found);
  SyncBlock();
  return token;
}

// The token of [begin, end) where the sum of what is kept reaches `target`, found by the first warp.
FD_DEVICE int DrawFromSegment(SampleShared& shared, const Row& row, uint64_t last, int begin, int end,
                              uint64_t target) {
  if (Thread() < kWarp) {
    Reached reached = {kWarp, 0};
    int first = begin - static_cast<int>(kWarp);
    while (reached.index == kWarp && first + static_cast<int>(kWarp) < end) {
      first += static_cast<int>(kWarp);
      const int token = first + static_cast<int>(Thread());
      reached = ReachInWarp(token < end ? row.WeightUpTo(last, token) : 0, target);
      target -= reached.before;
    }
    if (Thread() == 0) shared.found = static_cast<uint64_t>(first) + reached.index;
  }
  SyncBlock();
  const int token = static_cast<int>(shared.found);
  SyncBlock();
  return token;
}

// Whole segments first, each summed up by a warp.
FD_DEVICE_CALL int DrawFromRow(SampleShared& shared, Row row, uint64_t last, uint64_t random) {
  constexpr int kStep = 4 * kWarp;
  const int length = (row.vocab / static_cast<int>(kBins) + kStep) / kStep * kStep;
  const auto segments = static_cast<uint32_t>((row.vocab + length - 1) / length);
  const auto begin = [&](uint32_t segment) { return static_cast<int>(segment) * length; };
  const auto end = [&](uint32_t segment) { return begin(segment + 1) < row.vocab ? begin(segment + 1) : row.vocab; };
  for (uint32_t segment = Thread() / kWarp; segment < segments; segment += Threads() / kWarp) {
    uint64_t sum = 0;
    ForTokens<2>(row.logits, begin(segment), end(segment), Thread() % kWarp, kWarp, [&](float logit, int token) {
      if (Rank(logit, token) <= last) sum += row.Weight(logit);
    });
    sum = SumOverWarp(sum);
    if (Thread() % kWarp == 0) shared.bins[segment] = sum;
  }
  SyncBlock();
  uint64_t mass = 0;
  for (uint32_t segment = Thread(); segment < segments; segment += Threads()) mass += shared.bins[segment];
  const uint64_t target = Below(SumOverBlock(mass, shared.parts), random) + 1;
  const Reached reached = ReachInBins(shared, segments, target);
  return DrawFromSegment(shared, row, last, begin(reached.index), end(reached.index), target - reached.before);
}

FD_DEVICE int Draw(SampleShared& shared, const Row& row, const SamplingParams& params, uint64_t random) {
  if (!CutsRow(params, row.vocab)) return DrawFromRow(shared, row, kNoRank, random);
  const Kept kept = CutRow(shared, row, params);
  return kept.in_list ? DrawFromList(shared, row, kept, random) : DrawFromRow(shared, row, kept.last, random);
}

// ---- Rows

// The n most likely tokens in order. Returns how many there are.
FD_DEVICE_CALL int ReportTop(SampleShared& shared, Row row, int n, double log_total, TokenLogprob* out) {
  if (n <= 0) return 0;
  n = n < row.vocab ? n : row.vocab;
  const uint64_t bound = BoundOfBest(shared, row.mine, n);
  uint32_t count = Collect(shared, row, [&](uint64_t rank, float) { return rank <= bound; });
  if (count > kListMax) {
    const uint64_t last = ReachInRow(shared, row, Measure::kTokens, static_cast<uint64_t>(n));
    count = Collect(shared, row, [&](uint64_t rank, float) { return rank <= last; });
  }
  for (uint32_t e = Thread(); e < count; e += Threads()) {
    int place = 0;
    for (uint32_t i = 0; i < count; ++i) place += shared.ranks[i] < shared.ranks[e];
    const int token = TokenOf(shared.ranks[e]);
    if (place < n) out[place] = {token, Logprob(row.logits[token], row.max, log_total)};
  }
  SyncBlock();
  return n;
}

FD_DEVICE void SampleOne(SampleShared& shared, const float* logits, int vocab, float* scratch, SampledRow* out,
                         SampleResult* result) {
  const SampleRow& wanted = shared.row;
  const SamplingParams& params = wanted.params;
  const bool report = params.logprobs >= 0, changes = ChangesLogits(wanted);
  Row raw = {.logits = logits, .vocab = vocab};
  double log_total = 0;
  if (report || !changes) {
    result->outcome = Scan(shared, &raw);
    if (result->outcome != SampleOutcome::kToken) return;
  }
  if (report) {
    log_total = LogOfWeights(MassOf(shared, raw, Kept()));
    result->top_logprobs = ReportTop(shared, raw, params.logprobs, log_total, out->top);
  }
  Row row = raw;
  if (changes) {
    row.logits = ChangeLogits(wanted, logits, vocab, scratch);
    result->outcome = Scan(shared, &row);
    if (result->outcome != SampleOutcome::kToken) return;
  }
  if (params.temperature < kGreedyTemperature) {
    result->token = row.best;
  } else {
    row.inverse_temperature = 1 / params.temperature;
    result->token = Draw(shared, row, params, RandomBits(params.seed, wanted.position));
  }
  if (report) result->logprob = Logprob(logits[result->token], raw.max, log_total);
}

FD_KERNEL void FD_BLOCK_MAX(kSampleThreadsMax) SampleRows(SampleRowsArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  const unsigned i = args.first + BlockX();
  // After a wait in vain the host may have taken back what rows point to.
  if (args.state->gave_up != 0 || i >= args.state->logit_rows || !args.rows[i].sample) return;
  SampleShared& shared = *reinterpret_cast<SampleShared*>(SharedMemory());
  constexpr unsigned kWords = sizeof(SampleRow) / sizeof(uint64_t);
  const auto* const from = reinterpret_cast<const uint64_t*>(args.rows + i);
  for (unsigned w = Thread(); w < kWords; w += Threads()) reinterpret_cast<uint64_t*>(&shared.row)[w] = from[w];
  SyncBlock();
  SampleResult result = {.outcome = SampleOutcome::kToken};
  SampledRow* const out = args.out + i;
  SampleOne(shared, args.logits + int64_t{BlockX()} * args.vocab, args.vocab,
            reinterpret_cast<float*>(args.scratch + BlockX() * SampleScratchBytes(args.vocab)), out, &result);
  if (Thread() != 0) return;
  out->outcome = result.outcome;
  out->token = result.token;
  out->logprob = result.logprob;
  out->top_logprobs = result.top_logprobs;
}

}  // namespace fastdecode::simt

namespace fastdecode {

template <class Use>
auto Dispatch(const SampleRowsArgs&, const Use& use) {
  return use(&simt::SampleRows);
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_SAMPLE_KERNEL_CUH_
