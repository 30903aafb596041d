#ifndef FASTDECODE_TESTS_RDMA_SOCKET_FOLDER_H_
#define FASTDECODE_TESTS_RDMA_SOCKET_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fastdecode {

// A folder of its own for a test's sockets, with a path short enough for one.
// Owns: the folder and what is in it.
class SocketFolder {
 public:
  SocketFolder() {
    char name[] = "/tmp/fastdecode-test-XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path_ = name;
  }
  ~SocketFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_SOCKET_FOLDER_H_
