#include "rdma/tcp/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/rdma/tcp/secret_file.h"

namespace fastdecode {
namespace {

class SecretTest : public testing::Test {
 protected:
  absl::Status Read() { return Secret::Read("--secret-file", path_).status(); }
  std::string Bytes() {
    const auto secret = Secret::Read("--secret-file", path_);
    EXPECT_TRUE(secret.ok()) << secret.status();
    return secret.ok() ? std::string(reinterpret_cast<const char*>((*secret)->data()), (*secret)->size()) : "";
  }
  std::string Expected(const std::string& why) { return "--secret-file: '" + path_ + "': " + why; }
  std::string HowTo() {
    return " (to make one: head -c 32 /dev/urandom | base64 > " + path_ + "; chmod 600 " + path_ + ")";
  }

  const SocketFolder folder_;
  const std::string path_ = folder_.File("secret");
};

TEST_F(SecretTest, OneNewlineAtTheEndIsNoPartOfIt) {
  WriteSecretFile(path_, "sixteen bytes ok\n");
  EXPECT_EQ(Bytes(), "sixteen bytes ok");
  WriteSecretFile(path_, "sixteen bytes ok");
  EXPECT_EQ(Bytes(), "sixteen bytes ok");
  WriteSecretFile(path_, std::string("\0\n in the middle\n\n", 18), 0400);
  EXPECT_EQ(Bytes(), std::string("\0\n in the middle\n", 17));
  EXPECT_EQ(chmod(path_.c_str(), 0600), 0);
  WriteSecretFile(path_, std::string(4096, 's'));
  EXPECT_EQ(Bytes(), std::string(4096, 's'));
}

TEST_F(SecretTest, TooShortOrTooLong) {
  WriteSecretFile(path_, "fifteen bytes..\n");
  EXPECT_EQ(Read().message(), Expected("size: 15 bytes are less than 16" + HowTo()));
  WriteSecretFile(path_, "");
  EXPECT_EQ(Read().message(), Expected("size: 0 bytes are less than 16" + HowTo()));
  WriteSecretFile(path_, std::string(4097, 's'));
  EXPECT_EQ(Read().message(), Expected("size: more than 4096 bytes are no secret"));
  EXPECT_EQ(Read().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SecretTest, OthersMustNotReadIt) {
  for (const mode_t mode : {0640, 0604, 0620, 0601, 0644}) {
    WriteSecretFile(path_, "sixteen bytes ok", mode);
    char text[8];
    snprintf(text, sizeof(text), "%04o", mode);
    EXPECT_EQ(Read().message(),
              Expected(std::string("mode: ") + text + " lets others read or write it; chmod 600 " + path_));
    EXPECT_EQ(Read().code(), absl::StatusCode::kPermissionDenied);
  }
}

TEST_F(SecretTest, AGroupMayReadRootsForAUserWhoIsNotRoot) {
  EXPECT_EQ(ForbiddenSecretMode(0, 1000), 037u);
  EXPECT_EQ(ForbiddenSecretMode(0, 0), 077u);
  EXPECT_EQ(ForbiddenSecretMode(1000, 1000), 077u);
  EXPECT_EQ(ForbiddenSecretMode(1000, 0), 077u);
  WriteSecretFile(path_, "sixteen bytes ok");
  if (chown(path_.c_str(), 0, 4711) != 0) GTEST_SKIP() << "only root gives files away";
  ASSERT_EQ(chmod(folder_.File(".").c_str(), 0755), 0);
  const auto read_as_user = [&](mode_t mode) {
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(setegid(4711), 0);
    EXPECT_EQ(seteuid(4711), 0);
    const absl::Status status = Read();
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(setegid(0), 0);
    return status;
  };
  EXPECT_TRUE(read_as_user(0440).ok());
  EXPECT_EQ(read_as_user(0660).message(), Expected("mode: 0660 lets others read or write it; chmod 640 " + path_));
  EXPECT_EQ(read_as_user(0444).message(), Expected("mode: 0444 lets others read or write it; chmod 640 " + path_));
}

TEST_F(SecretTest, ItIsOursOrRoots) {
  WriteSecretFile(path_, "sixteen bytes ok");
  if (chown(path_.c_str(), 4711, static_cast<gid_t>(-1)) != 0) GTEST_SKIP() << "only root gives files away";
  EXPECT_EQ(Read().message(),
            Expected("owner: uid 4711 is neither this user (" + std::to_string(geteuid()) + ") nor root"));
}

TEST_F(SecretTest, WhatIsNoFile) {
  EXPECT_EQ(Read().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Read().message(), Expected("No such file or directory" + HowTo()));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Read().message(), Expected("is no regular file"));
  EXPECT_EQ(Secret::Read("--secret-file", "/").status().message(), "--secret-file: '/': is no regular file");
}

}  // namespace
}  // namespace fastdecode
