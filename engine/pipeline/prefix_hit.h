#ifndef FASTDECODE_ENGINE_PIPELINE_PREFIX_HIT_H_
#define FASTDECODE_ENGINE_PIPELINE_PREFIX_HIT_H_

#include <cstdint>

namespace fastdecode {

// How much of a sequence is stored at a home already, and who has it there.
struct PrefixHit {
  uint32_t tokens = 0;           // 0: nothing
  uint32_t source = UINT32_MAX;  // HomeLedger's holder
  uint64_t source_number = 0;    // what the home knows it by
  uint32_t block = UINT32_MAX;   // the cache's own, of the last page
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_PREFIX_HIT_H_
