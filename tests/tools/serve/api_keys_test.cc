// Files of keys, and who is let in by them.
#include "tools/serve/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fastdecode/fastdecode.hpp>
#include <filesystem>
#include <fstream>
#include <string>

namespace fastdecode::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

// NIST's example of SHA-256: that of "abc".
constexpr char kAbcHash[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class ApiKeysTest : public testing::Test {
 protected:
  ApiKeysTest() {
    char folder[] = "/tmp/api_keys_testXXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/keys";
  }
  ~ApiKeysTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  ApiKeys Keys(const std::string& text, mode_t mode = 0600) {
    Write(text, mode);
    return ApiKeys::Read(path_);
  }
  // What is said of it, which names the file.
  std::string Problem(const std::string& text, mode_t mode = 0600, fd_code code = FD_INVALID_ARGUMENT) {
    Write(text, mode);
    return ProblemOf(path_, code);
  }
  static std::string ProblemOf(const std::string& path, fd_code code) {
    try {
      ApiKeys::Read(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(path));
      return error.what();
    }
    ADD_FAILURE() << "it was read";
    return "";
  }

  std::string folder_, path_;
};

TEST_F(ApiKeysTest, ReadsKeysNamesAndHashes) {
  const ApiKeys keys =
      Keys("# ours\n\n  alice:sk-alice \r\nsk-bare\nbob@x.org: sk-b:ob\ncarol:sha256=" + std::string(kAbcHash) + "\n");
  EXPECT_EQ(keys.size(), 4u);
  EXPECT_THAT(keys.Name("Bearer sk-alice"), Optional(std::string("alice")));
  EXPECT_THAT(keys.Name("Bearer sk-bare"), Optional(std::string("key-4")));
  EXPECT_THAT(keys.Name("Bearer sk-b:ob"), Optional(std::string("bob@x.org")));
  EXPECT_THAT(keys.Name("Bearer abc"), Optional(std::string("carol")));
}

TEST_F(ApiKeysTest, LetsNobodyElseIn) {
  const ApiKeys keys = Keys("alice:sk-alice\nsha256=" + std::string(kAbcHash));
  for (const std::string& header :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("Bearer sk-alic"),
        std::string("Bearer sk-alicee"), std::string("Bearer sk-Alice"), std::string("Bearer alice:sk-alice"),
        std::string("Bearer alice"), std::string("Basic sk-alice"), std::string("sk-alice"),
        std::string("Bearersk-alice"), std::string("Bearer sk-alice x"), std::string("Bearer sk-alice\0", 16),
        "Bearer " + std::string(kAbcHash), "Bearer sha256=" + std::string(kAbcHash)}) {
    EXPECT_EQ(keys.Name(header), std::nullopt) << header;
  }
}

TEST_F(ApiKeysTest, TheSchemeHasNoCaseAndSpacesMayBeMany) {
  const ApiKeys keys = Keys("alice:sk-alice\n");
  for (const char* header : {"bearer sk-alice", "BEARER sk-alice", "Bearer   sk-alice  ", " Bearer\tsk-alice"}) {
    EXPECT_THAT(keys.Name(header), Optional(std::string("alice"))) << header;
  }
}

TEST_F(ApiKeysTest, EveryKeyOfManyIsKnown) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "user" + std::to_string(i) + ":sk-" + std::to_string(i * 7919) + "\n";
  const ApiKeys keys = Keys(text);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_THAT(keys.Name("Bearer sk-" + std::to_string(i * 7919)), Optional("user" + std::to_string(i)));
  }
}

TEST_F(ApiKeysTest, UppercaseHashesAreHashes) {
  std::string hash(kAbcHash);
  for (char& c : hash) c = static_cast<char>(toupper(c));
  EXPECT_THAT(Keys("carol:sha256=" + hash).Name("Bearer abc"), Optional(std::string("carol")));
}

