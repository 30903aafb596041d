#ifndef FASTDECODE_KERNELS_SAMPLING_MATH_H_
#define FASTDECODE_KERNELS_SAMPLING_MATH_H_

#include <array>
#include <bit>
#include <cstdint>

// What every device that samples must compute to the bit, so that a seed gives the same text everywhere: the random
// numbers, and the weight of a logit as an integer, whose sums are the same in any order. Only single IEEE operations
// are used; compile without contraction (-ffp-contract=off).
namespace fastdecode {

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
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
inline uint64_t RandomBits(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return bits[0] | uint64_t{bits[1]} << 32;
}

// A weight is round(2^44 e^t): 2^44 for the most likely token, 0 below t = -31.2. 2^19 of them fit in 64 bits.
inline constexpr int kWeightBits = 44;

// REQUIRES: t <= 0 or -inf, not NaN. Relative error below 1e-6, or half a unit.
inline uint64_t FixedExp(float t) {
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
  constexpr double kFix = 256;  // its last bit is 2^-44
  return std::bit_cast<uint64_t>(double{e} + kFix) - std::bit_cast<uint64_t>(kFix);
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_SAMPLING_MATH_H_
