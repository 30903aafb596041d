#ifndef FASTDECODE_TESTS_ALLOCATION_COUNT_H_
#define FASTDECODE_TESTS_ALLOCATION_COUNT_H_

#include <cstdint>

namespace fastdecode {

// Calls of operator new in this program so far, by all threads. Who links allocation_count.cc has operator new replaced
// for the whole program.
uint64_t AllocationCount();

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ALLOCATION_COUNT_H_
