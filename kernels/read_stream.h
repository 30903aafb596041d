#ifndef FASTDECODE_KERNELS_READ_STREAM_H_
#define FASTDECODE_KERNELS_READ_STREAM_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode {

// What a memory-bound kernel is compared with: reads `bytes` bytes (64-byte aligned, whole 512-byte blocks; a rest is
// left out) once and does next to nothing with them. Returns a value that depends on all of them. REQUIRES: AVX2.
// Thread: any.
uint64_t ReadStream(const std::byte* data, size_t bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_READ_STREAM_H_
