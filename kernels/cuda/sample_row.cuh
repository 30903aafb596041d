#ifndef FASTDECODE_KERNELS_CUDA_SAMPLE_ROW_CUH_
#define FASTDECODE_KERNELS_CUDA_SAMPLE_ROW_CUH_

// A row of logits as a block of the sampling kernel sees it: the ranking of its tokens, and one look at all of them.

#include <limits>

#include "kernels/cuda/sample_kernel.h"
#include "kernels/cuda/simt.h"
#include "kernels/sampling_math.h"

namespace fastdecode::simt {

inline constexpr uint32_t kListMax = 1024;
inline constexpr uint32_t kBins = kWarp * kWarp;
inline constexpr uint64_t kNoRank = ~uint64_t{0};

// The block's shared memory. Every function that uses a part of it ends when no thread does any more.
struct SampleShared {
  SampleRow row;
  uint64_t bins[kBins];
  uint64_t ranks[kListMax];    // the list of the candidates that matter, in any order...
  uint64_t weights[kListMax];  // ...and their weights
  uint64_t parts[kWarp];       // one a warp
  uint64_t found, before;      // what one thread found for all
  uint32_t listed;
};
static_assert(sizeof(SampleShared) == kSampleSharedBytes);

// As OrderKey, but what is larger comes first.
constexpr uint32_t FallingKey(float logit) { return 0x7fffffffu - static_cast<uint32_t>(OrderKey(logit)); }
// The place of a token among all: by falling logit, then by rising token. Not for NaN.
FD_DEVICE uint64_t Rank(float logit, int token) {
  return uint64_t{FallingKey(logit)} << kVocabBits | static_cast<uint64_t>(token);
}
FD_DEVICE int TokenOf(uint64_t rank) { return static_cast<int>(rank & ((1u << kVocabBits) - 1)); }

struct Row {
  const float* logits;
  int vocab;
  float inverse_temperature = 1;
  // Scan's:
  float max = 0;            // the largest logit
  int best = 0;             // its lowest token
  uint64_t mine = kNoRank;  // the best rank among this thread's tokens; none: they are all -inf

  FD_DEVICE uint64_t Weight(float logit) const { return FixedExp((logit - max) * inverse_temperature); }
  FD_DEVICE uint64_t WeightUpTo(uint64_t last, int token) const {
    return Rank(logits[token], token) <= last ? Weight(logits[token]) : 0;
  }
};

// use(logit, token) for those tokens of [begin, end) that are worker's among `workers`, in rising order. `kAhead`: so
// many loads are under way at once; more of them make longer code.
template <int kAhead = 1, class Use>
FD_DEVICE void ForTokens(const float* logits, int begin, int end, unsigned worker, unsigned workers, const Use& use) {
  const int first = static_cast<int>(worker), step = static_cast<int>(workers);
  if (HoldsPacks<4>(logits + begin) && (end - begin) % 4 == 0) {
    int i = begin + 4 * first;
    // Unconditional loads, or nvcc has each wait for what is done with the one before.
    for (const int last = 4 * step * (kAhead - 1); kAhead > 1 && i + last < end; i += last + 4 * step) {
      Pack<float, 4> packs[kAhead];
      FD_UNROLL(unroll)
      for (int n = 0; n < kAhead; ++n) packs[n] = LoadPack<4>(logits + i + 4 * step * n);
      FD_UNROLL(unroll)
      for (int n = 0; n < kAhead; ++n) {
        for (int j = 0; j < 4; ++j) use(packs[n].v[j], i + 4 * step * n + j);
      }
    }
    FD_UNROLL(unroll 1)
    for (; i < end; i += 4 * step) {
      const Pack<float, 4> pack = LoadPack<4>(logits + i);
      for (int j = 0; j < 4; ++j) use(pack.v[j], i + j);
    }
  } else {
    FD_UNROLL(unroll 1)
    for (int i = begin + first; i < end; i += step) use(logits[i], i);
  }
}
template <int kAhead = 1, class Use>
FD_DEVICE void ForTokens(const Row& row, const Use& use) {
  ForTokens<kAhead>(row.logits, 0, row.vocab, Thread(), Threads(), use);
}

// Fills in the row's largest logit.
FD_DEVICE_CALL SampleOutcome Scan(SampleShared& shared, Row* row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest = -kInfinity;
  int at = -1;
  bool has_nan = false;
  ForTokens<8>(*row, [&](float logit, int token) {
    has_nan |= logit != logit;
    if (logit > largest) {
      largest = logit;
      at = token;
    }
  });
  row->mine = at < 0 ? kNoRank : Rank(largest, at);
  const uint64_t best = LeastOverBlock(has_nan ? 0 : row->mine, shared.parts);
  if (best >> kVocabBits <= FallingKey(kInfinity)) return SampleOutcome::kBadLogits;
  if (best == kNoRank) return SampleOutcome::kNoCandidate;
  row->best = TokenOf(best);
  row->max = row->logits[row->best];
  return SampleOutcome::kToken;
}

// The count-th best among `mine` of each thread, Row's, which bounds the row's count-th best from below. kNoRank if
// there are not so many.
FD_DEVICE_CALL uint64_t BoundOfBest(SampleShared& shared, uint64_t mine, int count) {
  shared.bins[Thread()] = mine;
  if (Thread() == 0) shared.found = kNoRank;
  SyncBlock();
  int better = 0;
  for (unsigned i = 0; i < Threads(); ++i) better += shared.bins[i] < mine;
  if (mine != kNoRank && better == count - 1) shared.found = mine;
  SyncBlock();
  const uint64_t bound = shared.found;
  SyncBlock();
  return bound;
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_SAMPLE_ROW_CUH_
