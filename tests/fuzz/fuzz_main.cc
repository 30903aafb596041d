#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"

// libFuzzer's entries.

// Gives the target's right inputs to libFuzzer, as one more folder of its corpus. From nothing, it would not find JSON
// that a parser accepts.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static std::string folder =
      std::filesystem::temp_directory_path() / "fastdecode_seeds_XXXXXX";  // as mkdtemp wants it
  FD_CHECK(mkdtemp(folder.data()) != nullptr, "there is room for temporary files");
  std::atexit([] { std::filesystem::remove_all(folder); });
  size_t number = 0;
  for (const std::string& seed : fastdecode::FuzzSeeds()) {
    std::ofstream(folder + "/" + std::to_string(number++), std::ios::binary) << seed;
  }
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.push_back(folder.data());
  arguments.push_back(nullptr);
  *argc += 1;
  *argv = arguments.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fastdecode::FuzzOne(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
