#ifndef FASTDECODE_TESTS_TOOLS_MADE_UP_ROOT_H_
#define FASTDECODE_TESTS_TOOLS_MADE_UP_ROOT_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace fastdecode {

// A folder that stands for the / of a host, empty at first. Owns: the folder.
class MadeUpRoot {
 public:
  MadeUpRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fd-root-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~MadeUpRoot() { std::filesystem::remove_all(root_); }
  MadeUpRoot(const MadeUpRoot&) = delete;
  MadeUpRoot& operator=(const MadeUpRoot&) = delete;

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  void Link(const std::string& path, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }
  void Remove(const std::string& path) { ASSERT_GT(std::filesystem::remove_all(root_ + path), 0u) << path; }

  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_MADE_UP_ROOT_H_
