#ifndef FASTDECODE_RDMA_VERBS_CRC32C_H_
#define FASTDECODE_RDMA_VERBS_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode {

// CRC-32C (Castagnoli, RFC 3720) of `bytes` bytes that follow those of which `crc` is the checksum (0: none). By the
// CPU's instruction where it has one.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

// The same without the instruction; for tests.
uint32_t Crc32cByTable(uint32_t crc, const void* data, size_t bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_CRC32C_H_
