#ifndef FASTDECODE_TESTS_RDMA_LINK_MESSAGES_H_
#define FASTDECODE_TESTS_RDMA_LINK_MESSAGES_H_

#include <cstddef>
#include <cstdint>

#include "rdma/link.h"

namespace fastdecode {

// Three slots of 200 and 100 bytes, and messages that fill them.
LinkSize SmallSize();
HopHeader Hop(int slot, uint64_t step = 1, int layer = 0);
ReplyHeader ReplyTo(const HopHeader& hop);

// Bytes that differ by place and seed.
void FillPattern(std::byte* to, size_t bytes, uint64_t seed);
bool HasPattern(const std::byte* at, size_t bytes, uint64_t seed);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_LINK_MESSAGES_H_
