#ifndef FASTDECODE_TESTS_RDMA_TCP_SECRET_FILE_H_
#define FASTDECODE_TESTS_RDMA_TCP_SECRET_FILE_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "rdma/tcp/secret.h"
#include "tests/rdma/socket_folder.h"

namespace fastdecode {

inline void WriteSecretFile(const std::string& path, const std::string& contents, mode_t mode = 0600) {
  std::ofstream(path, std::ios::binary) << contents;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
}

// A secret of these bytes, by way of a file.
inline std::shared_ptr<const Secret> MakeSecret(const std::string& contents) {
  const SocketFolder folder;
  WriteSecretFile(folder.File("secret"), contents);
  auto secret = Secret::Read("--secret-file", folder.File("secret"));
  EXPECT_TRUE(secret.ok()) << secret.status();
  return *secret;
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_TCP_SECRET_FILE_H_
