#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz_target.h"

// libFuzzer's entry.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastdecode::FuzzOne(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
