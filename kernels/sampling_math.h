#ifndef FASTDECODE_KERNELS_SAMPLING_MATH_H_
#define FASTDECODE_KERNELS_SAMPLING_MATH_H_

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/bits.h"
#include "kernels/sampler.h"

// What every device that samples must compute to the bit, so that a seed gives the same text everywhere: the random
// numbers, the order of logits, and their weights as integers, whose sums are the same in any order. Only single IEEE
// operations are used; compile without contraction (-ffp-contract=off, -fmad=false). Constexpr, because that is what
// nvcc lets kernels call (--expt-relaxed-constexpr).
namespace fastdecode {

// ---- Random numbers

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// 64 uniform bits that depend on nothing but the sequence's seed and the position of the token to draw.
constexpr uint64_t RandomBits(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return bits[0] | uint64_t{bits[1]} << 32;
}

// An integer below `total`, uniform to 2^-64.
constexpr uint64_t Below(uint64_t total, uint64_t random) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(total) * random) >> 64);
}

// ---- Weights

// A weight is round(2^44 e^t): 2^44 for the most likely token, 0 below t = -31.2. kMaxVocab of them fit in 64 bits.
inline constexpr int kWeightBits = 44;

// round(2^44 e), ties to even, for e = 0 or a normal number up to 1: by an addition whose last bit is 2^-44...
constexpr uint64_t FixByAddition(float e) {
  constexpr double kFix = 256;
  return std::bit_cast<uint64_t>(double{e} + kFix) - std::bit_cast<uint64_t>(kFix);
}
// ...and without double precision, which most GPUs have next to none of.
constexpr uint64_t FixByShifting(float e) {
  const uint32_t bits = std::bit_cast<uint32_t>(e);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int left = static_cast<int>(bits >> 23) - 127 - 23 + kWeightBits;
  if (left >= 0) return mantissa << left;
  const int right = left < -40 ? 40 : -left;  // 40: nothing is left of it
  return (mantissa + ((uint64_t{1} << (right - 1)) - 1) + (mantissa >> right & 1)) >> right;
}

// REQUIRES: t <= 0 or -inf, not NaN. Relative error below 1e-6, or half a unit.
constexpr uint64_t FixedExp(float t) {
  const uint32_t keep = -static_cast<uint32_t>(t > -40.0f);  // a mask, because GCC does not vectorise the branch
  t = std::bit_cast<float>(std::bit_cast<uint32_t>(t) & keep);
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = t * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (t - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // t = n ln2 + r; n times ln2's upper part is exact
  float sum = 1.0f / 5040;                                       // Taylor: the remainder after r^7 is below 6e-9
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;  // n, modulo 2^9, in the exponent's place
  const float e = std::bit_cast<float>((std::bit_cast<uint32_t>(sum) + exponent) & keep);
#if defined(__CUDA_ARCH__)
  return FixByShifting(e);
#else
  return FixByAddition(e);
#endif
}

// ln(total / 2^44), for a sum of weights that is at least 2^44. Absolute error below 1e-14.
constexpr double LogOfWeights(uint64_t total) {
  const int exponent = BitWidth(total) - 1;
  // The mantissa, in [1, 2): what does not fit in 52 bits is cut off.
  const uint64_t fraction = (exponent > 52 ? total >> (exponent - 52) : total << (52 - exponent)) ^ (uint64_t{1} << 52);
  const double m = std::bit_cast<double>(uint64_t{1023} << 52 | fraction);
  const double s = (m - 1) / (m + 1);  // ln m = 2 artanh s, s < 1/3: the terms left out are below 1e-17
  const double square = s * s;
  double sum = 0;
  for (int n = 31; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return (exponent - kWeightBits) * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

// Of a token with this logit, in a row whose largest one is `max`.
constexpr float Logprob(float logit, float max, double log_total) {
  return static_cast<float>(double{logit} - max - log_total);
}

// p of a total, in integers.
constexpr uint64_t Share(float p, uint64_t total) {
  const auto p32 = static_cast<uint64_t>(double{p} * 0x1p32 + 0.5);
  return static_cast<uint64_t>((static_cast<unsigned __int128>(total) * p32) >> 32);
}

// The least weight that counts as min_p times as likely as the most likely token.
constexpr uint64_t LeastWeight(float min_p) {
  return static_cast<uint64_t>(double{min_p} * (uint64_t{1} << kWeightBits));
}

// ---- Logits

// Integers in the order of the floats; -0 counts as 0. Not for NaN.
constexpr int32_t OrderKey(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

constexpr bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

// The logit of a token that prompt or output has. One that is finite does not become +inf, which only a broken model's
// are, though a large bias may have made it huge.
constexpr float Penalised(float logit, const SamplingParams& params, int output_count) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const bool finite = logit <= kLargest;
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (finite && logit > kLargest) logit = kLargest;
  logit -= params.frequency_penalty * static_cast<float>(output_count);
  return output_count > 0 ? logit - params.presence_penalty : logit;
}

constexpr bool HasTopK(const SamplingParams& params, int vocab) { return params.top_k > 0 && params.top_k < vocab; }
// Whether not every token that has a weight may be drawn.
constexpr bool CutsRow(const SamplingParams& params, int vocab) {
  return HasTopK(params, vocab) || params.min_p > 0 || params.top_p < 1;
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_SAMPLING_MATH_H_
