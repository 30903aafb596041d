#ifndef FASTDECODE_KERNELS_BITS_H_
#define FASTDECODE_KERNELS_BITS_H_

#include <bit>
#include <cstdint>

namespace fastdecode {

// What kernels of every device use in place of <bit>'s: nvcc 13 compiles libstdc++ 12's has_single_bit, bit_width and
// their like for 64 bits without a word, and drops the host compiler's builtin in them, so that the result is 0. For 32
// bits, and bit_cast, it is right.
constexpr bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }
// The smallest number of bits that hold `value`.
constexpr int BitWidth(uint64_t value) {
  const auto high = static_cast<uint32_t>(value >> 32);
  return high != 0 ? 32 + std::bit_width(high) : std::bit_width(static_cast<uint32_t>(value));
}
static_assert(IsPowerOfTwo(1) && IsPowerOfTwo(uint64_t{1} << 63) && !IsPowerOfTwo(0) && !IsPowerOfTwo(96));
static_assert(BitWidth(0) == 0 && BitWidth(0xffffffff) == 32 && BitWidth(uint64_t{1} << 32) == 33);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_BITS_H_
