#ifndef FASTDECODE_TESTS_ENGINE_MODEL_SCRATCH_DIR_H_
#define FASTDECODE_TESTS_ENGINE_MODEL_SCRATCH_DIR_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "numa/check.h"

namespace fastdecode {

// A folder of the test's own. Owns: it and what is in it, removed at the end.
class ScratchDir {
 public:
  ScratchDir() : path_(testing::TempDir() + "fastdecode_XXXXXX") {
    FD_CHECK(mkdtemp(path_.data()) != nullptr, "the test's scratch folder can be made");
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream out(File(name), std::ios::binary);
    out << text;
    FD_CHECK(out.good(), "the test's file can be written");
  }

 private:
  std::string path_;
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_MODEL_SCRATCH_DIR_H_
