#ifndef FASTDECODE_KERNELS_MEMORY_STREAM_H_
#define FASTDECODE_KERNELS_MEMORY_STREAM_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode {

// What a memory-bound kernel is compared with. All pointers are 64-byte aligned; whole 512-byte blocks are done, a rest
// is left out. REQUIRES: AVX2. Thread: any.

// In how many places a stream is read at once. Which is faster depends on the CPU and on how far these lie apart: some
// Intel CPUs read four places 5-10 % faster than one; Zen 4 reads four within a megabyte as fast as one (25 GB/s a
// core), four a quarter of a gigabyte apart at two thirds of that. Whoever needs a limit reads in pieces and tries
// both.
enum class ReadStreams : int { kOne = 1, kFour = 4 };

// Reads `bytes` bytes once and does next to nothing with them. Returns a value that depends on all of them.
uint64_t ReadStream(const std::byte* data, size_t bytes, ReadStreams streams = ReadStreams::kFour);

// Writes `bytes` bytes past the caches (non-temporal stores), all equal to `word`; what was written is visible to who
// synchronises with the caller.
void WriteStream(std::byte* data, size_t bytes, uint64_t word);

// Reads `bytes` bytes and writes them elsewhere, past the caches. REQUIRES: no overlap.
void CopyStream(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_MEMORY_STREAM_H_