TEST_F(ApiKeysTest, SaysWhichLineIsWrong) {
  EXPECT_THAT(Problem("a:x\n\nb:sha256=12\n"),
              AllOf(HasSubstr(":3: "), HasSubstr("64 hexadecimal"), HasSubstr("2 char")));
  EXPECT_THAT(Problem("b:sha256=" + std::string(64, 'g')), AllOf(HasSubstr(":1: "), HasSubstr("64 hexadecimal")));
  EXPECT_THAT(Problem("a:x\na:y\n"), AllOf(HasSubstr(":2: "), HasSubstr("the name a"), HasSubstr("line 1")));
  EXPECT_THAT(Problem("a:x\nkey-1:y\nz\nkey-3:q"), AllOf(HasSubstr(":4: "), HasSubstr("key-3"), HasSubstr("line 3")));
  EXPECT_THAT(Problem("a:abc\nb:sha256=" + std::string(kAbcHash)), AllOf(HasSubstr(":2: "), HasSubstr("line 1")));
  EXPECT_THAT(Problem(":x"), AllOf(HasSubstr(":1: "), HasSubstr("name")));
  EXPECT_THAT(Problem("a b:x"), AllOf(HasSubstr(":1: "), HasSubstr("name")));
  EXPECT_THAT(Problem(std::string("a\0:x", 4)), AllOf(HasSubstr(":1: "), HasSubstr("name")));
  EXPECT_THAT(Problem("a:"), AllOf(HasSubstr(":1: "), HasSubstr("the key")));
  EXPECT_THAT(Problem("a:x y"), AllOf(HasSubstr(":1: "), HasSubstr("the key")));
  EXPECT_THAT(Problem("a:" + std::string(2000, 'x')), AllOf(HasSubstr(":1: "), HasSubstr("the key")));
  EXPECT_THAT(Problem("a:x\xc3\xa4"), AllOf(HasSubstr(":1: "), HasSubstr("the key")));
}

TEST_F(ApiKeysTest, NoMessageHasAKey) {
  for (const char* text :
       {"a:the-secret\na:the-secret", "a:the-secret x", "a b:the-secret", "a:the-secret\nb:the-secret"}) {
    EXPECT_THAT(Problem(text), Not(HasSubstr("the-secret")));
  }
  EXPECT_THAT(Problem("a:the-secret", 0644, FD_PERMISSION_DENIED), Not(HasSubstr("the-secret")));
}

TEST_F(ApiKeysTest, AFileWithoutKeysIsRefused) {
  EXPECT_THAT(Problem(""), HasSubstr("no key"));
  EXPECT_THAT(Problem("# nothing\n\n"), HasSubstr("no key"));
  EXPECT_THAT(Problem(std::string(2 << 20, '\n')), HasSubstr("1048576"));
}

TEST_F(ApiKeysTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(ProblemOf(folder_ + "/none", FD_NOT_FOUND), HasSubstr("No such file"));
  EXPECT_THAT(ProblemOf(folder_, FD_INVALID_ARGUMENT), HasSubstr("no regular file"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ProblemOf(fifo, FD_INVALID_ARGUMENT), HasSubstr("no regular file"));
}

TEST_F(ApiKeysTest, KeysAreForTheirOwnerAlone) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644}) {
    EXPECT_THAT(Problem("a:x", mode, FD_PERMISSION_DENIED), AllOf(HasSubstr("mode: 0"), HasSubstr("chmod 600")));
    EXPECT_THAT(Problem("b:sha256=" + std::string(kAbcHash) + "\na:x", mode, FD_PERMISSION_DENIED),
                HasSubstr("chmod 600"));
  }
  EXPECT_EQ(Keys("a:x", 0400).size(), 1u);
}

TEST_F(ApiKeysTest, HashesMayBeReadByAllAndWrittenByTheOwner) {
  const std::string hashes = "b:sha256=" + std::string(kAbcHash) + "\n";
  EXPECT_EQ(Keys(hashes, 0644).size(), 1u);
  EXPECT_EQ(Keys(hashes, 0440).size(), 1u);
  EXPECT_THAT(Problem(hashes, 0664, FD_PERMISSION_DENIED), HasSubstr("chmod 644"));
  EXPECT_THAT(Problem(hashes, 0646, FD_PERMISSION_DENIED), HasSubstr("chmod 644"));
}

TEST_F(ApiKeysTest, AnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  Write("a:x");
  ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_THAT(ProblemOf(path_, FD_PERMISSION_DENIED), AllOf(HasSubstr("owner"), HasSubstr("12345")));
}

TEST(ForbiddenKeyFileMode, RootsFileMayBeReadByAGroup) {
  EXPECT_EQ(ForbiddenKeyFileMode(0, 1000, true), 037u);
  EXPECT_EQ(ForbiddenKeyFileMode(1000, 1000, true), 077u);
  EXPECT_EQ(ForbiddenKeyFileMode(0, 0, true), 077u);
  EXPECT_EQ(ForbiddenKeyFileMode(0, 1000, false), 022u);
  EXPECT_EQ(ForbiddenKeyFileMode(0, 0, false), 022u);
}

}  // namespace
}  // namespace fastdecode::serve
